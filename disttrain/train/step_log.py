"""How fast the steps are, and where their time goes: from one line of `metrics.jsonl` to the next."""

from __future__ import annotations

import time
from typing import Any

from .phases import STEP_PHASES, PhaseClock


class StepLog:
    """Of a trainer's steps, whose phases the clock adds up."""

    def __init__(self, clock: PhaseClock) -> None:
        self._clock, self._since = clock, time.perf_counter()
        self._phases = dict.fromkeys(STEP_PHASES, 0.0)

    def leave_out(self) -> None:
        """What has taken time since the last line was no step."""
        self._since = time.perf_counter()

    def figures(self, steps: int, num_seeds: int) -> dict[str, Any]:
        """Since the last line. The clock's phase `train` gets the seconds.

        Args:
            num_seeds: over all ranks.
        """
        now = time.perf_counter()
        seconds, self._since = now - self._since, now
        self._clock.seconds["train"] += seconds
        phases = {phase: self._clock.seconds[phase] for phase in STEP_PHASES}
        per_step = {phase: (phases[phase] - self._phases[phase]) / steps for phase in STEP_PHASES}
        self._phases = phases
        return {"seeds_per_second": num_seeds / max(1e-9, seconds), "steps": steps, "step_seconds": per_step}
