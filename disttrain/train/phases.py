"""Where the time goes, phase by phase, without making the device wait for the clock."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import torch

STEP_PHASES = ("wait_for_batch", "to_device", "forward", "backward", "optimizer")
"""Of one training step; `backward` holds the all-reduce of the gradients."""


class PhaseClock:
    """Adds up seconds per phase.

    `wall` times what the process itself does or waits for. `on_device` times what the device does: the same thing on
    the CPU; on CUDA two events are recorded in the current stream and read once they have passed (`collect`).
    """

    def __init__(self, device: torch.device) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.current = "start"
        """The phase that runs now, for messages."""
        self._cuda = device.type == "cuda"
        self._pending: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def wall(self, phase: str) -> Iterator[None]:
        self.current = phase
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] += time.perf_counter() - start

    @contextmanager
    def on_device(self, phase: str) -> Iterator[None]:
        if not self._cuda:
            with self.wall(phase):
                yield
            return
        self.current = phase
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        yield
        end.record()
        self._pending.append((phase, start, end))

    def collect(self) -> None:
        """Add the device phases that have ended. Waits for nothing: call it right after the device was waited for."""
        running = []
        for phase, start, end in self._pending:
            if end.query():
                self.seconds[phase] += start.elapsed_time(end) / 1000.0
            else:
                running.append((phase, start, end))
        self._pending = running
