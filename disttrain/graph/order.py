"""Counting sort: the one kernel behind renumbering, CSC and METIS's adjacency."""

from __future__ import annotations

import numpy as np

from ..machine_code import compiled


@compiled
def add_counts(keys: np.ndarray, counts: np.ndarray) -> None:
    """`counts[k] += 1` for each key k."""
    for index in range(len(keys)):
        counts[keys[index]] += 1


@compiled
def place_keys(keys: np.ndarray, next_place: np.ndarray, order: np.ndarray) -> None:
    """Put the index of each key to `order[next_place[key]]`, and count that place up."""
    for index in range(len(keys)):
        key = keys[index]
        order[next_place[key]] = index
        next_place[key] += 1


def starts_of(counts: np.ndarray) -> np.ndarray:
    """int64 [len(counts) + 1]: where the rows of each key begin when sorted."""
    starts = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts


def group_by_key(keys: np.ndarray, num_keys: int) -> tuple[np.ndarray, np.ndarray]:
    """Stable sort of integers below `num_keys`.

    Returns:
        `starts`, int64 [num_keys + 1], and `order`, int64 [len(keys)]: the indices of key `k`, ascending, are
        `order[starts[k]:starts[k + 1]]`.

    Cost: two passes, O(len(keys) + num_keys), about 10 ns a key.
    """
    starts = starts_of(count_keys(keys, num_keys))
    order = np.empty(len(keys), dtype=np.int64)
    place_keys(keys, starts[:-1].copy(), order)
    return starts, order


def count_keys(keys: np.ndarray, num_keys: int) -> np.ndarray:
    """How often each integer below `num_keys` occurs, int64 [num_keys]."""
    counts = np.zeros(num_keys, dtype=np.int64)
    add_counts(keys, counts)
    return counts
