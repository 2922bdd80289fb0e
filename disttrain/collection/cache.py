"""The graphs that were used last, in memory, up to a bound."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable

Row = tuple[bytes, ...]
"""What a graph has of each attribute that is read."""

_OF_ROW = 200
_OF_PART = 33
"""Bytes that Python takes for a row and for each of its parts, beside their contents."""


class Cache:
    """The least recently used graph goes when there is no more room. For several threads. What it holds is not pickled:
    a worker process has its own.

    Args:
        num_bytes: the bound.
    """

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self._begin()

    def _begin(self) -> None:
        self._rows: OrderedDict[int, tuple[Row, int]] = OrderedDict()
        self._lock = threading.Lock()
        self.held_bytes, self.hits, self.misses = 0, 0, 0
        self._told = 0, 0

    def __getstate__(self) -> dict[str, int]:
        return {"num_bytes": self.num_bytes}

    def __setstate__(self, state: dict[str, int]) -> None:
        self.num_bytes = state["num_bytes"]
        self._begin()

    def __len__(self) -> int:
        return len(self._rows)

    def found(self, ids: Iterable[int]) -> dict[int, Row]:
        """Those of these graphs that are here."""
        rows: dict[int, Row] = {}
        with self._lock:
            for number in ids:
                kept = self._rows.get(number)
                if kept is None:
                    self.misses += 1
                else:
                    self.hits += 1
                    self._rows.move_to_end(number)
                    rows[number] = kept[0]
        return rows

    def keep(self, rows: dict[int, Row]) -> None:
        with self._lock:
            for number, row in rows.items():
                size = _OF_ROW + sum(_OF_PART + len(part) for part in row)
                if number in self._rows or size > self.num_bytes:
                    continue
                self._rows[number] = row, size
                self.held_bytes += size
            while self.held_bytes > self.num_bytes:
                _, (_, size) = self._rows.popitem(last=False)
                self.held_bytes -= size

    def asked(self) -> tuple[int, int]:
        """How many graphs were here and how many not, since the last call."""
        with self._lock:
            found = self.hits - self._told[0], self.misses - self._told[1]
            self._told = self.hits, self.misses
        return found
