"""Memory that is used again. A fresh page costs a fault and a zeroing, together about as much as filling it."""

from __future__ import annotations

import math
import sys
import threading

import numpy as np

from .stream import LINE_BYTES

_LEAST_BYTES = 1 << 16
"""Smaller arrays come from the allocator, which keeps their pages anyway."""


class BlockPool:
    """Hands out uninitialised arrays, in blocks of memory that nobody uses any more.

    An array keeps its block busy for as long as it, or a view or tensor made of it, is alive; nothing has to be given
    back. Arrays begin at a cache line. Block sizes grow in steps of a quarter at most, so that batches of varying sizes
    share them. Several threads may use a pool. It keeps as much memory as was in use at the busiest moment.
    """

    def __init__(self) -> None:
        self._blocks: dict[int, list[tuple[np.ndarray, int]]] = {0: [(np.empty(0, np.uint8), 0)]}
        """By size: blocks, and where in them the first cache line begins. The first one is never handed out."""
        self._lock = threading.Lock()
        # A block is idle if only its tuple (and the call that counts) knows it.
        blocks = self._blocks[0]
        self._idle = sys.getrefcount(blocks[0][0])

    def empty(self, shape: int | tuple[int, ...], dtype: np.dtype | type) -> np.ndarray:
        """Like `np.empty`."""
        dtype = np.dtype(dtype)
        num_bytes = (math.prod(shape) if isinstance(shape, tuple) else int(shape)) * dtype.itemsize
        if num_bytes < _LEAST_BYTES:
            return np.empty(shape, dtype)
        with self._lock:
            block, begin = self._idle_block(num_bytes)
            return np.ndarray(shape, dtype, block, begin)

    def _idle_block(self, num_bytes: int) -> tuple[np.ndarray, int]:
        # Sizes are numbers of three leading bits: 4, 5, 6, 7, 8, 10, 12, 14, 16, ...
        step = 1 << ((num_bytes - 1).bit_length() - 3)
        wanted = size = -(-num_bytes // step) * step
        while size <= 2 * wanted:
            blocks = self._blocks.get(size, [])
            for at in range(len(blocks)):
                if sys.getrefcount(blocks[at][0]) == self._idle:
                    return blocks[at]
            size += 1 << (size.bit_length() - 3)
        block = np.empty(wanted + LINE_BYTES, np.uint8)
        self._blocks.setdefault(wanted, []).append((block, -block.ctypes.data % LINE_BYTES))
        return self._blocks[wanted][-1]


BLOCKS = BlockPool()
"""Of this process: batches of training and evaluation take turns in the same memory."""
