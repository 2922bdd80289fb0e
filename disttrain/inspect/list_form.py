"""What the graphs of a collection would take as a list of PyG's objects, by making some of them."""

from __future__ import annotations

import ctypes
import gc
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from ..collection.collated import Collated

_MOST_GRAPHS = 20_000
_MOST_ROWS = 20_000_000
"""Nodes and edges of those that are made."""
_AT_ONCE = 256


def list_facts(collated: Collated, sizes: np.ndarray, seed: int = 0) -> dict[str, Any]:
    """Bytes of a list of `Data`, measured on graphs that are drawn at random and scaled by the size of all.

    Each has tensors of its own, as graphs have that a program makes one after the other. What is measured is the memory
    that the process takes from the system for them, with objects and the allocator's rounding; so that of a few small
    graphs is off by some hundred KiB.

    Args:
        sizes: int64 [num_graphs], nodes and edges of each.

    Returns:
        `graphs`: how many were made; `bytes`: of all graphs; None where the system does not say (only Linux does).

    Cost: time and memory of so many graphs, at most 20,000.
    """
    rng = np.random.default_rng(seed)
    chosen = np.arange(len(collated))
    if len(chosen) > _MOST_GRAPHS or sizes.sum() > _MOST_ROWS:
        order = rng.permutation(len(chosen))[:_MOST_GRAPHS]
        chosen = np.sort(order[: max(1, int(np.searchsorted(np.cumsum(sizes[order]), _MOST_ROWS)))])
    before = anonymous_bytes()
    graphs: list[Any] = []
    for at in range(0, len(chosen), _AT_ONCE):
        graphs += [graph.clone() for graph in collated.batch(chosen[at : at + _AT_ONCE]).to_data_list()]
    after = anonymous_bytes()
    if before is None or after is None:
        return {"graphs": len(graphs), "bytes": None}
    # The objects are as many as the graphs, the tensors as large as their rows; so both count, half and half.
    share = (len(chosen) / len(collated) + sizes[chosen].sum() / max(1, sizes.sum())) / 2
    return {"graphs": len(graphs), "bytes": int(max(0, after - before) / share)}


def anonymous_bytes() -> int | None:
    """Memory of this process that is no file's, with what it has given back to its allocator returned to the system."""
    if sys.platform != "linux":
        return None
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    with suppress(OSError):
        for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
            if line.startswith("Anonymous:"):
                return int(line.split()[1]) * 1024
    return None
