"""The attributes that a mini-batch carries: where each lies, how it travels, and by which ids it is looked up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch

from ..config import EdgeType, edge_type_name
from ..graph.book import PartitionBook
from ..graph.graph import Graph
from ..graph.schema import Wants

_OF_NODES = ("n_id", "num_nodes", "num_sampled_nodes", "batch", "batch_size", "input_id", "seed_time")
_OF_EDGES = ("edge_index", "e_id", "num_sampled_edges", "src_degree", "dst_degree")


def taken_names(wants: Wants) -> list[str]:
    """Wanted attributes that are called like something that each batch has of its own, a line each."""
    found = [(f'of node type "{t}"', n) for t, names in wants.nodes.items() for n in names if n in _OF_NODES]
    found += [(f'of "{edge_type_name(e)}"', n) for e, names in wants.edges.items() for n in names if n in _OF_EDGES]
    return [
        f'attribute "{name}" {owner} cannot be in mini-batches, which have a `{name}` of their own; give it another '
        "name where the graph is made, or leave it out of what is wanted"
        for owner, name in found
    ]


class Column(NamedTuple):
    """One attribute of one kind of id; where it goes in the batch is up to the loader."""

    owner: str | EdgeType
    """The node or edge type in whose store of the batch it lands."""
    name: str


@dataclass(frozen=True)
class Rows:
    """A range of an attribute, as rows of machine words."""

    column: Column
    words: np.ndarray
    """[rows, words a row]"""
    dtype: np.dtype
    shape: tuple[int, ...]
    """Of one row."""
    halved: bool = False
    """float32 that travels, and is cached, in fp16; in the batch it is float32 again, rounded, the own rows too."""

    @property
    def travelling(self) -> np.dtype:
        """Of the words in which a row travels; as many as it has."""
        return np.dtype(np.uint16) if self.halved else self.words.dtype

    @property
    def row_bytes(self) -> int:
        """On the way, and in the cache."""
        return self.words.shape[1] * self.travelling.itemsize


def as_rows(column: Column, array: np.ndarray, halved: bool = False) -> Rows:
    array = np.ascontiguousarray(array)  # files are contiguous already: no copy
    shape = array.shape[1:]
    row_bytes = int(np.prod(shape, dtype=np.int64)) * array.itemsize
    word = next(np.dtype(f"u{size}") for size in (8, 4, 2, 1) if row_bytes % size == 0)
    halved = halved and array.dtype == np.float32
    if halved:
        word = np.dtype(np.uint32)
    words = (
        array.reshape(len(array), -1).view(word)
        if array.size
        else np.empty((len(array), row_bytes // word.itemsize), word)
    )
    return Rows(column, words, array.dtype, shape, halved)


@dataclass(frozen=True)
class CachedRows:
    """Rows of other machines that this one keeps."""

    index: np.ndarray
    """uint64 [ids / 64, 2]: which ids of each 64 are cached, a bit each, and how many before them are."""
    rows: Sequence[np.ndarray]
    """Per attribute, [cached ids, words] as they travel; in the order of the ids."""

    def __len__(self) -> int:
        return int(self.index[-1, 1]) + int(self.index[-1, 0]).bit_count() if len(self.index) else 0


@dataclass(frozen=True)
class Table:
    """All wanted attributes that go by the ids of one node type, or by the places of one edge type."""

    key: str | EdgeType
    book: PartitionBook
    low: int
    """The first own id."""
    rows: Sequence[Rows]
    cached: CachedRows

    @property
    def name(self) -> str:
        return self.key if isinstance(self.key, str) else edge_type_name(self.key)

    @property
    def row_bytes(self) -> int:
        """Of all attributes together."""
        return sum(rows.row_bytes for rows in self.rows)


def nothing_cached(rows: Sequence[Rows]) -> CachedRows:
    return CachedRows(np.empty((0, 2), np.uint64), [np.empty((0, r.words.shape[1]), r.travelling) for r in rows])


@dataclass
class Columns:
    """What batches of a graph carry, on one machine. The loaders and workers of a rank may share it."""

    tables: list[Table] = field(default_factory=list)
    """What other machines may have to be asked for."""
    at_hand: list[tuple[str, Rows]] = field(default_factory=list)
    """By node type, what this machine reads of all nodes."""
    bytes_to_fill: int = 0
    """What this rank has sent to choose and fill the cache."""

    @property
    def cached_bytes(self) -> int:
        """Of this machine's cache, with its indices."""
        return sum(t.cached.index.nbytes + sum(rows.nbytes for rows in t.cached.rows) for t in self.tables)

    @staticmethod
    def of(graph: Graph, wants: Wants, halved: Wants | None = None) -> Columns:
        """The attributes that model and task want, the degrees, and the original ids of all nodes (`n_id`).

        Args:
            halved: of the wanted ones, those that travel in fp16 if they are float32.
        """
        halved = halved or Wants()
        columns = Columns()
        for node_type, book in graph.node_books.items():
            rows: list[Rows] = []
            columns._divide(graph, node_type, Column(node_type, "n_id"), graph.original_ids(node_type), rows)
            low, high = book.range_of(graph.machine)
            for name in wants.nodes.get(node_type, ()):
                array = graph.node_attribute(node_type, name)[low:high]
                rows.append(as_rows(Column(node_type, name), array, name in halved.nodes.get(node_type, ())))
            for edge_type in graph.schema.edges:
                if edge_type in wants.degrees and edge_type[0] == node_type:
                    degrees = graph.source_degrees(edge_type)[low:high].astype(np.int64)
                    rows.append(as_rows(Column(edge_type, "src_degree"), degrees))
                if edge_type in wants.degrees and edge_type[2] == node_type:
                    first, last = graph.topology_books[node_type].range_of(graph.machine)
                    degrees = np.diff(graph.csc(edge_type).colptr[first : last + 1])
                    columns._divide(graph, node_type, Column(edge_type, "dst_degree"), degrees, rows)
            columns._add(node_type, book, low, rows)
        for edge_type, names in wants.edges.items():
            book = graph.edge_books[edge_type]
            low, high = book.range_of(graph.machine)
            columns._add(
                edge_type,
                book,
                low,
                [
                    as_rows(
                        Column(edge_type, name),
                        graph.edge_attribute(edge_type, name)[low:high],
                        name in halved.edges.get(edge_type, ()),
                    )
                    for name in names
                ],
            )
        return columns

    def _divide(self, graph: Graph, node_type: str, column: Column, array: np.ndarray, rows: list[Rows]) -> None:
        """What comes with the topology is at hand where that is replicated; otherwise only the own part is."""
        low, high = graph.node_books[node_type].range_of(graph.machine)
        if graph.draws_alone:
            self.at_hand.append((node_type, as_rows(column, array)))
        else:
            rows.append(as_rows(column, array[low:high] if len(array) > high - low else array))

    def _add(self, key: str | EdgeType, book: PartitionBook, low: int, rows: list[Rows]) -> None:
        if rows:
            self.tables.append(Table(key, book, low, rows, nothing_cached(rows)))


def by_store(columns: Mapping[Column, torch.Tensor]) -> dict[str | EdgeType, dict[str, torch.Tensor]]:
    """The fetched attributes, sorted into the stores of the batch."""
    stores: dict[str | EdgeType, dict[str, torch.Tensor]] = {}
    for column, tensor in columns.items():
        stores.setdefault(column.owner, {})[column.name] = tensor
    return stores
