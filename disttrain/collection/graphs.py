"""A collection as task, model and trainer see it: a graph whose node type `graph` are the graphs themselves.

So what holds for nodes holds for graphs: they are seeds, have labels and splits, and a batch carries them first. The
nodes and edges of the graphs are further types; a homogeneous collection has `node` and `node,edge,node`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch_geometric.data import HeteroData

from ..config import EdgeType, ExperimentError, edge_type_name
from ..data.homogeneous import EDGE_TYPE, NODE_TYPE
from ..data.nearest import nearest
from ..graph.book import PartitionBook, first_part
from ..graph.schema import GRAPH, Attribute, Edges, Nodes, Schema, Wants
from .collated import Collated, Key, Store
from .columns import Column, Numbers, Sparse
from .files import read_summary
from .ragged import Ragged, numbered, offsets_of

_OF_NODES = ("x", "x_cat", "pos", "batch")
_OF_EDGES = ("edge_attr", "edge_weight")


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

    @cached_property
    def schema(self) -> Schema:
        attributes = {name: self._attribute(key, name) for name, key in self._of_graphs.items()}
        attributes |= {name: Attribute(str(mask.dtype), mask.shape[1:]) for name, mask in self.masks.items()}
        nodes = {GRAPH: Nodes(self.collated.num_graphs, attributes)}
        edges: dict[EdgeType, Edges] = {}
        for node_type, (key, names) in self._of_nodes.items():
            counts = self._store(key).num_nodes
            assert counts is not None
            nodes[node_type] = Nodes(int(counts.sum()), {name: self._attribute(key, name) for name in names})
        for edge_type, (key, names) in self._of_edges.items():
            index = self._store(key).columns["edge_index"]
            assert isinstance(index, Ragged)
            edges[edge_type] = Edges(int(index.slices[-1]), {name: self._attribute(key, name) for name in names})
        found = Schema(nodes, edges)
        return found if self.known is None else found.widened(self.known)

    @property
    def fingerprint(self) -> str:
        return self.manifest["fingerprint"]

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
        """Nodes and edges of each graph, of all types: int64 [num_graphs] each."""
        nodes, edges = np.zeros((2, len(self.collated)), np.int64)
        for store in self.collated.stores.values():
            if store.num_nodes is not None:
                nodes += store.num_nodes
            for name in ("edge_index", "adj_t", "adj"):
                column = store.columns.get(name)
                if isinstance(column, Sparse):
                    column = column.columns
                if isinstance(column, Ragged):
                    edges += np.diff(column.slices)
                    break
        return nodes, edges

    def node_attribute(self, node_type: str, name: str) -> np.ndarray:
        """[num_graphs, ...]: an attribute of the graphs."""
        assert node_type == GRAPH
        if name in self.masks:
            return self.masks[name]
        column = self._store(self._of_graphs[name]).columns[name]
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
        entry = self._entries.get((key, name))
        found = read_summary(entry) if entry is not None else None
        return None if found is None or found.mean is None or found.std is None else (found.mean, found.std)

    def refuse_unknown(self, wants: Wants) -> None:
        """Raises:
        ExperimentError: the graphs do not have what is wanted.
        """
        known = {**self.schema.nodes, **self.schema.edges}
        for owner, names in (*wants.nodes.items(), *wants.edges.items()):
            shown = edge_type_name(owner) if isinstance(owner, tuple) else owner
            if owner not in known:
                raise ExperimentError(f"the model wants `{shown}`, and the collection has no such type")
            for name in names:
                if name not in known[owner].attributes:
                    raise ExperimentError(
                        f"the model wants `{name}` of `{shown}`, and the graphs have no such attribute with a row for "
                        f"each{nearest(name, known[owner].attributes)}"
                    )

    def batch(self, ids: np.ndarray, wants: Wants) -> HeteroData:
        """The graphs of these numbers as one big graph: `graph` has a row for each, `batch` of a node type says which
        of these its nodes belong to. Attributes as wanted, and `edge_index`."""
        batch = HeteroData()
        of_graphs = batch[GRAPH]
        for name in wants.nodes.get(GRAPH, ()):
            of_graphs[name] = torch.from_numpy(np.asarray(self.node_attribute(GRAPH, name)[ids]))
        of_graphs.num_nodes = of_graphs.batch_size = len(ids)
        of_graphs.n_id = torch.from_numpy(ids)
        for node_type, (key, _) in self._of_nodes.items():
            counts, store = self._store(key).num_nodes, batch[node_type]
            assert counts is not None
            sizes = np.asarray(counts[ids])
            for name in wants.nodes.get(node_type, ()):
                store[name] = self._store(key).columns[name].take(ids)
            store.num_nodes = int(sizes.sum())
            store.batch, store.ptr = numbered(sizes), torch.from_numpy(offsets_of(sizes))
        for edge_type, (key, _) in self._of_edges.items():
            columns, store = self._store(key).columns, batch[edge_type]
            store.edge_index = columns["edge_index"].take(ids).long()
            for name in wants.edges.get(edge_type, ()):
                store[name] = columns[name].take(ids)
        return batch

    def _store(self, key: Key) -> Store:
        return self.collated.stores[key]

    @cached_property
    def _entries(self) -> dict[tuple[Key, str], dict[str, Any]]:
        return {
            (tuple(entry["key"]) if isinstance(entry["key"], list) else entry["key"], name): column
            for entry in self.manifest["stores"]
            for name, column in entry["columns"].items()
        }

    def _attribute(self, key: Key, name: str) -> Attribute:
        column, found = self._store(key).columns[name], read_summary(self._entries[key, name])
        dtype = column.dtype if isinstance(column, Ragged) else str(column.values.dtype)  # type: ignore[union-attr]
        shape = column.values.shape[1:] if isinstance(column, Ragged) else ()
        return Attribute(dtype, tuple(shape), found.low, found.high, found.missing)

    # Which attribute has a row for each node, each edge, or each graph: PyG does not say so of a collection.

    @cached_property
    def _of_graphs(self) -> dict[str, Key]:
        columns = self._store(None).columns if None in self.collated.stores else {}
        taken: set[str] = set()
        if not self.collated.heterogeneous:
            taken = {*self._of_nodes[NODE_TYPE][1], *(name for _, names in self._of_edges.values() for name in names)}
        return {
            name: None
            for name, column in columns.items()
            if name not in taken and (isinstance(column, Numbers) or _has_rows(column, np.ones(len(self.collated))))
        }

    @cached_property
    def _of_nodes(self) -> dict[str, tuple[Key, tuple[str, ...]]]:
        """Node type -> its store, and the attributes with a row for each node."""
        found: dict[str, tuple[Key, tuple[str, ...]]] = {}
        for key, store in self.collated.stores.items():
            if store.num_nodes is None:
                continue
            if key == GRAPH:
                raise ExperimentError(
                    f'the collection has a node type "{GRAPH}", which stands for the graphs themselves; rename it'
                )
            names = tuple(
                name
                for name, column in store.columns.items()
                if name not in _OF_EDGES
                and _has_rows(column, store.num_nodes)
                and not (name not in _OF_NODES and key is None and (store.num_nodes == 1).all())
            )
            assert not isinstance(key, tuple)
            found[NODE_TYPE if key is None else key] = key, names
        return found

    @cached_property
    def _of_edges(self) -> dict[EdgeType, tuple[Key, tuple[str, ...]]]:
        """Likewise of edges; relations with an `edge_index` only."""
        found: dict[EdgeType, tuple[Key, tuple[str, ...]]] = {}
        for key, store in self.collated.stores.items():
            index = store.columns.get("edge_index")
            if not isinstance(index, Ragged):
                continue
            counts = np.diff(index.slices)
            of_nodes = self._of_nodes[NODE_TYPE][1] if key is None else ()
            names = tuple(
                name
                for name, column in store.columns.items()
                if name not in of_nodes
                and _has_rows(column, counts)
                and not (name not in _OF_EDGES and key is None and (counts == 1).all())
            )
            assert not isinstance(key, str)
            found[EDGE_TYPE if key is None else key] = key, names
        return found


def _has_rows(column: Column, counts: np.ndarray) -> bool:
    """Whether a column has as many rows for each graph."""
    return isinstance(column, Ragged) and column.axis == 0 and np.array_equal(np.diff(column.slices), counts)
