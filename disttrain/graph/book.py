"""Who owns which id: ranges, so that the whole book is P + 1 integers a type."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


def first_part(machine: int, parts: int, num_machines: int) -> int:
    """The first of the consecutive partitions that a machine hosts; `machine == num_machines` gives `parts`."""
    return machine * parts // num_machines


@dataclass(frozen=True)
class PartitionBook:
    """Owner `p` has the ids `bounds[p]` to `bounds[p + 1] - 1`."""

    bounds: np.ndarray
    """int64 [P + 1], ascending from 0 to the number of ids."""

    @property
    def num_owners(self) -> int:
        return len(self.bounds) - 1

    @property
    def num_ids(self) -> int:
        return int(self.bounds[-1])

    def owners(self, ids: np.ndarray) -> np.ndarray:
        """Owner of each id, int64, of the same shape. Cost: log2(P) a id."""
        return np.searchsorted(self.bounds, ids, side="right") - 1

    def range_of(self, owner: int) -> tuple[int, int]:
        """First id of an owner, and the one after its last."""
        return int(self.bounds[owner]), int(self.bounds[owner + 1])

    def by_machine(self, num_machines: int) -> PartitionBook:
        """The book of machines instead of partitions: machine m hosts partitions floor(mP/N) to floor((m+1)P/N)."""
        first = [first_part(machine, self.num_owners, num_machines) for machine in range(num_machines + 1)]
        return PartitionBook(self.bounds[first])
