"""Batch normalisation over the rows of all ranks, as if one rank had them: what a run arrives at does not depend on how
many ranks it is divided among.

torch's `SyncBatchNorm` is for GPUs only, and PyG's `BatchNorm` would leave it out on a rank with fewer than two rows,
for which the others would wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
import torch_geometric.nn
from torch import Tensor, nn

from ..world import World


def share_batch_norms(model: nn.Module, world: World) -> None:
    """Replace PyG's `BatchNorm` in a model, with the same parameters and names; nothing on one rank.

    Every rank then has to run the model equally often in training, also on empty batches. Costs an exchange in the
    forward pass and one in the backward pass, of each: they cannot be put together without another result, since what a
    norm normalises comes out of the one before, and what it passes back out of the one after.
    """
    if world.size == 1:
        return
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, torch_geometric.nn.BatchNorm):
                setattr(module, name, SharedBatchNorm(child, world))


@contextmanager
def each_by_itself(model: nn.Module) -> Iterator[None]:
    """While the block runs no rank waits for another: each normalises by the rows that it has."""
    shared = [module for module in model.modules() if isinstance(module, SharedBatchNorm)]
    for module in shared:
        module.world = None
    try:
        yield
    finally:
        for module in shared:
            module.world = module.others


class SharedBatchNorm(nn.Module):
    """A `BatchNorm` of PyG whose mean and variance are of the rows of all ranks."""

    def __init__(self, own: torch_geometric.nn.BatchNorm, world: World) -> None:
        super().__init__()
        self.module = own.module
        self.others, self.world = world, world

    others: World
    world: World | None

    def forward(self, x: Tensor) -> Tensor:
        """x: [N, width]; N may be 0. With fewer than two rows on all ranks together, the running statistics serve."""
        norm = self.module
        if not self.training or self.world is None:
            few = self.training and x.size(0) <= 1
            return nn.functional.batch_norm(
                x, norm.running_mean, norm.running_var, norm.weight, norm.bias, self.training and not few,
                norm.momentum or 0.0, norm.eps,
            )  # fmt: skip
        count, mean, squares = _gathered(x.detach(), self.world)
        if count <= 1:
            return nn.functional.batch_norm(
                x, norm.running_mean, norm.running_var, norm.weight, norm.bias, False, 0.0, norm.eps
            )
        self._follow(count, mean, squares)
        spread = (squares / count + norm.eps).rsqrt()
        return _Normalised.apply(x, norm.weight, norm.bias, mean.float(), spread.float(), count, self.world)

    def _follow(self, count: float, mean: Tensor, squares: Tensor) -> None:
        """As `BatchNorm1d` does."""
        norm: Any = self.module
        with torch.no_grad():
            norm.num_batches_tracked.add_(1)
            norm.running_mean.lerp_(mean.to(norm.running_mean.dtype), norm.momentum)
            norm.running_var.lerp_((squares / (count - 1)).to(norm.running_var.dtype), norm.momentum)


def _gathered(x: Tensor, world: World) -> tuple[float, Tensor, Tensor]:
    """Rows, mean and sum of squared deviations [width] over all ranks, float64; put together as Chan, Golub and LeVeque
    do (1979), in the order of the ranks."""
    values = x.double()
    mean = values.sum(dim=0) / max(len(values), 1)
    mine = torch.cat([mean.new_full((1,), len(values)), mean, (values - mean).square().sum(dim=0)])
    parts = [torch.empty_like(mine) for _ in range(world.size)]
    with world.waiting("sharing the statistics of a batch norm"):
        dist.all_gather(parts, mine)
    counts, means, squares = torch.stack(parts).split([1, x.size(1), x.size(1)], dim=1)
    count = counts.sum()
    mean = (counts * means).sum(dim=0) / count.clamp(min=1)
    return float(count), mean, squares.sum(dim=0) + (counts * (means - mean).square()).sum(dim=0)


class _Normalised(torch.autograd.Function):
    """`(x - mean) * spread * weight + bias`, where mean and spread are of all ranks' x."""

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, spread: Tensor, count: float, world: World
    ) -> Tensor:
        even = (x.float() - mean) * spread
        ctx.save_for_backward(even, weight, spread)
        ctx.count, ctx.world = count, world
        return (even * weight + bias).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        even, weight, spread = ctx.saved_tensors
        wide = gradient.float()
        sums = torch.stack([wide.sum(dim=0), (wide * even).sum(dim=0)])
        of_all = sums.clone()
        dist.all_reduce(of_all)  # the trainer explains it when it fails
        inner = wide - (of_all[0] + even * of_all[1]) / ctx.count
        return (inner * spread * weight).to(gradient.dtype), sums[1], sums[0], None, None, None, None
