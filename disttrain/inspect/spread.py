"""How a lot of numbers is spread, in a few of them."""

from __future__ import annotations

from typing import Any

import numpy as np

_SHARES = (50, 90, 99)


def spread(numbers: np.ndarray) -> dict[str, Any]:
    """Mean, largest, percentiles, and the share of zeros, of whole numbers from 0 on.

    Percentiles are exact values that occur: at least so many percent are at most this.
    """
    if not len(numbers):
        return {"mean": 0.0, "max": 0, "zero": 0.0, **{f"p{share}": 0 for share in _SHARES}}
    ordered = np.sort(numbers)
    places = [max(0, -(-share * len(ordered) // 100) - 1) for share in _SHARES]
    return {
        "mean": float(ordered.mean(dtype=np.float64)),
        "max": int(ordered[-1]),
        "zero": float(np.searchsorted(ordered, 1) / len(ordered)),
        **{f"p{share}": int(ordered[place]) for share, place in zip(_SHARES, places)},
    }
