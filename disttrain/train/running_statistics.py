"""The running means and variances of batch norms, which each share of a step follows by itself between two averages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..roster import Roster
from ..world import World

Kept = dict[int, list[Tensor]]
"""Share -> its running means and variances, in the order of the model's buffers, then its numbers of batches."""


def running_statistics(model: nn.Module) -> list[Tensor]:
    """The running means and variances of batch norms."""
    return [
        buffer for name, buffer in model.named_buffers() if name.rpartition(".")[2] in ("running_mean", "running_var")
    ]


class RunningStatistics:
    """Of a model in training. The seeds of a share are those of a partition, and so the statistics of shares differ.

    A rank with one share has them in the model. One that takes over those of missing machines changes them over with
    each batch: so the averages are what they are when nobody is missing.
    """

    def __init__(self, model: nn.Module, roster: Roster, rounds: int, world: World) -> None:
        """Args:
        rounds: batches that a rank has in each step. With one, be it of all its shares, the model has its statistics.
        """
        self._running, self.num_shares, self._world = running_statistics(model), roster.num_shares, world
        self._shares = roster.shares(world.rank)
        self._counts = [b for name, b in model.named_buffers() if name.rpartition(".")[2] == "num_batches_tracked"]
        self._changes_over = bool(self._running) and rounds > 1
        self._average: list[Tensor] | None = None
        self._kept: Kept = {}
        """Since the last average."""

    @contextmanager
    def of(self, share: int) -> Iterator[None]:
        """Around the passes of a batch.

        Args:
            share: -1: the batch is empty, and nobody's.
        """
        if not self._changes_over:
            yield
            return
        if self._average is None:
            self._average = self._now()
        self._set(self._kept.get(share, self._average))
        yield
        if share >= 0:
            self._kept[share] = self._now()

    def share(self) -> None:
        """Average them over all shares, of which a batch of several is one. Costs one all-reduce, nothing for models
        without any; every rank calls it."""
        if not self._running or self.num_shares == 1:
            return
        if self._changes_over and not self._kept:  # nothing has happened since
            return
        mine = list(self._kept.values()) if self._changes_over else [self._now()]
        running = [torch.cat([buffer.reshape(-1) for buffer in share[: len(self._running)]]) for share in mine]
        flat = torch.cat([torch.stack(running).sum(dim=0), running[0].new_tensor([len(mine)])])
        with self._world.waiting("averaging the running statistics of batch norms"):
            dist.all_reduce(flat)
        flat = flat[:-1] / flat[-1]
        sizes = [buffer.numel() for buffer in self._running]
        means = [mean.view_as(buffer) for buffer, mean in zip(self._running, flat.split(sizes), strict=True)]
        self._set([*means, *mine[-1][len(self._running) :]])
        self._average, self._kept = None, {}

    def of_shares(self) -> Kept:
        """Those of this rank's shares, as far as they differ from the average; without any: none."""
        if self._changes_over or not self._running:
            return dict(self._kept)
        return {self._shares[0]: self._now()}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """What `of_shares` gave of all ranks, as `"<share>/<number>" -> tensor`; each rank takes its own."""
        self._average = self._now()
        for share in self._shares:
            found = [tensors[f"{share}/{n}"] for n in range(len(self._average)) if f"{share}/{n}" in tensors]
            if found:
                self._kept[share] = found
                self._set(found)
        if not self._changes_over:
            self._average, self._kept = None, {}

    def copy(self) -> tuple[list[Tensor], list[Tensor] | None, Kept]:
        return self._now(), self._average, dict(self._kept)

    def put_back(self, copied: tuple[list[Tensor], list[Tensor] | None, Kept]) -> None:
        """What `copy` gave."""
        self._set(copied[0])
        self._average, self._kept = copied[1], dict(copied[2])

    def _now(self) -> list[Tensor]:
        return [buffer.clone() for buffer in (*self._running, *self._counts)]

    def _set(self, values: list[Tensor]) -> None:
        with torch.no_grad():
            for buffer, value in zip((*self._running, *self._counts), values, strict=True):
                buffer.copy_(value)
