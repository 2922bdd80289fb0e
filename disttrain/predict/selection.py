"""Which nodes are predicted: splits, those without a label, or a list; in groups whose batches are their own."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..config import ExperimentError
from ..config.check import nearest
from ..graph.graph import Graph
from ..sampling import Seeds, gather_seeds
from ..world import World

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


def select(
    world: World, graph: Graph, task: Any, splits: tuple[str, ...], rows: np.ndarray | None, time: str | None = None
) -> dict[str, Seeds]:
    """The nodes to predict, by group; no node is in two. Every rank calls it.

    Args:
        task: its splits, and what it takes for a label.
        splits: see `parse_splits`.
        rows: of the user's data, ascending, instead of splits: one group, `ids`.
        time: the attribute that holds their times, where these matter.

    Cost: a pass over masks or labels, and 16 bytes a node that is chosen to every rank.
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

    groups: dict[str, Seeds] = {}
    names = ("ids",) if rows is not None else splits
    for number, name in enumerate(names):

        def chosen(low: int, high: int, name: str = name, before: tuple[str, ...] = names[:number]) -> np.ndarray:
            mine = member(name, low, high)
            for other in before:
                mine = mine & ~member(other, low, high)
            return np.flatnonzero(mine)

        groups[name] = gather_seeds(world, graph, node_type, chosen, f"gathering the nodes of {name}", time)
    if not any(len(seeds) for seeds in groups.values()):
        raise ExperimentError(f'--split: there is no node of type "{node_type}" in {", ".join(names)}')
    return groups
