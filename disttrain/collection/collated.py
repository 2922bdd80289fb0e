"""A collection of graphs in the form that mini-batches are cut from: all graphs as one big one, and slices.

It is the form of PyG's `InMemoryDataset`, and by its rules (`__cat_dim__`, `__inc__`), which are asked once, when the
collection is made.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.data.storage import NodeStorage

from ..config import EdgeType, ExperimentError, edge_type_name
from .columns import Column, batch_and_ptr
from .gathering import Gathering, Left, Place, gather_like
from .own_class import name_of
from .ragged import numbered, offsets_of

Key = str | EdgeType | None
"""Of a node or edge type; None: what belongs to the graph, and all that a homogeneous one has."""


@dataclass(frozen=True)
class Store:
    """What all graphs have of one type."""

    columns: dict[str, Column]
    """In the order of the first graph's attributes."""
    num_nodes: np.ndarray | None
    """int64 [num_graphs]; None of what has no nodes."""
    says_num_nodes: bool = False
    """The graphs have an attribute `num_nodes`, after which a batch has one too."""
    numbers_nodes: bool = False
    """A batch has `batch` and `ptr`."""


@dataclass(frozen=True)
class Collated:
    """All graphs."""

    num_graphs: int
    heterogeneous: bool
    stores: dict[Key, Store]
    left_out: tuple[str, ...] = field(default=())
    """What was left out, and why; a line each."""
    own_class: str | None = None
    """Of the graphs as they are gathered, or in their files: see `own_class.name_of`."""

    def __len__(self) -> int:
        return self.num_graphs

    def batch(self, ids: np.ndarray, follow_batch: Collection[str] = (), exclude_keys: Collection[str] = ()) -> Any:
        """The graphs of these numbers as PyG's `Batch`: what `Batch.from_data_list` makes of them, in their order.

        No graph is made on the way. `get_example` and `to_data_list` work on it.

        Args:
            ids: int [n], each of 0 to `num_graphs` - 1, also repeatedly.
            follow_batch, exclude_keys: see there.

        Raises:
            IndexError: there is no such graph.
        """
        ids = self.checked(ids)
        out: Any = Batch(_base_cls=HeteroData if self.heterogeneous else Data)  # pyright: ignore[reportCallIssue]
        slices: dict[Any, Any] = {}
        increments: dict[Any, Any] = {}
        for key, store in self.stores.items():
            target = out._store if not self.heterogeneous else out._global_store if key is None else out[key]
            its_slices = slices if key is None else slices.setdefault(key, {})
            its_increments = increments if key is None else increments.setdefault(key, {})
            if store.says_num_nodes and "num_nodes" not in exclude_keys:
                assert store.num_nodes is not None
                target._num_nodes = store.num_nodes[ids].tolist()
                target.num_nodes = int(store.num_nodes[ids].sum())
            for name, column in store.columns.items():
                if name in exclude_keys:
                    continue
                target[name] = column.take(ids)
                its_slices[name], its_increments[name] = column.batch_slices(ids), column.batch_increments(ids)
                if name in follow_batch:
                    target[f"{name}_batch"], target[f"{name}_ptr"] = batch_and_ptr(column, ids)
            if store.numbers_nodes:
                assert store.num_nodes is not None
                sizes = store.num_nodes[ids]
                target.batch, target.ptr = numbered(sizes), torch.from_numpy(offsets_of(sizes))
        out._num_graphs, out._slice_dict, out._inc_dict = len(ids), slices, increments
        return out

    def pick(self, ids: np.ndarray, epoch: int = 0, names: Any = None) -> tuple[Collated, np.ndarray]:
        """All graphs, and those asked for among them: see `Access`."""
        return self, ids

    def checked(self, ids: np.ndarray) -> np.ndarray:
        """int64, each the number of a graph."""
        ids = np.asarray(ids, dtype=np.int64)
        if len(ids) and not (ids.min() >= 0 and ids.max() < self.num_graphs):
            wrong = ids[(ids < 0) | (ids >= self.num_graphs)][0]
            raise IndexError(f"there is no graph {wrong}: there are {self.num_graphs}, from 0 on")
        return ids


def collate(graphs: Iterable[Any], origin: str) -> Collated:
    """Put graphs together.

    All have to have the types and attributes of the first one; what others have beside these is left out, as in PyG's
    own `collate`, and said. Each is let go before the next one is asked for, but its tensors are kept until the end.

    Args:
        graphs: `Data` or `HeteroData`, all of the same class. They are not changed.
        origin: where they come from, for messages.

    Raises:
        ExperimentError: there are none, or one is something else or does not go together with the first; names it.
    """
    gatherer = Gatherer(origin)
    for number, graph in enumerate(graphs):
        gatherer.add(graph, number)
    if not gatherer.num_graphs:
        raise ExperimentError(f"{origin}: it has no graphs")
    return gatherer.finished()


class Gatherer:
    """Takes graphs, one after the other; a batch of them at a time becomes a `Collated`. See `collate`."""

    def __init__(self, origin: str) -> None:
        self.origin = origin
        self.num_graphs = 0
        """Since the last batch."""
        self.left: dict[tuple[Key, str], str] = {}
        """What has been left out so far, and why."""
        self._graphs: _Gatherings | None = None

    @property
    def num_bytes(self) -> int:
        """About what they take."""
        return 0 if self._graphs is None else self._graphs.num_bytes

    def add(self, graph: Any, number: int) -> None:
        """Take a graph; it is not changed.

        Args:
            number: by which messages call it.

        Raises:
            ExperimentError: it is none, or does not go together with the first; names it.
        """
        if not isinstance(graph, (Data, HeteroData)):
            raise ExperimentError(
                f"{self.origin}: expected graphs, Data or HeteroData of PyG; number {number} (from 0) is a "
                f"{type(graph).__name__}"
            )
        try:
            with warnings.catch_warnings():
                # PyG warns, in each graph, where it has to infer the number of nodes from the edges.
                warnings.filterwarnings("ignore", "Unable to accurately infer 'num_nodes'", UserWarning)
                if self._graphs is None:
                    self._graphs = _Gatherings(graph, number, self.left)
                self._graphs.add(graph, number)
        except ExperimentError as error:
            raise ExperimentError(f"{self.origin}: {error}") from error
        self.num_graphs += 1

    def finished(self) -> Collated:
        """The graphs since the last batch, of which there has to be one; they are not kept here any longer."""
        assert self._graphs is not None and self.num_graphs
        found, left = self._graphs, left_out_lines(self.left)
        made = Collated(self.num_graphs, found.heterogeneous, found.finished(), left, name_of(found.graph_class))
        self.num_graphs = 0
        return made


def left_out_lines(left: Mapping[tuple[Key, str], str]) -> tuple[str, ...]:
    return tuple(f"{named(key, name) if name else type_name(key)}: {why}" for (key, name), why in left.items())


class _Gatherings:
    """The attributes of graphs that are like the first one."""

    def __init__(self, first: Any, number: int, left: dict[tuple[Key, str], str]) -> None:
        self.heterogeneous, self.graph_class, self.first = isinstance(first, HeteroData), type(first), number
        self.stores: dict[Key, dict[str, Gathering]] = {}
        self.num_nodes: dict[Key, list[int]] = {}
        self.says_num_nodes: dict[Key, bool] = {}
        self.numbers_nodes: dict[Key, bool] = {}
        self.left = left
        for store in first.stores:
            key = store._key
            self.stores[key] = {}
            if isinstance(store, NodeStorage):
                self.num_nodes[key] = []
            self.says_num_nodes[key] = "num_nodes" in store
            self.numbers_nodes[key] = isinstance(store, NodeStorage) and store.can_infer_num_nodes
            for name in list(store.keys()):
                if name in ("num_nodes", "ptr"):
                    continue
                try:
                    self.stores[key][name] = gather_like(
                        name, store[name], Place(first, store, number, named(key, name))
                    )
                except Left as why:
                    self.left[key, name] = str(why)

    @property
    def num_bytes(self) -> int:
        return sum(gathering.num_bytes for store in self.stores.values() for gathering in store.values())

    def add(self, graph: Any, number: int) -> None:
        if type(graph) is not self.graph_class:
            raise ExperimentError(
                f"graph {number} is a {type(graph).__name__}, and graph {self.first} a {self.graph_class.__name__}"
            )
        stores = {store._key: store for store in graph.stores}
        for key, gatherings in self.stores.items():
            if key not in stores:
                raise ExperimentError(
                    f"graph {number} has no {type_name(key)}, which graph {self.first} has; give it an empty one, "
                    "tensors of zero rows"
                )
            store = stores.pop(key)
            if key in self.num_nodes:
                self.num_nodes[key].append(int(store.num_nodes or 0))
            if self.says_num_nodes[key] and "num_nodes" not in store:
                raise self._lacks(number, key, "num_nodes")
            for name in list(gatherings):
                if name not in store:
                    raise self._lacks(number, key, name)
                try:
                    gatherings[name].add(store[name], Place(graph, store, number, named(key, name)))
                except Left as why:
                    del gatherings[name]
                    self.left[key, name] = f"{why} (graph {number})"
            for name in list(store.keys()):
                if name not in gatherings and name not in ("num_nodes", "ptr"):
                    self.left.setdefault((key, name), f"graph {self.first} has none, graph {number} has")
        for key in stores:
            if key is not None:
                self.left.setdefault((key, ""), f"graph {self.first} has none, graph {number} has")

    def _lacks(self, number: int, key: Key, name: str) -> ExperimentError:
        return ExperimentError(
            f"graph {number} has no {named(key, name)}, which graph {self.first} has; all need the same attributes (a "
            "label that is not known is NaN, or -1 for a class)"
        )

    def finished(self) -> dict[Key, Store]:
        known: dict[tuple[Any, ...], np.ndarray] = {}

        def share(array: np.ndarray) -> np.ndarray:
            return known.setdefault((array.shape, array.tobytes()), array)

        made: dict[Key, Store] = {}
        for key, gatherings in self.stores.items():
            columns: dict[str, Column] = {}
            for name, gathering in list(gatherings.items()):
                try:
                    columns[name] = gathering.finished(share)
                except Left as why:
                    del gatherings[name]
                    self.left[key, name] = str(why)
            counts = share(np.array(self.num_nodes[key], np.int64)) if key in self.num_nodes else None
            if counts is not None:
                self.num_nodes[key] = []
            made[key] = Store(columns, counts, self.says_num_nodes[key], self.numbers_nodes[key])
        return made


def named(key: Key, name: str) -> str:
    return f"`{name}`" if key is None else f"`{name}` of {type_name(key)}"


def type_name(key: Key) -> str:
    if key is None:
        return "attributes of the graph"
    return f'node type "{key}"' if isinstance(key, str) else f'relation "{edge_type_name(key)}"'
