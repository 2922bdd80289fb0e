"""The inner loops over the graphs of a mini-batch, compiled by numba: copy what each has, and count on. They release
the GIL."""

from __future__ import annotations

import numpy as np

from ..machine_code import compiled


@compiled
def copy_ranges(source, starts, sizes, width, out):
    """Put ranges of rows end to end, and the planes of each row apart.

    Args:
        source: [rows * planes * width] words; of each row its planes, one after the other.
        starts, sizes: int64 [n], in rows.
        width: words of a row in each plane.
        out: [planes, sizes.sum() * width], filled.
    """
    planes = out.shape[0]
    row_words = planes * width
    for plane in range(planes):
        at = 0
        for i in range(len(starts)):
            begin = starts[i] * row_words + plane * width
            if planes == 1:
                for word in range(sizes[i] * width):
                    out[plane, at + word] = source[begin + word]
                at += sizes[i] * width
                continue
            for _ in range(sizes[i]):
                for word in range(width):
                    out[plane, at + word] = source[begin + word]
                begin += row_words
                at += width


@compiled
def add_to_ranges(values, sizes, width, offsets):
    """Add a number to all of each range, in each of several planes.

    Args:
        values: int64 [planes, sizes.sum() * width], changed.
        sizes: int64 [n], in rows.
        offsets: int64 [planes, n].
    """
    for plane in range(values.shape[0]):
        at = 0
        for i in range(len(sizes)):
            for word in range(at, at + sizes[i] * width):
                values[plane, word] += offsets[plane, i]
            at += sizes[i] * width


@compiled
def number_ranges(sizes, out):
    """0 for as many places as `sizes[0]` says, then 1, and so on: int64 [sizes.sum()], filled."""
    at = 0
    for i in range(len(sizes)):
        for place in range(at, at + sizes[i]):
            out[place] = i
        at += sizes[i]


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
