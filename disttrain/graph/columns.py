"""What the manifest says about an attribute's values: range, missing values, mean and standard deviation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

_BLOCK_VALUES = 1 << 20


@dataclass(frozen=True)
class Summary:
    """Of all rows of an attribute. It does not depend on the partitions: rows are read in the user's order."""

    low: float | None
    high: float | None
    missing: int
    mean: np.ndarray | None
    """float64 [columns], with further dimensions flattened; NaN left out, 0 where nothing is left."""
    std: np.ndarray | None


def summarise(array: np.ndarray, feature: bool = False) -> Summary:
    """Args:
        feature: mean and standard deviation are wanted whatever the type and shape; otherwise they are given of
            floating attributes of at most two dimensions.

    Cost: one pass, none over booleans, and two more in float64 for mean and standard deviation.
    """
    wanted = feature or (array.dtype.kind == "f" and array.ndim <= 2)
    if array.size == 0:
        empty = np.zeros(_width(array)) if wanted else None
        return Summary(None, None, 0, empty, empty)
    if array.dtype.kind != "f":
        low, high = (None, None) if array.dtype.kind == "b" else (int(array.min()), int(array.max()))
        return Summary(low, high, 0, *(_moments(array) if wanted else (None, None)))
    low, high, missing = np.inf, -np.inf, 0
    for block in _blocks(array):
        low = min(low, float(np.fmin.reduce(block, axis=None)))
        high = max(high, float(np.fmax.reduce(block, axis=None)))
        missing += int(np.count_nonzero(np.isnan(block)))
    mean, std = _moments(array) if wanted else (None, None)
    return Summary(_finite(low), _finite(high), missing, mean, std)


def _moments(array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    width = _width(array)
    total, count = np.zeros(width), np.zeros(width)
    # Infinite values make these infinite or NaN, which is what they are.
    with np.errstate(invalid="ignore", over="ignore"):
        for block in _blocks(array):
            present = ~np.isnan(block)
            total += block.sum(axis=0, dtype=np.float64, where=present)
            count += present.sum(axis=0)
        count = np.maximum(count, 1)
        mean = total / count
        squares = np.zeros(width)
        for block in _blocks(array):
            deviation = block.astype(np.float64) - mean
            deviation[np.isnan(block)] = 0.0
            squares += np.square(deviation, out=deviation).sum(axis=0)
        return mean, np.sqrt(squares / count)


def _width(array: np.ndarray) -> int:
    return int(np.prod(array.shape[1:]))


def _blocks(array: np.ndarray) -> Iterator[np.ndarray]:
    width = int(np.prod(array.shape[1:]))
    rows = max(_BLOCK_VALUES // max(width, 1), 1)
    for start in range(0, len(array), rows):
        yield array[start : start + rows].reshape(-1, width)


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None
