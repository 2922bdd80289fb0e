"""What rank 0 shows while it trains: a bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from .memory_monitor import Memory

_SECONDS_BETWEEN_LINES = 20.0


class TrainingProgress:
    """Shows steps, loss, and of all ranks seeds per second and memory. Silent where `shown` is false."""

    def __init__(self, shown: bool, num_epochs: int, console: Console | None = None, seeds: str = "seeds") -> None:
        self.console = console or Console(file=sys.stdout, soft_wrap=True, highlight=False)
        self._shown = shown
        self._num_epochs, self._seeds = num_epochs, seeds
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._last_line = time.monotonic()
        self._epoch, self._num_steps = 0, 0

    def __enter__(self) -> TrainingProgress:
        if self._shown and self.console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[figures]}"),
                TimeRemainingColumn(),
                console=self.console,
            )
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Take the bar away; `say` goes on."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def epoch(self, epoch: int, num_steps: int, done: int) -> None:
        """An epoch begins (0-based), at its step `done`."""
        self._epoch, self._num_steps = epoch, num_steps
        if self._bar is not None:
            if self._task is not None:
                self._bar.remove_task(self._task)
            name = f"epoch {epoch + 1}/{self._num_epochs}"
            self._task = self._bar.add_task(name, total=num_steps, completed=done, figures="")

    def steps(self, done: int, loss: float, seeds_per_second: float, memory: Memory | None = None) -> None:
        """Figures of the latest steps; `done` of this epoch are behind."""
        if not self._shown:
            return
        figures = f"loss {loss:.4f}  {seeds_per_second:,.0f} {self._seeds}/s{f'  {memory.shown()}' if memory else ''}"
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, figures=figures)
        elif time.monotonic() - self._last_line > _SECONDS_BETWEEN_LINES:
            self.say(f"epoch {self._epoch + 1}/{self._num_epochs}  step {done}/{self._num_steps}  {figures}")

    def say(self, text: str) -> None:
        if self._shown:
            self._last_line = time.monotonic()
            self.console.print(text, markup=False)
