"""Large arrays a block of rows at a time, so that of memory-mapped ones little is in memory at once."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

_BLOCK_BYTES = 1 << 23


def row_blocks(num_rows: int, row_bytes: int) -> Iterator[slice]:
    """Slices that divide `num_rows` rows into blocks of some megabytes."""
    rows = max(_BLOCK_BYTES // max(row_bytes, 1), 1)
    for start in range(0, num_rows, rows):
        yield slice(start, min(start + rows, num_rows))


def bytes_per_row(array: np.ndarray) -> int:
    return array.itemsize * math.prod(array.shape[1:])


def blocks_of(array: np.ndarray) -> Iterator[np.ndarray]:
    """Consecutive rows."""
    for rows in row_blocks(len(array), bytes_per_row(array)):
        yield array[rows]


def id_blocks(ids: np.ndarray) -> Iterator[np.ndarray]:
    """Consecutive ids of any integer type and stride, each block contiguous and int64: one type for the kernels."""
    for rows in row_blocks(len(ids), 8):
        yield np.ascontiguousarray(ids[rows], dtype=np.int64)
