"""The inner loops of dealing graphs out by their sizes, compiled by numba. They release the GIL."""

from __future__ import annotations

import numpy as np

from ..machine_code import compiled


@compiled
def fill_bins(sizes, load):
    """The bin of each thing, one after the other: the one with the least in it, of equal ones the first.

    Args:
        sizes: float64 [n]
        load: float64 [bins], what is in them already.

    Returns:
        int64 [n]. Cost: n log bins.
    """
    heap = np.argsort(load, kind="mergesort")
    load = load.copy()
    bins = np.empty(len(sizes), np.int64)
    for i in range(len(sizes)):
        chosen = heap[0]
        bins[i] = chosen
        load[chosen] += sizes[i]
        at = 0
        while True:
            child = 2 * at + 1
            if child >= len(heap):
                break
            right = child + 1
            if right < len(heap) and (
                load[heap[right]] < load[heap[child]]
                or (load[heap[right]] == load[heap[child]] and heap[right] < heap[child])
            ):
                child = right
            below = heap[child]
            if load[chosen] < load[below] or (load[chosen] == load[below] and chosen < below):
                break
            heap[at] = below
            at = child
        heap[at] = chosen
    return bins


@compiled
def even_out(sizes, steps, load):
    """The rank of each thing, one after the other: of its step, the one with the least, then with the fewest things.

    Args:
        sizes: float64 [n]
        steps: int64 [n]
        load: float64 [steps, ranks], what they have already.

    Returns:
        int64 [n]
    """
    load = load.copy()
    count = np.zeros(load.shape, np.int64)
    ranks = np.empty(len(sizes), np.int64)
    for i in range(len(sizes)):
        step, chosen = steps[i], 0
        for rank in range(1, load.shape[1]):
            less = load[step, rank] < load[step, chosen]
            if less or (load[step, rank] == load[step, chosen] and count[step, rank] < count[step, chosen]):
                chosen = rank
        ranks[i] = chosen
        load[step, chosen] += sizes[i]
        count[step, chosen] += 1
    return ranks
