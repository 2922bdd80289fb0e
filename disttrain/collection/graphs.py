"""A collection as task, model and trainer see it: a graph whose node type `graph` are the graphs themselves.

So what holds for nodes holds for graphs: they are seeds, have labels and splits, and a batch carries them first. The
nodes and edges of the graphs are further types; a homogeneous collection has `node` and `node,edge,node`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch_geometric.data import HeteroData

from ..config import EdgeType, ExperimentError, edge_type_name
from ..data.homogeneous import NODE_TYPE
from ..data.nearest import nearest
from ..graph.book import PartitionBook, first_part
from ..graph.columns import Summary
from ..graph.schema import GRAPH, Attribute, Edges, Nodes, Schema, Wants
from .access import Access, Transformed
from .cache import Cache
from .collated import Collated, Key, Store
from .columns import Numbers
from .edges import refuse_wrong_edges
from .joining import Names
from .look import Look
from .ondisk import OnDisk
from .owned import names_of_edges, names_of_graphs, names_of_nodes
from .ragged import Ragged, numbered, offsets_of
from .sizes import sizes_of
from .summary import read_summary
from .wanted import ALL, refuse_unlike, source_of, value_of

_UNKNOWN = object()
_GRAPHS_AT_ONCE = 4096


@dataclass(frozen=True)
class Graphs:
    """A collection that is divided into splits. What it is asked for is what `Graph` is asked for."""

    collated: Collated
    manifest: dict[str, Any]
    """Of the collection, see `files.py`; `parts`, `method` and `fingerprint` as of partitions."""
    masks: dict[str, np.ndarray] = field(default_factory=dict)
    """Name -> [num_graphs, ...], attributes of the graphs beside those of the collection: which split they are in."""
    machine: int = 0
    num_machines: int = 1
    known: Schema | None = None
    """Of the graphs that a model was trained on, where it shall predict these: its tensors are sized by the ranges of
    those values."""
    sharded: bool = False
    """Each machine has batches of its own graphs only, those of its range in `node_books`."""
    access: Access | None = None
    """How batches come by their graphs; None: they are cut from `collated`."""
    look: Look | None = None
    """What graphs are like after the transforms that `access` applies; None: it applies none."""

    @cached_property
    def schema(self) -> Schema:
        attributes = {name: self._attribute(key, name) for name, key in self._of_graphs.items()}
        attributes |= {name: Attribute(str(mask.dtype), mask.shape[1:]) for name, mask in self.masks.items()}
        nodes = {GRAPH: Nodes(self.collated.num_graphs, attributes)}
        edges: dict[EdgeType, Edges] = {}
        for node_type, (key, names) in self._of_nodes.items():
            count = self._count(_num_nodes, key)
            nodes[node_type] = Nodes(count, {name: self._attribute(key, name) for name in names})
        for edge_type, (key, names) in self._of_edges.items():
            count = self._count(_num_edges, key)
            edges[edge_type] = Edges(count, {name: self._attribute(key, name) for name in names})
        found = Schema(nodes, edges)
        return found if self.known is None else found.widened(self.known)

    @property
    def fingerprint(self) -> str:
        return self.manifest["fingerprint"]

    @property
    def stored(self) -> Access:
        """The graphs before transforms."""
        return self.access.source if isinstance(self.access, Transformed) else self.access or self.collated

    def num_nodes(self, node_type: str) -> int:
        return self.schema.nodes[node_type].count

    def original_ids(self, node_type: str) -> np.ndarray:
        """int64 [num_graphs]: graphs have the numbers that they have in the user's data."""
        assert node_type == GRAPH
        return np.arange(len(self.collated))

    @property
    def node_books(self) -> dict[str, PartitionBook]:
        """Which machine looks after which graphs, where that is done by all together: equal ranges."""
        count, machines = self.collated.num_graphs, self.num_machines
        return {GRAPH: PartitionBook(np.array([first_part(m, count, machines) for m in range(machines + 1)]))}

    @cached_property
    def sizes(self) -> tuple[np.ndarray, np.ndarray]:
        """Nodes and edges of each graph as it is stored, of all types: int64 [num_graphs] each."""
        return sizes_of(self.collated)

    def node_attribute(self, node_type: str, name: str) -> np.ndarray:
        """[num_graphs, ...]: an attribute of the graphs.

        Raises:
            ExperimentError: it comes from transforms, and is not the label.
        """
        assert node_type == GRAPH
        if name in self.masks:
            return self.masks[name]
        if self.look is not None and name in self.look.of_graphs:
            return self.look.of_graphs[name]
        if self.look is not None and (None, name) not in self.look.same:
            raise ExperimentError(
                f"`{name}` of the graphs comes from data.transforms, so it is known batch by batch only; make it in "
                "data.pre_transforms"
            )
        column = self.collated.stores[self._of_graphs[name]].columns[name]
        assert isinstance(column, (Ragged, Numbers))
        return column.values

    def statistics(self, node_type: str, name: str) -> tuple[np.ndarray, np.ndarray] | None:
        """Mean and standard deviation of each column over all rows of all graphs; None where there are none."""
        if node_type == GRAPH:
            key = self._of_graphs.get(name)
        else:
            key, names = self._of_nodes[node_type]
            if name not in names:
                return None
        found = self._summary(key, name)
        return None if found.mean is None or found.std is None else (found.mean, found.std)

    def training_degrees(self, edge_type: EdgeType) -> np.ndarray:
        """How many destination nodes of the training graphs have 0, 1, ... edges of a relation, int64.

        Of graphs that are only to be predicted, [0, 1]: what a model was trained with comes with its weights.
        Cost: reading these edges once, so many graphs at a time that memory stays bounded.
        """
        ids, counts = np.flatnonzero(self.masks["train_mask"]), np.zeros(1, np.int64)
        if not len(ids):
            return np.array([0, 1])
        for first in range(0, len(ids), _GRAPHS_AT_ONCE):
            batch = self.batch(ids[first : first + _GRAPHS_AT_ONCE], Wants())
            dst, num_nodes = batch[edge_type].edge_index[1].numpy(), int(batch[edge_type[2]].num_nodes)
            found = np.bincount(np.bincount(dst, minlength=num_nodes))
            longer = np.zeros(max(len(found), len(counts)), np.int64)
            longer[: len(counts)] = counts
            longer[: len(found)] += found
            counts = longer
        return counts

    def resolved(self, wants: Wants) -> Wants:
        """With names for `*`, which stands for all that a type has.

        Raises:
            ExperimentError: the graphs do not have what is wanted.
        """
        nodes = {owner: self._resolved(owner, names) for owner, names in wants.nodes.items()}
        edges = {owner: self._resolved(owner, names) for owner, names in wants.edges.items()}
        return replace(wants, nodes=nodes, edges=edges)

    def _resolved(self, owner: str | EdgeType, names: tuple[str, ...]) -> tuple[str, ...]:
        shown = edge_type_name(owner) if isinstance(owner, tuple) else owner
        key = self._key_of(owner)
        if key is _UNKNOWN:
            raise ExperimentError(f"the model wants `{shown}`, and the collection has no such type")
        columns = self._store(key).columns if key in self._shown.stores else {}
        known = {**columns, **(self.masks if owner == GRAPH else {})}
        for name in names:
            if name != ALL and source_of(name, known) is None:
                raise ExperimentError(
                    f"the model wants `{name}` of `{shown}`, and the graphs have no such attribute"
                    f"{nearest(name, known)}"
                )
        all_names = self._all_of(owner, key) if ALL in names else []
        return tuple(dict.fromkeys((*(name for name in names if name != ALL), *all_names)))

    def _key_of(self, owner: str | EdgeType) -> Any:
        """Of the store that has the attributes of a type, `graph` among them; `_UNKNOWN`: there is no such type."""
        if owner == GRAPH:
            return None
        found = self._of_nodes.get(owner) if isinstance(owner, str) else self._of_edges.get(owner)
        if found is not None:
            return found[0]
        # A relation that has no `edge_index`, but another form of it (`adj_t`).
        return owner if isinstance(owner, tuple) and owner in self._shown.stores else _UNKNOWN

    def _all_of(self, owner: str | EdgeType, key: Key) -> list[str]:
        """The attributes of a type. What a homogeneous graph has is its nodes' or edges' where it has a row for each of
        these, and all else its own."""
        columns = self._store(key).columns if key in self._shown.stores else {}
        if self._shown.heterogeneous:
            return [name for name in columns if not (isinstance(owner, tuple) and name == "edge_index")]
        aligned = {NODE_TYPE: self._of_nodes[NODE_TYPE][1]}
        edges = {
            edge_type: tuple(n for n in names if n != "edge_index") for edge_type, (_, names) in self._of_edges.items()
        }
        if owner != GRAPH:
            return list({**aligned, **edges}[owner])
        taken = {"edge_index"} if edges else set()
        taken.update(*aligned.values(), *edges.values())
        return [name for name in columns if name not in taken]

    def batch(self, ids: np.ndarray, wants: Wants, epoch: int = 0) -> HeteroData:
        """The graphs of these numbers as one big graph: `graph` has a row for each, `batch` of a node type says which
        of these its nodes belong to. Attributes as wanted, and `edge_index`.

        Args:
            epoch: see `Access.pick`.
        """
        batch = HeteroData()
        picked, at = self.pick(ids, wants, epoch)
        stores = picked.stores
        of_graphs = batch[GRAPH]
        for name in wants.nodes.get(GRAPH, ()):
            mask = self.masks.get(name)
            of_graphs[name] = value_of(name, stores[None].columns, at) if mask is None else torch.from_numpy(mask[ids])
        of_graphs.num_nodes = of_graphs.batch_size = len(ids)
        of_graphs.n_id = torch.from_numpy(ids)
        for node_type, (key, _) in self._of_nodes.items():
            counts, store = stores[key].num_nodes, batch[node_type]
            assert counts is not None
            sizes = np.asarray(counts[at])
            for name in wants.nodes.get(node_type, ()):
                store[name] = value_of(name, stores[key].columns, at)
            store.num_nodes = int(sizes.sum())
            store.batch, store.ptr = numbered(sizes), torch.from_numpy(offsets_of(sizes))
        for edge_type, (key, _) in self._of_edges.items():
            columns, store = stores[key].columns, batch[edge_type]
            store.edge_index = columns["edge_index"].take(at).long()
            for name in wants.edges.get(edge_type, ()):
                store[name] = value_of(name, columns, at)
        for edge_type in wants.edges.keys() - self._of_edges.keys():
            for name in wants.edges[edge_type]:
                batch[edge_type][name] = value_of(name, stores[edge_type].columns, at)
        return batch

    def pick(self, ids: np.ndarray, wants: Wants, epoch: int = 0) -> tuple[Collated, np.ndarray]:
        """Graphs that hold what is wanted of those of these numbers, and the places of these among them.

        Raises:
            ExperimentError: after transforms, a graph has not as many rows of an attribute as others would; names it.
        """
        if self.access is None:
            return self.collated, ids
        picked, at = self.access.pick(ids, epoch, self._names(wants))
        if self.look is not None and len(ids):
            self._refuse_unlike(picked, ids, wants)
        return picked, at

    def _names(self, wants: Wants) -> Names:
        """The attributes that a batch is cut from, by the type that they are stored with."""
        names: dict[Key, list[str]] = {None: []}
        for key, _ in self._of_nodes.values():
            names.setdefault(key, [])
        for key, _ in self._of_edges.values():
            names.setdefault(key, []).append("edge_index")
        for owner, wanted in (*wants.nodes.items(), *wants.edges.items()):
            key = self._key_of(owner)
            sources = [source_of(name, self._store(key).columns) for name in wanted if name not in self.masks]
            names.setdefault(key, []).extend(name for name in sources if name is not None)
        return names

    def _refuse_unlike(self, picked: Collated, ids: np.ndarray, wants: Wants) -> None:
        """Rows for each node, edge or graph have to be that in every graph, also after transforms."""

        def wanted(owner: str | EdgeType, names: Collection[str]) -> tuple[str, ...]:
            asked = (wants.edges if isinstance(owner, tuple) else wants.nodes).get(owner, ())  # pyright: ignore
            return tuple(name for name in asked if name in names)

        refuse_unlike(picked.stores[None], wanted(GRAPH, self._of_graphs), np.ones(len(ids), np.int64), ids, "graph")
        for node_type, (key, names) in self._of_nodes.items():
            counts = picked.stores[key].num_nodes
            assert counts is not None
            refuse_unlike(picked.stores[key], wanted(node_type, names), counts, ids, "nodes")
        for edge_type, (key, names) in self._of_edges.items():
            refuse_unlike(picked.stores[key], wanted(edge_type, names), _num_edges(picked, key), ids, "edges")
        refuse_wrong_edges(picked, ids, "data.transforms: after them, ")

    @property
    def _shown(self) -> Collated:
        """Graphs as batches have them; not all, where these come from transforms."""
        return self.collated if self.look is None else self.look.collated

    def _count(self, counts: Callable[[Collated, Key], np.ndarray], key: Key) -> int:
        """How many nodes or edges of a type there are; estimated where that depends on transforms."""
        if self.look is None:
            return int(counts(self.collated, key).sum())
        if key in self.look.same_nodes and counts is not _num_edges:
            return int(counts(self.collated, key).sum())
        seen = counts(self.look.collated, key)
        return -(-int(seen.sum()) * len(self.collated) // max(len(seen), 1))

    def _store(self, key: Key) -> Store:
        return self._shown.stores[key]

    def _summary(self, key: Key, name: str) -> Summary:
        """Of an attribute's values; an empty one of what has none."""
        if self.look is not None and (key, name) not in self.look.same:
            return self.look.summaries.get((key, name)) or Summary(None, None, 0, None, None)
        return read_summary(self._entries.get((key, name), {}))

    @cached_property
    def _entries(self) -> dict[tuple[Key, str], dict[str, Any]]:
        return {
            (tuple(entry["key"]) if isinstance(entry["key"], list) else entry["key"], name): column
            for entry in self.manifest["stores"]
            for name, column in entry["columns"].items()
        }

    def _attribute(self, key: Key, name: str) -> Attribute:
        column, found = self._store(key).columns[name], self._summary(key, name)
        dtype = column.dtype if isinstance(column, Ragged) else str(column.values.dtype)  # type: ignore[union-attr]
        shape = column.values.shape[1:] if isinstance(column, Ragged) else ()
        return Attribute(dtype, tuple(shape), found.low, found.high, found.missing)

    @property
    def cache(self) -> Cache | None:
        """The graphs that this process keeps (`data.cache`)."""
        access = self.access.source if isinstance(self.access, Transformed) else self.access
        return access.cache if isinstance(access, OnDisk) else None

    @property
    def of_nodes(self) -> dict[str, tuple[Key, tuple[str, ...]]]:
        """Node type -> the key of what it has in `collated`, and the attributes with a row for each node."""
        return self._of_nodes

    @cached_property
    def _of_graphs(self) -> dict[str, Key]:
        return names_of_graphs(self._shown, self._of_nodes, self._of_edges)

    @cached_property
    def _of_nodes(self) -> dict[str, tuple[Key, tuple[str, ...]]]:
        return names_of_nodes(self._shown, self.known)

    @cached_property
    def _of_edges(self) -> dict[EdgeType, tuple[Key, tuple[str, ...]]]:
        return names_of_edges(self._shown, self._of_nodes, self.known)


def _num_nodes(collated: Collated, key: Key) -> np.ndarray:
    """int64 [num_graphs]"""
    counts = collated.stores[key].num_nodes
    assert counts is not None
    return counts


def _num_edges(collated: Collated, key: Key) -> np.ndarray:
    """int64 [num_graphs]"""
    index = collated.stores[key].columns["edge_index"]
    assert isinstance(index, Ragged)
    return np.diff(index.slices)
