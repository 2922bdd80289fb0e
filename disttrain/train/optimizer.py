"""Optimizers, and their state as plain named tensors."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..config import Train


def build_optimizer(model: nn.Module, train: Train) -> torch.optim.Optimizer:
    """AdamW, Adam (both in torch's fused form) or SGD over all parameters that want a gradient."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    if train.optimizer == "sgd":
        # Fused SGD makes its momentum in the first step without filling it when the scaler of fp16 skips that step.
        return torch.optim.SGD(parameters, lr=train.lr, momentum=train.momentum, weight_decay=train.weight_decay)
    kind = torch.optim.AdamW if train.optimizer == "adamw" else torch.optim.Adam
    return kind(parameters, lr=train.lr, weight_decay=train.weight_decay, fused=True)


def _names(model: nn.Module) -> list[str]:
    return [name for name, p in model.named_parameters() if p.requires_grad]


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's state as `"<parameter>/<name>" -> tensor`; empty before the first step."""
    state = optimizer.state_dict()["state"]
    return {
        f"{name}/{key}": value
        for index, name in enumerate(_names(model))
        for key, value in state.get(index, {}).items()
        if isinstance(value, Tensor)
    }


def restore_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Put back what `optimizer_tensors` gave."""
    index_of = {name: index for index, name in enumerate(_names(model))}
    state: dict[int, dict[str, Tensor]] = {}
    for full_name, value in tensors.items():
        name, _, key = full_name.rpartition("/")
        state.setdefault(index_of[name], {})[key] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
