"""When to stop: no improvement for too long, or somebody asked for it."""

from __future__ import annotations

import math
import signal
from dataclasses import asdict, dataclass
from types import FrameType
from typing import Any, Literal

from ..refusal import Leave


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


class Interrupted(Leave):
    """The run was asked to stop (SIGTERM, SIGINT), wrote a checkpoint, and can be resumed by the same command.

    Not an exit code of success: who restarts failed jobs shall restart this one.
    """

    def __init__(self, text: str) -> None:
        super().__init__(1)
        self.text = text

    def __str__(self) -> str:
        return self.text


class StopRequest:
    """While the block runs, SIGTERM and SIGINT are remembered instead of ending the process at once.

    A second one of the same kind does what it did before. Where signals cannot be handled (not the main thread),
    nothing is changed.
    """

    _SIGNALS = (signal.SIGTERM, signal.SIGINT)

    def __init__(self) -> None:
        self.signal: int = 0
        """The one that came, 0 if none."""
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        for number in self._SIGNALS:
            try:
                self._before[number] = signal.signal(number, self._remember)
            except ValueError:  # not the main thread
                break
        return self

    def __exit__(self, *_: object) -> None:
        for number in list(self._before):
            self._restore(number)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        self._restore(number)

    def _restore(self, number: int) -> None:
        before = self._before.pop(number, None)
        if before is not None:
            signal.signal(number, before)
