"""Where a run is, and the figures it has gathered: all that a checkpoint holds besides tensors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .stop import BestSoFar


@dataclass
class MeanLoss:
    """The exact mean over seeds of all ranks."""

    total: float = 0.0
    num_seeds: int = 0

    def add(self, total: float, num_seeds: int) -> None:
        self.total += total
        self.num_seeds += num_seeds

    @property
    def mean(self) -> float:
        return self.total / self.num_seeds if self.num_seeds else float("nan")


@dataclass
class Position:
    """What was consumed (not what was prefetched). The same on all ranks whenever a checkpoint is written."""

    best: BestSoFar
    stop: BestSoFar | None
    """For early stopping."""
    epoch: int = 0
    epoch_step: int = 0
    """Steps of this epoch that are done."""
    step: int = 0
    """Steps of all epochs that are done."""
    epoch_loss: MeanLoss = field(default_factory=MeanLoss)
    best_evaluation: dict[str, Any] | None = None
    """`metrics` and `num_evaluated` of the best epoch's validation."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Per phase, of the attempts before this one."""

    def state(self) -> dict[str, Any]:
        """JSON."""
        return {
            "epoch": self.epoch,
            "epoch_step": self.epoch_step,
            "step": self.step,
            "epoch_loss": [self.epoch_loss.total, self.epoch_loss.num_seeds],
            "best": self.best.state(),
            "stop": self.stop.state() if self.stop else None,
            "best_evaluation": self.best_evaluation,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.epoch, self.epoch_step, self.step = state["epoch"], state["epoch_step"], state["step"]
        self.epoch_loss = MeanLoss(*state["epoch_loss"])
        self.best.restore(state["best"])
        if self.stop is not None and state["stop"] is not None:
            self.stop.restore(state["stop"])
        self.best_evaluation = state["best_evaluation"]
        self.seconds = state["seconds"]
