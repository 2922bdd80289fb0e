"""Sorting rows by integer keys without holding them in memory: buckets of consecutive keys, on the disk.

A distribution sort of one level (Aggarwal and Vitter, "The input/output complexity of sorting and related problems",
1988): rows are dealt to buckets of a bounded number of rows, in files, and each bucket is sorted in memory. How many
rows each key has must be known beforehand, which for edges and nodes is one pass of counting.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np

from ..machine_code import compiled
from .blocks import row_blocks
from .order import place_keys

ROWS_AT_ONCE = 1 << 22
"""Of a bucket: in memory at once, with about 40 bytes each."""


def bucket_bounds(starts: np.ndarray, rows_at_once: int) -> np.ndarray:
    """Ranges of keys with at most `rows_at_once` rows each, or of one key: int64 [buckets + 1], from 0 to num_keys.

    Args:
        starts: int64 [num_keys + 1], the rows of key k are `starts[k]` to `starts[k + 1] - 1` when sorted.
    """
    num_keys = len(starts) - 1
    bounds = [0]
    while bounds[-1] < num_keys:
        end = int(np.searchsorted(starts, starts[bounds[-1]] + rows_at_once, side="right")) - 1
        bounds.append(min(max(end, bounds[-1] + 1), num_keys))
    return np.array(bounds, dtype=np.int64)


@compiled
def _deal(bucket: np.ndarray, ends: np.ndarray, order: np.ndarray) -> None:
    """Counting sort of one block by bucket: `ends` [buckets + 1], the rows of bucket b are
    `order[ends[b]:ends[b + 1]]`."""
    ends[:] = 0
    for index in range(len(bucket)):
        ends[bucket[index] + 1] += 1
    for index in range(1, len(ends)):
        ends[index] += ends[index - 1]
    place = ends[:-1].copy()
    for index in range(len(bucket)):
        order[place[bucket[index]]] = index
        place[bucket[index]] += 1


class ExternalOrder:
    """The stable order of `num_rows` rows by their keys; `apply` brings columns into it.

    Memory: 2 bytes a key while it is made, 40 a row of a bucket; no more if one key has all rows. Disk: 6 bytes a row,
    and while a column is applied that column, in `folder`; nothing where one bucket is enough.
    Cost: about 40 ns a row to make, and for each column to write and read it once more.
    """

    def __init__(
        self,
        starts: np.ndarray,
        key_blocks: Iterable[np.ndarray],
        folder: Path,
        rows_at_once: int = ROWS_AT_ONCE,
    ) -> None:
        """Args:
        starts: int64 [num_keys + 1], see `bucket_bounds`.
        key_blocks: the keys, in the order of the rows, in blocks.
        folder: exists; files in it are the order's own.
        """
        self._folder = folder
        self._bounds = bucket_bounds(starts, rows_at_once)
        self._rows = starts[self._bounds]
        """int64 [buckets + 1]: the first row of each bucket, when sorted."""
        self.num_rows = int(starts[-1])
        num_buckets = len(self._bounds) - 1
        bucket_of_key = np.repeat(
            np.arange(num_buckets, dtype=np.uint16 if num_buckets <= 1 << 16 else np.int64), np.diff(self._bounds)
        )
        key_type = np.dtype(np.int32 if len(starts) <= 1 << 31 else np.int64)
        self._bucket = Column(self._path("bucket"), bucket_of_key.dtype, (self.num_rows,), self._in_memory)
        self._order = Column(self._path("order"), np.dtype(np.int32), (self.num_rows,), self._in_memory)

        def local_keys() -> Iterator[np.ndarray]:
            for keys in key_blocks:
                bucket = bucket_of_key[keys]
                self._bucket.append(bucket)
                yield (keys - self._bounds[bucket]).astype(key_type, copy=False)

        with self._dealt(local_keys(), key_type, ()) as keys:
            for bucket in range(num_buckets):
                first, end = self._bounds[bucket : bucket + 2]
                rows = slice(self._rows[bucket], self._rows[bucket + 1])
                if end - first > 1:
                    next_place = starts[first:end] - starts[first]
                    order = np.empty(rows.stop - rows.start, dtype=np.int32)
                    place_keys(keys.array[rows], next_place, order)
                    self._order.write(order, rows.start)

    @property
    def _in_memory(self) -> bool:
        return len(self._bounds) <= 2

    def apply(self, blocks: Iterable[np.ndarray], dtype: np.dtype, shape: tuple[int, ...] = ()) -> Iterator[np.ndarray]:
        """A column in sorted order.

        Args:
            blocks: the column in the order of the rows, in blocks.
            dtype, shape: of one row.

        Yields:
            Blocks of some megabytes.
        """
        row_bytes = np.dtype(dtype).itemsize * math.prod(shape)
        with self._dealt(blocks, np.dtype(dtype), shape) as column:
            for bucket in range(len(self._bounds) - 1):
                first = self._rows[bucket]
                alone = self._bounds[bucket + 1] - self._bounds[bucket] == 1
                for rows in row_blocks(int(self._rows[bucket + 1] - first), row_bytes + 8):
                    place = slice(first + rows.start, first + rows.stop)
                    yield column.array[place] if alone else column.array[first + self._order.array[place]]

    def column(self, name: str, dtype: np.dtype) -> Column:
        """Room for a column in sorted order, where the order's own are: in memory or on the disk."""
        return Column(self._folder / name, dtype, (self.num_rows,), self._in_memory)

    def close(self) -> None:
        """Remove the order's files."""
        self._bucket.close()
        self._order.close()

    def _path(self, name: str) -> Path:
        return self._folder / f"order-{name}"

    def _dealt(self, blocks: Iterable[np.ndarray], dtype: np.dtype, shape: tuple[int, ...]) -> Column:
        """A column, rows of a bucket together and in their old order."""
        column = Column(self._path("column"), dtype, (self.num_rows, *shape), self._in_memory)
        written = self._rows[:-1].copy()
        ends = np.zeros(len(self._bounds), dtype=np.int64)
        row = 0
        try:
            for block in blocks:
                if self._in_memory:
                    column.append(block)
                    continue
                order = np.empty(len(block), dtype=np.int64)
                _deal(self._bucket.array[row : row + len(block)], ends, order)
                block = block[order]
                for bucket in np.flatnonzero(np.diff(ends)):
                    rows = block[ends[bucket] : ends[bucket + 1]]
                    column.write(rows, int(written[bucket]))
                    written[bucket] += len(rows)
                row += len(block)
        except BaseException:
            column.close()
            raise
        return column


class Column:
    """An array on the disk that is written piece by piece and read as a memory map; or in memory.

    Written through the file, not the map: on a full disk that is an error instead of a SIGBUS.
    """

    def __init__(self, path: Path, dtype: np.dtype, shape: tuple[int, ...], in_memory: bool) -> None:
        self._path, self._dtype, self._shape = path, dtype, shape
        self._row_bytes = dtype.itemsize * math.prod(shape[1:])
        self._next = 0
        self._memory = np.empty(shape, dtype) if in_memory else None
        self._map: np.ndarray | None = None
        self._file = -1
        if not in_memory:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)
            os.truncate(self._file, max(self._row_bytes * shape[0], 1))

    def append(self, rows: np.ndarray) -> None:
        self.write(rows, self._next)
        self._next += len(rows)

    def write(self, rows: np.ndarray, at: int) -> None:
        """Rows from row `at` on."""
        if self._memory is not None:
            self._memory[at : at + len(rows)] = rows
            return
        if not rows.size:
            return
        data = np.ascontiguousarray(rows, dtype=self._dtype).reshape(-1).view(np.uint8).data
        place = at * self._row_bytes
        while len(data):
            done = os.pwrite(self._file, data, place)
            data, place = data[done:], place + done

    @property
    def array(self) -> np.ndarray:
        if self._memory is not None:
            return self._memory
        if self._map is None:
            if math.prod(self._shape) == 0:
                self._map = np.empty(self._shape, self._dtype)
            else:
                # An array proper, as what is computed from a memmap would be one, too; and not read-only, which is
                # a type of its own to the kernels.
                self._map = np.asarray(np.memmap(self._path, self._dtype, "r+", shape=self._shape))
        return self._map

    def close(self) -> None:
        self._memory = self._map = None
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
            with suppress(FileNotFoundError):
                self._path.unlink()

    def __enter__(self) -> Column:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()
