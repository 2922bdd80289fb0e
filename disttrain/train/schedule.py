"""The learning rate as a pure function of the position: nothing of it has to be saved."""

from __future__ import annotations

import math

import torch

from ..config import Scheduler, Train
from .position import Position


def set_learning_rate(optimizer: torch.optim.Optimizer, settings: Train, batches_per_epoch: int, position: Position,
                      factor: float = 1.0) -> None:  # fmt: skip
    """The rate of the step that is about to be taken.

    Args:
        batches_per_epoch: with as many machines as there are.
        factor: what it is multiplied by, whatever the step.
    """
    steps_per_epoch = -(-batches_per_epoch // settings.accumulate)
    num_steps = steps_per_epoch * settings.epochs
    if settings.max_steps is not None:
        num_steps = min(num_steps, settings.max_steps)
    factor *= learning_rate_factor(settings.scheduler, position.step + position.ahead, num_steps, steps_per_epoch)
    for group in optimizer.param_groups:
        group["lr"] = settings.lr * factor


def learning_rate_factor(scheduler: Scheduler, step: int, num_steps: int, steps_per_epoch: int) -> float:
    """What the configured learning rate is multiplied by in a step.

    Warm-up rises linearly to 1, which step `warmup_steps - 1` reaches; the decay takes place over the steps after it.

    Args:
        step: optimizer steps taken before this one, over all epochs.
        num_steps: steps of the whole run.
        steps_per_epoch: for `kind: step`.
    """
    if step < scheduler.warmup_steps:
        return (step + 1) / scheduler.warmup_steps
    if scheduler.kind == "constant":
        return 1.0
    if scheduler.kind == "step":
        return scheduler.gamma ** (step // max(1, steps_per_epoch) // scheduler.step_epochs)
    done = (step - scheduler.warmup_steps) / max(1, num_steps - 1 - scheduler.warmup_steps)
    done = min(1.0, done)
    share = 0.5 * (1.0 + math.cos(math.pi * done)) if scheduler.kind == "cosine" else 1.0 - done
    return scheduler.min_factor + (1.0 - scheduler.min_factor) * share
