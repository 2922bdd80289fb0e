"""The shares of an epoch in the order in which the ranks that are there get through them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..roster import Roster
from .seeds import Shares

_NOTHING = np.empty(0, np.int64)


@dataclass(frozen=True)
class Rounds:
    """Step after step, and in each round after round; one round a step where no machine is missing."""

    shares: Shares
    roster: Roster

    def __len__(self) -> int:
        return len(self.shares) * self.roster.rounds

    @cached_property
    def _in_round(self) -> list[list[int | None]]:
        return [self.roster.in_round(number) for number in range(self.roster.rounds)]

    def step(self, at: int) -> int:
        return at // self.roster.rounds

    def closes_step(self, at: int) -> bool:
        """Whether it is the last round of its step."""
        return (at + 1) % self.roster.rounds == 0

    def share(self, at: int, rank: int) -> int:
        """The number of the rank's share in its step; -1: it has had all its shares of the step."""
        number = self._in_round[at % self.roster.rounds][rank]
        return -1 if number is None else number

    def of(self, at: int, rank: int) -> np.ndarray:
        """Places in the split; none where the rank has had all its shares of the step."""
        number = self._in_round[at % self.roster.rounds][rank]
        return _NOTHING if number is None else self.shares.of(self.step(at), number)

    def num_seeds(self, at: int) -> int:
        """Over all ranks."""
        return sum(
            len(self.shares.of(self.step(at), number))
            for number in self._in_round[at % self.roster.rounds]
            if number is not None
        )
