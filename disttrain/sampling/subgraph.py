"""A sampled subgraph, and the tables in which one is put together."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ..config import EdgeType
from . import kernels
from .memory import BLOCKS

DENSE_LIMIT = 1 << 24
"""Node types up to this size get a table of all their nodes (4 bytes each); larger ones a hash table of the batch's."""

_SMALLEST_TABLE = 1 << 16
"""Places in a new hash table; a power of two."""


class NodeTable:
    """The nodes of one type in the batch that is being made: their ids, and the index of each id."""

    def __init__(self, num_nodes: int, dtype: np.dtype) -> None:
        self.num_nodes = num_nodes
        self.dense = num_nodes <= DENSE_LIMIT
        self.table = np.full(num_nodes if self.dense else _SMALLEST_TABLE, -1, np.int32)
        self.ids = np.empty(1024, dtype)
        self.count = 0

    @property
    def mask(self) -> int:
        return -1 if self.dense else len(self.table) - 1

    def make_room(self, more: int) -> None:
        """For `more` further nodes at most."""
        most = min(self.num_nodes, self.count + more)
        if most >= len(self.ids):  # `relabel` writes one place beyond
            grown = np.empty(max(most + 1, 2 * len(self.ids)), self.ids.dtype)
            grown[: self.count] = self.ids[: self.count]
            self.ids = grown
        if not self.dense and 2 * most > len(self.table):
            size = len(self.table)
            while size < 2 * most:
                size *= 2
            self.table = np.full(size, -1, np.int32)
            known = self.ids[: self.count].copy()
            kernels.add_nodes(known, self.table, self.mask, self.ids, 0)

    def add(self, ids: np.ndarray) -> None:
        self.make_room(len(ids))
        self.count = kernels.add_nodes(ids, self.table, self.mask, self.ids, self.count)

    def take(self) -> np.ndarray:
        """The ids, in order; and forget them."""
        taken = BLOCKS.empty(self.count, self.ids.dtype)
        taken[:] = self.ids[: self.count]
        kernels.forget_nodes(taken, self.table, self.mask)
        self.count = 0
        return taken


@dataclass
class EdgeTable:
    """The edges of one relation in the batch that is being made."""

    index: np.ndarray = field(default_factory=lambda: np.empty((2, 0), np.int64))
    edge_id: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    place: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    per_hop: list[int] = field(default_factory=list)

    def add(self, count: int, with_places: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Make room for `count` edges of the next hop; returns the views to fill: row, column, edge id, place."""
        before = self.index.shape[1]
        self.per_hop.append(count)
        if count:
            # Each hop has several times the edges of all before it: growing to the exact size copies little.
            grown = BLOCKS.empty((2, before + count), np.int64)
            grown[:, :before] = self.index
            self.index, self.edge_id = grown, _grown(self.edge_id, count)
            if with_places:
                self.place = _grown(self.place, count)
        return self.index[0, before:], self.index[1, before:], self.edge_id[before:], self.place[before:]


def _grown(array: np.ndarray, more: int) -> np.ndarray:
    grown = BLOCKS.empty(len(array) + more, array.dtype)
    grown[: len(array)] = array
    return grown


@dataclass(frozen=True)
class Subgraph:
    """A sampled subgraph. Ids are in partition order, indices are places in `nodes`."""

    nodes: dict[str, np.ndarray]
    """Ids per type: seeds first, then hop by hop."""
    num_nodes: dict[str, list[int]]
    """Per type, how many of them came as seeds and in each hop; L + 1 entries."""
    edge_index: dict[EdgeType, np.ndarray]
    """int64 [2, num_edges]: index of the source, index of the destination; hop by hop, destinations ascend."""
    edge_id: dict[EdgeType, np.ndarray]
    """int64 [num_edges]: original edge ids."""
    edge_place: dict[EdgeType, np.ndarray]
    """int64 [num_edges]: places in the CSC, for relations that were asked for; else empty."""
    num_edges: dict[EdgeType, list[int]]
    """Per relation, how many edges each hop added; L entries."""
    tree: dict[str, np.ndarray] = field(default_factory=dict)
    """int64 [num_nodes] per type, where each seed grows a tree of its own: the place among the seeds of the one that
    each node belongs to; else nothing."""
