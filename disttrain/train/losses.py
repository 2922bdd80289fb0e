"""The losses of the latest steps, until they are added up over ranks: nothing waits for the device in between."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..report.memory_monitor import Memory
from ..world import World


@dataclass(frozen=True)
class SummedLosses:
    total: float
    """Over seeds of all ranks, of the steps that were taken."""
    weight: float
    """Of those seeds."""
    num_seeds: int
    steps: int
    num_bad: int
    """Steps that came to nothing, as something was not finite."""
    first_bad: int | None
    """How many steps ago the first of them was."""
    memory: Memory
    """Of all ranks."""


class StepLosses:
    def __init__(self) -> None:
        self._steps: list[Tensor] = []
        self._num_seeds: list[int] = []
        self._open: list[Tensor] = []
        self._open_seeds = 0

    def add(self, loss: Tensor, weight: Tensor | float, num_seeds: int) -> None:
        """Take one batch's loss and weight, scalars summed over this rank's seeds."""
        loss = loss.detach().double()
        weighed = weight.double() if isinstance(weight, Tensor) else loss.new_full((), weight)
        self._open.append(torch.stack([loss, weighed]))
        self._open_seeds += num_seeds

    def close(self, bad: Tensor) -> None:
        """A step is done, with the batches that were added; `bad` says that it came to nothing."""
        self._steps.append(torch.cat([torch.stack(self._open).sum(dim=0), bad.double().reshape(1)]))
        self._num_seeds.append(self._open_seeds)
        self._open, self._open_seeds = [], 0

    def __len__(self) -> int:
        return len(self._steps)

    def first_bad(self) -> int | None:
        """How many steps ago the first one was that came to nothing. Waits for the device."""
        bad = torch.nonzero(torch.stack(self._steps)[:, 2].cpu())
        return len(self) - int(bad[0]) if len(bad) else None

    def drop(self, steps: int) -> None:
        """Forget the newest ones."""
        if steps:
            del self._steps[-steps:], self._num_seeds[-steps:]

    def sum_up(self, world: World, memory: Memory, what: str) -> SummedLosses:
        """Add up over ranks and begin anew. Waits for the device, and for the other ranks; one all-reduce.

        Args:
            memory: of this rank.
        """
        loss, weight, bad = torch.stack(self._steps).cpu().unbind(dim=1)
        num_seeds = torch.tensor(self._num_seeds, dtype=torch.float64)
        taken = bad == 0
        mine = [loss[taken].sum().item(), weight[taken].sum().item(), num_seeds[taken].sum().item()]
        mine += [memory.rss, math.nan if memory.pss is None else memory.pss, memory.gpu]
        total, weights, seeds, *sizes = world.sum(torch.tensor(mine, dtype=torch.float64), what).tolist()
        first_bad = None if taken.all() else len(self) - int(torch.nonzero(~taken)[0])
        steps, self._steps, self._num_seeds = len(self), [], []
        taken_by_all = Memory(sizes[0], None if math.isnan(sizes[1]) else sizes[1], sizes[2])
        return SummedLosses(total, weights, int(seeds), steps, int((~taken).sum()), first_bad, taken_by_all)
