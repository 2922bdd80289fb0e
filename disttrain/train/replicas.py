"""Replicas of the model on all ranks: DistributedDataParallel, set up so that resuming is exact."""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..world import World

# Renamed in torch 2.13.
_SYNC_BUFFERS = next(
    name
    for name in ("forward_sync_buffers", "broadcast_buffers")
    if name in inspect.signature(DistributedDataParallel.__init__).parameters
)


class _Shell(nn.Module):
    """The model, or a sum that touches all its parameters in their order.

    `probe`: three numbers whose gradients go along with the model's; see `Gradient`.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.probe = nn.Parameter(torch.zeros(3, device=next(model.parameters()).device))

    def forward(self, batch: Any) -> Tensor:
        if batch is None:
            total = torch.zeros(())
            for parameter in self.parameters():
                total = total.to(parameter.device) + parameter.sum() * 0.0
            return total
        return self.model(batch)


def replicate(model: nn.Module) -> DistributedDataParallel:
    """Wrap the model for training: the gradients that `backward` leaves are the mean over all ranks.

    DDP sorts its buckets anew after the first backward pass. With three ranks or more, the order in which gloo adds up
    an element depends on its place in its bucket, so a resumed run would differ in the last bits from one that was not
    interrupted. An empty pass settles the buckets before the first step, here and after every resume alike.

    Buffers are left alone; see `mean_running_statistics`.
    """
    options: dict[str, Any] = {_SYNC_BUFFERS: False, "gradient_as_bucket_view": True}
    replica = DistributedDataParallel(_Shell(model), **options)
    replica(None).backward()
    replica.zero_grad(set_to_none=True)
    return replica


def running_statistics(model: nn.Module) -> list[Tensor]:
    """The running means and variances of batch norms."""
    return [
        buffer for name, buffer in model.named_buffers() if name.rpartition(".")[2] in ("running_mean", "running_var")
    ]


def mean_running_statistics(model: nn.Module, world: World) -> None:
    """Average the running means and variances of batch norms over all ranks.

    Each rank's own follow the seeds of its partition, which differ between ranks. Costs one all-reduce, or nothing
    for models without such buffers.
    """
    running = running_statistics(model)
    if not running or world.size == 1:
        return
    flat = torch.cat([buffer.reshape(-1) for buffer in running])
    with world.waiting("averaging the running statistics of batch norms"):
        dist.all_reduce(flat)
    flat /= world.size
    for buffer, mean in zip(running, flat.split([buffer.numel() for buffer in running]), strict=True):
        buffer.copy_(mean.view_as(buffer))
