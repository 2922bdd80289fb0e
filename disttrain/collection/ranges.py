"""What is done to the ranges of rows that the graphs of a mini-batch have: copied, added to, numbered.

In NumPy. Compiled loops take a tenth less time, but numba takes some 0.3 s in each new process before the first of them
runs, which would be most of the way to the first batch.
"""

from __future__ import annotations

import numpy as np


def copy_ranges(source: np.ndarray, starts: np.ndarray, sizes: np.ndarray, width: int, out: np.ndarray) -> None:
    """Put ranges of rows end to end, and the planes of each row apart.

    Args:
        source: [rows * planes * width] words; of each row its planes, one after the other.
        starts, sizes: int64 [n], in rows.
        width: words of a row in each plane.
        out: [planes, sizes.sum() * width], filled.
    """
    planes, total = out.shape[0], out.shape[1] // width
    # Row after row of a range is the next one; from the end of a range to the next it is a leap.
    rows = np.repeat(starts - (np.cumsum(sizes) - sizes), sizes)
    rows += np.arange(total)
    table = source.reshape(-1, planes * width)
    if planes == 1:
        # Without `mode` NumPy would copy by way of a buffer; all rows are there.
        np.take(table, rows, axis=0, out=out.reshape(total, width), mode="clip")
    else:
        out.reshape(planes, total, width)[:] = table[rows].reshape(total, planes, width).swapaxes(0, 1)


def add_to_ranges(values: np.ndarray, sizes: np.ndarray, width: int, offsets: np.ndarray) -> None:
    """Add a number to all of each range, in each of several planes.

    Args:
        values: int64 [planes, sizes.sum() * width], changed.
        sizes: int64 [n], in rows.
        offsets: int64 [planes, n].
    """
    for plane, by in zip(values, offsets):
        plane += np.repeat(by, sizes * width)


def number_ranges(sizes: np.ndarray) -> np.ndarray:
    """0 for as many places as `sizes[0]` says, then 1, and so on: int64 [sizes.sum()]."""
    return np.repeat(np.arange(len(sizes)), sizes)
