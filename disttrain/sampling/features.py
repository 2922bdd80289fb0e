"""Attributes of sampled nodes and edges: own rows from the mapped files, all remote ones in a single exchange."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from ..config import EdgeType
from ..graph.graph import Graph
from ..graph.schema import Wants
from . import kernels
from .memory import BLOCKS
from .request import make_request, read_request, starts
from .route import Route
from .subgraph import Subgraph


class Column(NamedTuple):
    """One attribute of one kind of id; where it goes in the batch is up to the loader."""

    owner: str | EdgeType
    """The node or edge type in whose store of the batch it lands."""
    name: str


@dataclass(frozen=True)
class _Rows:
    """The own range of an attribute, as rows of machine words."""

    column: Column
    words: np.ndarray
    """[own rows, words a row]"""
    dtype: np.dtype
    shape: tuple[int, ...]
    """Of one row."""

    @property
    def row_bytes(self) -> int:
        return self.words.shape[1] * self.words.itemsize


def _rows(column: Column, array: np.ndarray) -> _Rows:
    array = np.ascontiguousarray(array)  # files are contiguous already: no copy
    shape = array.shape[1:]
    row_bytes = int(np.prod(shape, dtype=np.int64)) * array.itemsize
    word = next(np.dtype(f"u{size}") for size in (8, 4, 2, 1) if row_bytes % size == 0)
    words = (
        array.reshape(len(array), -1).view(word)
        if array.size
        else np.empty((len(array), row_bytes // word.itemsize), word)
    )
    return _Rows(column, words, array.dtype, shape)


@dataclass(frozen=True)
class _Table:
    """All wanted attributes that go by the ids of one node type, or by the places of one edge type."""

    key: str | EdgeType
    bounds: np.ndarray
    low: int
    rows: list[_Rows]


def _aligned(num_bytes: int) -> int:
    """Every attribute begins at a multiple of 8 bytes, so that it can be read in words of any size."""
    return -(-num_bytes // 8) * 8


class FeatureFetcher:
    """Fetches the attributes that model and task want, and the original ids of all nodes (`n_id`).

    One request and one answer a batch carry all attributes of all types. A remote row is copied three times: gathered
    into the answer by its owner, over the wire, and from the inbox to its place; an own row once.

    Args:
        graph: the opened partition directory.
        wants: what the batch has to carry.
        route: the line to the other machines.
    """

    def __init__(self, graph: Graph, wants: Wants, route: Route) -> None:
        self.route = route
        self._tables = []
        for node_type, book in graph.node_books.items():
            low, high = book.range_of(graph.machine)
            rows = [_rows(Column(node_type, "n_id"), graph.original_ids(node_type)[low:high])]
            for name in wants.nodes.get(node_type, ()):
                rows.append(_rows(Column(node_type, name), graph.node_attribute(node_type, name)[low:high]))
            for edge_type in graph.schema.edges:
                if edge_type in wants.degrees and edge_type[0] == node_type:
                    degrees = graph.source_degrees(edge_type)[low:high].astype(np.int64)
                    rows.append(_rows(Column(edge_type, "src_degree"), degrees))
                if edge_type in wants.degrees and edge_type[2] == node_type:
                    degrees = np.diff(graph.csc(edge_type).colptr[low : high + 1])
                    rows.append(_rows(Column(edge_type, "dst_degree"), degrees))
            self._tables.append(_Table(node_type, book.bounds, low, rows))
        for edge_type, names in wants.edges.items():
            if names:
                book = graph.edge_books[edge_type]
                low, high = book.range_of(graph.machine)
                rows = [_rows(Column(edge_type, n), graph.edge_attribute(edge_type, n)[low:high]) for n in names]
                self._tables.append(_Table(edge_type, book.bounds, low, rows))

    def fetch(self, subgraph: Subgraph) -> dict[Column, torch.Tensor]:
        """The wanted attributes of all nodes and edges of a subgraph, in its order. A collective.

        Raises:
            PeerError: another machine failed, or did not answer in time.
        """
        ids = [subgraph.nodes[t.key] if isinstance(t.key, str) else subgraph.edge_place[t.key] for t in self._tables]
        inbox, cursors = self._ask(ids)
        out: dict[Column, torch.Tensor] = {}
        for at, table in enumerate(self._tables):
            for number, rows in enumerate(table.rows):
                target = BLOCKS.empty((len(ids[at]), *rows.shape), rows.dtype)
                if target.size:
                    words = rows.words.dtype
                    kernels.collect_rows(
                        ids[at],
                        table.bounds,
                        self.route.machine,
                        rows.words,
                        inbox.view(words),
                        cursors[at][number] // words.itemsize,
                        target.reshape(len(ids[at]), -1).view(words),
                    )
                out[rows.column] = torch.from_numpy(target)
        return out

    def _ask(self, ids: list[np.ndarray]) -> tuple[np.ndarray, list[list[np.ndarray]]]:
        """The answers of all machines (bytes), and per table and attribute where each machine's rows begin."""
        route, me, tables = self.route, self.route.machine, self._tables
        request = make_request(ids, [table.bounds for table in tables], me, route.num_machines, np.dtype(np.int64))
        received, received_sizes = route.exchange(request.message, request.sizes, "the feature request")

        answer_sizes = np.zeros(route.num_machines, np.int64)
        requests, at = [], 0
        for machine in range(route.num_machines):
            requests.append(received[at : at + received_sizes[machine]])
            at += int(received_sizes[machine])
            if machine != me:
                answer_sizes[machine] = self._answer_bytes(requests[machine][: len(tables)])
        answer = BLOCKS.empty(int(answer_sizes.sum()), np.uint8)
        at = 0
        for machine in range(route.num_machines):
            if machine != me:
                self._answer(requests[machine], answer[at : at + answer_sizes[machine]])
                at += int(answer_sizes[machine])

        expected = np.array(
            [self._answer_bytes(request.counts[:, m]) if m != me else 0 for m in range(route.num_machines)], np.int64
        )
        inbox, _ = route.exchange(answer, answer_sizes, "the feature answer", expected)
        cursor, cursors = starts(expected), []
        for at, table in enumerate(tables):
            cursors.append([])
            for rows in table.rows:
                cursors[at].append(cursor.copy())
                for machine in range(route.num_machines):
                    if machine != me:
                        cursor[machine] += _aligned(int(request.counts[at, machine]) * rows.row_bytes)
        return inbox, cursors

    def _answer_bytes(self, counts: np.ndarray) -> int:
        return sum(
            _aligned(int(count) * rows.row_bytes)
            for table, count in zip(self._tables, counts, strict=True)
            for rows in table.rows
        )

    def _answer(self, request: np.ndarray, answer: np.ndarray) -> None:
        """Gather the rows that one other machine asks for."""
        begin = 0
        for table, wanted in zip(self._tables, read_request(request, len(self._tables)), strict=True):
            for rows in table.rows:
                num_bytes = len(wanted) * rows.row_bytes
                if num_bytes:
                    section = answer[begin : begin + num_bytes].view(rows.words.dtype)
                    kernels.pick_rows(wanted, table.low, rows.words, section.reshape(len(wanted), -1))
                begin += _aligned(num_bytes)


def columns_by_store(columns: Mapping[Column, torch.Tensor]) -> dict[str | EdgeType, dict[str, torch.Tensor]]:
    """The fetched attributes, sorted into the stores of the batch."""
    stores: dict[str | EdgeType, dict[str, torch.Tensor]] = {}
    for column, tensor in columns.items():
        stores.setdefault(column.owner, {})[column.name] = tensor
    return stores
