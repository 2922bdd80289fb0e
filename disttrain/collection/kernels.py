"""The inner loops over the graphs of a mini-batch, compiled by numba: copy what each has, and count on. They release
the GIL."""

from __future__ import annotations

from ..machine_code import compiled


@compiled
def copy_ranges(source, starts, sizes, width, out):
    """Put ranges of rows side by side, in each of several planes.

    Args:
        source: [planes, rows * width] words.
        starts, sizes: int64 [n], in rows.
        width: words per row.
        out: [planes, sizes.sum() * width], filled.
    """
    for plane in range(source.shape[0]):
        at = 0
        for i in range(len(starts)):
            begin = starts[i] * width
            for word in range(sizes[i] * width):
                out[plane, at + word] = source[plane, begin + word]
            at += sizes[i] * width


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
