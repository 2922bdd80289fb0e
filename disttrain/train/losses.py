"""The losses of the latest steps, until they are added up over ranks: nothing waits for the device in between."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..world import World


@dataclass(frozen=True)
class SummedLosses:
    total: float
    """Over seeds of all ranks, of the steps whose loss is finite."""
    num_seeds: int
    """Of those steps."""
    steps: int
    num_bad: int
    """Losses, over ranks, that are not finite."""
    stop: bool
    """Whether a rank was asked to stop."""
    first_bad: int | None
    """How many steps ago this rank's first such loss was."""


class StepLosses:
    def __init__(self) -> None:
        self._losses: list[Tensor] = []
        self._num_seeds: list[int] = []

    def add(self, loss: Tensor, num_seeds: int) -> None:
        """Take one step's loss, a scalar summed over this rank's seeds."""
        self._losses.append(loss.detach())
        self._num_seeds.append(num_seeds)

    def __len__(self) -> int:
        return len(self._losses)

    def sum_up(self, world: World, stop: bool, what: str) -> SummedLosses:
        """Add up over ranks and begin anew. Waits for the device, and for the other ranks; one all-reduce."""
        losses = torch.stack(self._losses).double().cpu()
        num_seeds = torch.tensor(self._num_seeds, dtype=torch.float64)
        finite = torch.isfinite(losses)
        mine = [losses[finite].sum().item(), num_seeds[finite].sum().item(), (~finite).sum().item(), float(stop)]
        total, seeds, num_bad, stops = world.sum(torch.tensor(mine, dtype=torch.float64), what).tolist()
        first_bad = None if finite.all() else len(losses) - int(torch.nonzero(~finite)[0])
        self._losses, self._num_seeds = [], []
        return SummedLosses(total, int(seeds), len(losses), int(num_bad), stops > 0, first_bad)
