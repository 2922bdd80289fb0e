"""What the manifest says of an attribute's values, batch by batch."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..graph.columns import Summary, summarise

_MOST_COLUMNS = 4096
"""As wide may an attribute be of which mean and standard deviation are kept."""


def summary(name: str, array: np.ndarray) -> dict[str, Any]:
    """JSON of `summarise`: `low`, `high`, `missing`; and where it has them `mean`, `std`, and `count`, how many values
    of each column they are of."""
    width = int(np.prod(array.shape[1:]))
    found = summarise(array, feature=name == "x" and width <= _MOST_COLUMNS)
    plain: dict[str, Any] = {"low": found.low, "high": found.high, "missing": found.missing}
    if found.mean is None or found.std is None or width > _MOST_COLUMNS:
        return plain
    count: Any = len(array)
    if found.missing:
        count = (len(array) - np.isnan(array.reshape(len(array), -1)).sum(axis=0)).tolist()
    return {**plain, "mean": _finite(found.mean), "std": _finite(found.std), "count": count}


def together(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """The summary of the values of both (Chan, Golub and LeVeque 1983)."""
    lows, highs = ([each[key] for each in (one, other) if each[key] is not None] for key in ("low", "high"))
    plain = {
        "low": min(lows, default=None), "high": max(highs, default=None), "missing": one["missing"] + other["missing"],
    }  # fmt: skip
    if "mean" not in one or "mean" not in other:
        return plain
    n, m = (np.asarray(each["count"], np.float64) for each in (one, other))
    a, b, s, t = (_floats(each[key]) for key in ("mean", "std") for each in (one, other))
    both = np.maximum(n + m, 1)
    with np.errstate(invalid="ignore", over="ignore"):
        mean = a + (b - a) * (m / both)
        # Of columns without a value mean and deviation are 0, and weigh nothing.
        squares = s * s * n + t * t * m + np.square(b - a) * (n * m / both)
        std = np.sqrt(squares / both)
    count = n + m
    counted = int(count) if count.ndim == 0 else [int(each) for each in count]
    return {**plain, "mean": _finite(mean), "std": _finite(std), "count": counted}


def read_summary(entry: dict[str, Any]) -> Summary:
    """Of a column of the manifest; of what has none, an empty one."""
    found = entry.get("summary") or {"low": None, "high": None, "missing": 0}
    mean, std = (None if name not in found else _floats(found[name]) for name in ("mean", "std"))
    return Summary(found["low"], found["high"], found["missing"], mean, std)


def _floats(values: list[float | None]) -> np.ndarray:
    return np.array([np.nan if value is None else value for value in values], np.float64)


def _finite(values: np.ndarray) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in values]
