"""Memory that is used again. A fresh page costs a fault and a zeroing, together about as much as filling it."""

from __future__ import annotations

import sys
import threading

import numpy as np

_LEAST_BYTES = 1 << 16
"""Smaller arrays come from the allocator, which keeps their pages anyway."""


class BlockPool:
    """Hands out uninitialised arrays, in blocks of memory that nobody uses any more.

    An array keeps its block busy for as long as it, or a view or tensor made of it, is alive; nothing has to be given
    back. Block sizes grow in steps of a quarter, so that batches of varying sizes share them. Several threads may use a
    pool. It keeps as much memory as was in use at the busiest moment.
    """

    def __init__(self) -> None:
        self._blocks = [np.empty(0, np.uint8)]
        self._lock = threading.Lock()
        # A block is idle if only the list (and the call that counts) knows it. The first one is never handed out.
        self._idle = sys.getrefcount(self._blocks[0])

    def empty(self, shape: int | tuple[int, ...], dtype: np.dtype | type) -> np.ndarray:
        """Like `np.empty`."""
        dtype = np.dtype(dtype)
        shape = shape if isinstance(shape, tuple) else (shape,)
        num_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if num_bytes < _LEAST_BYTES:
            return np.empty(shape, dtype)
        with self._lock:
            return self._blocks[self._idle_block(num_bytes)][:num_bytes].view(dtype).reshape(shape)

    def _idle_block(self, num_bytes: int) -> int:
        size = _LEAST_BYTES
        while size < num_bytes:
            size += size // 4 & ~63
        fitting = [at for at in range(len(self._blocks)) if size <= self._blocks[at].nbytes <= 2 * size]
        for at in sorted(fitting, key=lambda at: self._blocks[at].nbytes):
            if sys.getrefcount(self._blocks[at]) == self._idle:
                return at
        self._blocks.append(np.empty(size, np.uint8))
        return len(self._blocks) - 1


BLOCKS = BlockPool()
"""Of this process: batches of training and evaluation take turns in the same memory."""
