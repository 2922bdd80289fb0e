"""What is predicted: splits, nodes or graphs without a label, or a list; in groups whose batches are their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ..collection.graphs import Graphs
from ..config import ExperimentError
from ..config.check import nearest
from ..graph.graph import Graph

SPLITS = ("train", "val", "test")
CHOICES = ("all", *SPLITS, "unlabelled", "rest")
"""`rest`: nodes in no split, labelled or not; `all`: the three splits and the rest."""


def parse_splits(text: str) -> tuple[str, ...]:
    """`val,test` -> the groups to predict, in a fixed order.

    Raises:
        ExperimentError: a word that is none of `CHOICES`.
    """
    given = [word.strip() for word in text.split(",")]
    for word in given:
        if word not in CHOICES:
            close = nearest(word, CHOICES)
            hint = f"; did you mean `{close}`?" if close else ""
            raise ExperimentError(f"--split: expected {', '.join(CHOICES)}, or several of them, got {word!r}{hint}")
    return (*SPLITS, "rest") if "all" in given else tuple(name for name in CHOICES if name in given)


Choice = Callable[[int, int], np.ndarray]
"""(low, high), the machine's own range of nodes, -> int [num_chosen], which of it, counted from `low`."""


def choices(graph: Graph | Graphs, task: Any, splits: tuple[str, ...], rows: np.ndarray | None) -> dict[str, Choice]:
    """The nodes to predict, by group; no node is in two.

    Args:
        task: its splits, and what it takes for a label.
        splits: see `parse_splits`.
        rows: of the user's data, ascending, instead of splits: one group, `ids`.

    Cost of a choice: a pass over the machine's own masks, labels or ids.
    """
    node_type = task.node_type

    def member(name: str, low: int, high: int) -> np.ndarray:
        if rows is not None:
            original = np.asarray(graph.original_ids(node_type)[low:high])
            place = np.minimum(np.searchsorted(rows, original), max(len(rows) - 1, 0))
            return rows[place] == original if len(rows) else np.zeros(high - low, bool)
        if name == "unlabelled":
            return ~task.has_label(np.asarray(graph.node_attribute(node_type, task.label)[low:high]))
        if name == "rest":
            return ~np.logical_or.reduce([member(split, low, high) for split in SPLITS])
        return np.asarray(graph.node_attribute(node_type, task.splits[name])[low:high], dtype=bool)

    names = ("ids",) if rows is not None else splits

    def choose(number: int) -> Choice:
        def chosen(low: int, high: int) -> np.ndarray:
            mine = member(names[number], low, high)
            for other in names[:number]:
                mine = mine & ~member(other, low, high)
            return np.flatnonzero(mine)

        return chosen

    return {name: choose(number) for number, name in enumerate(names)}


def joined(parts: Iterable[Choice]) -> Choice:
    """All of several groups."""
    parts = list(parts)

    def chosen(low: int, high: int) -> np.ndarray:
        return np.sort(np.concatenate([part(low, high) for part in parts]))

    return chosen
