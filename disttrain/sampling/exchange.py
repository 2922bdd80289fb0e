"""Rows of arrays that are spread over machines as the nodes are: own ones from here, others' in a single exchange."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..graph.book import PartitionBook
from .route import Route


class RowExchange:
    """Fetches rows by node id, of several node types with several arrays each.

    Args:
        books: node type -> who owns which nodes.
        arrays: node type -> arrays [own nodes, ...] of this machine; the same types, dtypes and widths everywhere.
        route: the line to the other machines.
    """

    def __init__(
        self, books: Mapping[str, PartitionBook], arrays: Mapping[str, Sequence[np.ndarray]], route: Route
    ) -> None:
        self.route, self._types = route, list(arrays)
        self._books = {t: books[t] for t in self._types}
        self._low = {t: book.range_of(route.machine)[0] for t, book in self._books.items()}
        self._arrays = {t: list(arrays[t]) for t in self._types}
        self._row_bytes = {t: [int(np.prod(a.shape[1:])) * a.itemsize for a in arrays[t]] for t in self._types}

    def fetch(self, ids: Mapping[str, np.ndarray]) -> dict[str, list[np.ndarray]]:
        """Node type -> the rows of its ids in each of its arrays, in their order. A collective.

        Raises:
            PeerError: another machine failed, or did not answer in time.
        """
        me, num_machines = self.route.machine, self.route.num_machines
        owners = {t: self._books[t].owners(ids[t]) if num_machines > 1 else None for t in self._types}
        places = {(t, m): np.flatnonzero(owners[t] == m) for t in self._types for m in range(num_machines) if m != me}
        inbox = self._ask(ids, places)
        rows: dict[str, list[np.ndarray]] = {}
        for t in self._types:
            own = slice(None) if owners[t] is None else np.flatnonzero(owners[t] == me)
            rows[t] = []
            for number, array in enumerate(self._arrays[t]):
                out = np.empty((len(ids[t]), *array.shape[1:]), array.dtype)
                out[own] = array[ids[t][own] - self._low[t]]
                for machine in range(num_machines):
                    if machine != me:
                        out[places[t, machine]] = inbox[machine, t, number]
                rows[t].append(out)
        return rows

    def _ask(
        self, ids: Mapping[str, np.ndarray], places: Mapping[tuple[str, int], np.ndarray]
    ) -> dict[tuple[int, str, int], np.ndarray]:
        """(machine, type, array) -> the rows that it sent."""
        route, num_types = self.route, len(self._types)
        if route.num_machines == 1:
            return {}
        others = [machine for machine in range(route.num_machines) if machine != route.machine]
        counts = {m: np.array([len(places[t, m]) for t in self._types], np.int64) for m in others}
        asked = {m: [counts[m], *(ids[t][places[t, m]].astype(np.int64) for t in self._types)] for m in others}
        received = self._send(asked, np.dtype(np.int64), "the request for vectors", None)

        answers, expected = {}, np.zeros(route.num_machines, np.int64)
        for machine in others:
            message = received[machine]
            ends = num_types + np.cumsum(message[:num_types])
            pieces = []
            for number, t in enumerate(self._types):
                wanted = message[ends[number] - message[number] : ends[number]] - self._low[t]
                pieces += [np.ascontiguousarray(a[wanted]).reshape(-1).view(np.uint8) for a in self._arrays[t]]
            answers[machine] = pieces
            expected[machine] = sum(
                int(counts[machine][n]) * sum(self._row_bytes[t]) for n, t in enumerate(self._types)
            )
        arrived = self._send(answers, np.dtype(np.uint8), "the vectors", expected)

        found: dict[tuple[int, str, int], np.ndarray] = {}
        for machine in others:
            at = 0
            for n, t in enumerate(self._types):
                for number, array in enumerate(self._arrays[t]):
                    size = int(counts[machine][n]) * self._row_bytes[t][number]
                    rows = arrived[machine][at : at + size].copy().view(array.dtype)
                    found[machine, t, number] = rows.reshape(int(counts[machine][n]), *array.shape[1:])
                    at += size
        return found

    def _send(
        self, pieces: Mapping[int, Sequence[np.ndarray]], dtype: np.dtype, what: str, expected: np.ndarray | None
    ) -> dict[int, np.ndarray]:
        sizes = np.zeros(self.route.num_machines, np.int64)
        for machine, parts in pieces.items():
            sizes[machine] = sum(len(part) for part in parts)
        message = np.concatenate([np.empty(0, dtype), *(p for m in sorted(pieces) for p in pieces[m])])
        inbox, got = self.route.exchange(message, sizes, what, expected)
        ends = np.cumsum(got)
        return {machine: inbox[ends[machine] - got[machine] : ends[machine]] for machine in pieces}
