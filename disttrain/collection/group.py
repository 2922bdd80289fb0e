"""Which ranks divide which graphs of a split among themselves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Group:
    """Consecutive places of a split, and the consecutive ranks that take them."""

    first_place: int
    num_places: int
    first_rank: int
    num_ranks: int

    @property
    def end(self) -> int:
        return self.first_place + self.num_places


def all_together(num_places: int, num_ranks: int) -> list[Group]:
    return [Group(0, num_places, 0, num_ranks)]


def by_machine(ids: np.ndarray, bounds: np.ndarray, ranks_per_machine: int) -> list[Group]:
    """Each machine's ranks take what their machine holds.

    Args:
        ids: int64, ascending: the graphs of a split.
        bounds: int64 [num_machines + 1]: machine m holds the graphs from `bounds[m]` to before `bounds[m + 1]`.
    """
    ends = np.searchsorted(ids, bounds).tolist()
    return [
        Group(first, last - first, machine * ranks_per_machine, ranks_per_machine)
        for machine, (first, last) in enumerate(zip(ends, ends[1:]))
    ]
