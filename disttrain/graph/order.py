"""Counting sort: the one kernel behind renumbering, CSC and METIS's adjacency."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def _count(keys: np.ndarray, ends: np.ndarray) -> None:
    for key in keys:
        ends[key + 1] += 1
    for key in range(1, len(ends)):
        ends[key] += ends[key - 1]


@njit(cache=True, nogil=True)
def _place(keys: np.ndarray, next_place: np.ndarray, order: np.ndarray) -> None:
    for index in range(len(keys)):
        key = keys[index]
        order[next_place[key]] = index
        next_place[key] += 1


def group_by_key(keys: np.ndarray, num_keys: int) -> tuple[np.ndarray, np.ndarray]:
    """Stable sort of integers below `num_keys`.

    Returns:
        `starts`, int64 [num_keys + 1], and `order`, int64 [len(keys)]: the indices of key `k`, ascending, are
        `order[starts[k]:starts[k + 1]]`.

    Cost: two passes, O(len(keys) + num_keys), about 10 ns a key.
    """
    starts = np.zeros(num_keys + 1, dtype=np.int64)
    _count(keys, starts)
    order = np.empty(len(keys), dtype=np.int64)
    _place(keys, starts[:-1].copy(), order)
    return starts, order


def count_keys(keys: np.ndarray, num_keys: int) -> np.ndarray:
    """How often each integer below `num_keys` occurs, int64 [num_keys]."""
    starts = np.zeros(num_keys + 1, dtype=np.int64)
    _count(keys, starts)
    return np.diff(starts)
