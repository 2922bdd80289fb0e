"""When to stop: no improvement for too long."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal


@dataclass
class BestSoFar:
    """The best value of one validation metric, when it was reached, and how many evaluations ago."""

    metric: str
    mode: Literal["max", "min"]
    value: float | None = None
    epoch: int | None = None
    step: int | None = None
    since: int = 0
    """Evaluations without improvement."""

    def update(self, value: float, epoch: int, step: int) -> bool:
        """Take an evaluation's value; whether it is the best one so far. NaN never is."""
        before = -math.inf if self.mode == "max" else math.inf
        if self.value is not None:
            before = self.value
        if value > before if self.mode == "max" else value < before:
            self.value, self.epoch, self.step, self.since = value, epoch, step, 0
            return True
        self.since += 1
        return False

    def state(self) -> dict[str, Any]:
        return asdict(self)

    def restore(self, state: dict[str, Any]) -> None:
        self.value, self.epoch, self.step, self.since = (state[k] for k in ("value", "epoch", "step", "since"))
