"""What one hop of neighbour sampling is about: which nodes are expanded, by which rules, and what was asked for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .fanout import Rule
from .trees import Trees


@dataclass(frozen=True)
class Frontier:
    """Nodes of one type that are to be expanded."""

    ids: np.ndarray
    trees: np.ndarray
    """The tree of each, where there are trees."""


@dataclass(frozen=True)
class Hop:
    """What one hop draws: a rule and a key for each relation, of the frontier of each node type."""

    number: int
    rules: tuple[Rule, ...]
    keys: list[np.uint64]
    trees: Trees | None
    frontier: dict[str, Frontier]


@dataclass(frozen=True)
class Asked:
    """What was asked for in a hop: ids per type and machine, and how much came back from each machine."""

    types: list[str]
    per_machine: np.ndarray
    inbox_sizes: np.ndarray

    def any_for(self, node_type: str) -> bool:
        return node_type in self.types and bool(self.per_machine[self.types.index(node_type)].any())


NO_TREES = np.empty(0, np.int32)
NOBODY = Trees(np.empty(0, np.uint64), np.empty(0, np.int64))
