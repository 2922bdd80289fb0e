"""Whether the edges of graphs join nodes of their own: others would join a graph to the next one of its batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..config import ExperimentError
from .collated import Collated, named
from .ragged import Ragged


def refuse_wrong_edges(collated: Collated, numbers: Sequence[int] | np.ndarray, before: str) -> None:
    """Args:
        numbers: what messages call the graphs.
        before: how they begin.

    Raises:
        ExperimentError: as `wrong_edges`.
    """
    if (wrong := wrong_edges(collated)) is not None:
        place, text = wrong
        raise ExperimentError(f"{before}graph {numbers[place]}: {text}")


def wrong_edges(collated: Collated) -> tuple[int, str] | None:
    """The first graph whose `edge_index` is none, or names a node that it does not have, and what is wrong; None: there
    is no such graph.

    The nodes of a graph are as many as those after it are moved by in a batch (PyG's `__inc__`).
    """
    for key, store in collated.stores.items():
        column = store.columns.get("edge_index")
        if not isinstance(column, Ragged) or not len(column.slices[1:]):
            continue
        called = named(key, "edge_index")
        if column.shape != ((2,), ()) or not column.dtype.startswith(("int", "uint")):
            before, after = column.shape
            shape = [*map(str, before), "...", *map(str, after)]
            return 0, f"{called} is {column.dtype} [{', '.join(shape)}]; expected whole numbers [2, number of edges]"
        limits = _limits(column)
        if limits is None:
            continue
        for side, end in enumerate(("source", "destination")):
            nodes = column.values[:, side]
            limit = np.repeat(limits[:, side], np.diff(column.slices))
            wrong = np.flatnonzero((nodes < 0) | (nodes >= limit))
            if len(wrong):
                row = int(wrong[0])
                place = int(np.searchsorted(column.slices, row, side="right")) - 1
                return place, f"{called} has node {nodes[row]} as a {end}, of {limit[row]} nodes (from 0 on)"
    return None


def _limits(column: Ragged) -> np.ndarray | None:
    """int64 [num_graphs, 2]; None: rules of the user's own move them in another way."""
    count = len(column.slices) - 1
    if column.increments is None:
        return np.zeros((count, 2), np.int64)
    each = column.increments.reshape(count, -1)
    return np.broadcast_to(each, (count, 2)) if each.shape[1] in (1, 2) else None
