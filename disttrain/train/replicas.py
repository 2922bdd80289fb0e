"""Replicas of the model on all ranks: DistributedDataParallel, set up so that resuming is exact."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from .contract import lacks_attribute

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
        try:
            return self.model(batch)
        except AttributeError as error:
            if (refusal := lacks_attribute(error, batch)) is None:
                raise
            raise refusal from error


def replicate(model: nn.Module) -> DistributedDataParallel:
    """Wrap the model for training: the gradients that `backward` leaves are the mean over all ranks.

    DDP sorts its buckets anew after the first backward pass. With three ranks or more, the order in which gloo adds up
    an element depends on its place in its bucket, so a resumed run would differ in the last bits from one that was not
    interrupted. An empty pass settles the buckets before the first step, here and after every resume alike.

    Buffers are left alone; see `RunningStatistics`.
    """
    options: dict[str, Any] = {_SYNC_BUFFERS: False, "gradient_as_bucket_view": True}
    replica = DistributedDataParallel(_Shell(model), **options)
    replica(None).backward()
    replica.zero_grad(set_to_none=True)
    return replica
