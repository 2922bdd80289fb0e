"""Attributes of sampled nodes and edges: own rows from the mapped files, hot remote ones from the cache, the rest in a
single exchange."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from . import row_kernels
from .columns import Column, Columns, Rows, Table
from .memory import BLOCKS
from .request import Request, address, read_request, starts
from .route import Route
from .subgraph import Subgraph


def _aligned(num_bytes: int) -> int:
    """Every attribute begins at a multiple of 8 bytes, so that it can be read in words of any size."""
    return -(-num_bytes // 8) * 8


class FeatureFetcher:
    """Fetches the attributes that a batch carries.

    One request and one answer a batch carry all attributes of all types. A remote row is copied three times: gathered
    into the answer by its owner, over the wire, and from the inbox to its place; a cached or own row once.

    Args:
        columns: which attributes, and the cache. What is put into the cache later is seen from the next batch on.
        route: the line to the other machines.
    """

    def __init__(self, columns: Columns, route: Route) -> None:
        self.columns, self.route = columns, route
        largest = max((table.book.num_ids for table in columns.tables), default=0)
        self._dtype = np.dtype(np.int32 if largest < 2**31 else np.int64)
        self.asked = np.zeros((2, len(columns.tables)), np.int64)
        """Per table, how many remote rows were wanted so far: those of the cache, and those of the other machines."""

    def ids_of(self, subgraph: Subgraph) -> list[np.ndarray]:
        """Per table, the ids whose rows a subgraph needs."""
        return [
            subgraph.nodes[table.key] if isinstance(table.key, str) else subgraph.edge_place[table.key]
            for table in self.columns.tables
        ]

    def fetch(self, subgraph: Subgraph) -> dict[Column, torch.Tensor]:
        """The wanted attributes of all nodes and edges of a subgraph, in its order. A collective.

        Raises:
            PeerError: another machine failed, or did not answer in time.
        """
        out = self.fetch_ids(self.ids_of(subgraph))
        for node_type, rows in self.columns.at_hand:
            ids = subgraph.nodes[node_type]
            target = _room(len(ids), rows)
            if target.size:
                row_kernels.pick_rows(ids, 0, rows.words, target.reshape(len(ids), -1).view(rows.words.dtype))
            out[rows.column] = torch.from_numpy(target)
        return out

    def fetch_ids(self, ids: Sequence[np.ndarray]) -> dict[Column, torch.Tensor]:
        """The attributes of ids of each table. A collective, see `fetch`."""
        tables = list(self.columns.tables)  # the cache may be exchanged meanwhile
        places, request = self._locate(tables, ids)
        inbox, cursors = self._ask(tables, request)
        out: dict[Column, torch.Tensor] = {}
        for at, table in enumerate(tables):
            for number, rows in enumerate(table.rows):
                target = _room(len(ids[at]), rows)
                if target.size:
                    collect = row_kernels.collect_halved if rows.halved else row_kernels.collect_rows
                    collect(
                        places[at],
                        rows.words,
                        table.cached.rows[number],
                        inbox.view(rows.travelling),
                        cursors[at][number] // rows.travelling.itemsize,
                        target.reshape(len(ids[at]), -1).view(rows.words.dtype),
                    )
                out[rows.column] = torch.from_numpy(target)
        return out

    def _locate(self, tables: list[Table], ids: Sequence[np.ndarray]) -> tuple[list[np.ndarray], Request]:
        """Where each wanted row lies, and the request for those of other machines."""
        me, num_machines = self.route.machine, self.route.num_machines
        counts, places = np.zeros((len(tables), num_machines), np.int64), []
        for at, table in enumerate(tables):
            places.append(BLOCKS.empty(len(ids[at]), np.int64))
            self.asked[0, at] += row_kernels.locate(
                ids[at], table.book.bounds, me, table.cached.index, places[at], counts[at]
            )
        self.asked[1] += counts.sum(axis=1)
        request, cursor = address(counts, me, self._dtype)
        if num_machines > 1:
            for at in range(len(tables)):
                row_kernels.write_wanted(ids[at], places[at], cursor, request.message)
        return places, request

    def _ask(self, tables: list[Table], request: Request) -> tuple[np.ndarray, list[list[np.ndarray]]]:
        """The answers of all machines (bytes), and per table and attribute where each machine's rows begin."""
        route, me = self.route, self.route.machine
        received, received_sizes = route.exchange(request.message, request.sizes, "the feature request")

        answer_sizes = np.zeros(route.num_machines, np.int64)
        requests, at = [], 0
        for machine in range(route.num_machines):
            requests.append(received[at : at + received_sizes[machine]])
            at += int(received_sizes[machine])
            if machine != me:
                answer_sizes[machine] = _answer_bytes(tables, requests[machine][: len(tables)])
        answer = BLOCKS.empty(int(answer_sizes.sum()), np.uint8)
        at = 0
        for machine in range(route.num_machines):
            if machine != me:
                _answer(tables, requests[machine], answer[at : at + answer_sizes[machine]])
                at += int(answer_sizes[machine])

        expected = np.array(
            [_answer_bytes(tables, request.counts[:, m]) if m != me else 0 for m in range(route.num_machines)], np.int64
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


def _room(count: int, rows: Rows) -> np.ndarray:
    return BLOCKS.empty((count, *rows.shape), rows.dtype)


def _answer_bytes(tables: list[Table], counts: np.ndarray) -> int:
    return sum(
        _aligned(int(count) * rows.row_bytes)
        for table, count in zip(tables, counts, strict=True)
        for rows in table.rows
    )


def _answer(tables: list[Table], request: np.ndarray, answer: np.ndarray) -> None:
    """Gather the rows that one other machine asks for."""
    begin = 0
    for table, wanted in zip(tables, read_request(request, len(tables)), strict=True):
        for rows in table.rows:
            num_bytes = len(wanted) * rows.row_bytes
            if num_bytes:
                section = answer[begin : begin + num_bytes].view(rows.travelling)
                pick = row_kernels.pick_halved if rows.halved else row_kernels.pick_rows
                pick(wanted, table.low, rows.words, section.reshape(len(wanted), -1))
            begin += _aligned(num_bytes)
