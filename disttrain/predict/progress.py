"""What rank 0 shows while it predicts: a bar in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich import progress
from rich.console import Console

from ..config.counted import counted

_SECONDS_BETWEEN_LINES = 20.0


class Progress:
    """Silent where `shown` is false (all ranks but the first)."""

    def __init__(self, shown: bool, num_rows: int, what: str = "node") -> None:
        self._console = Console(file=sys.stdout, soft_wrap=True, highlight=False)
        self._shown, self._num_rows, self._what = shown, num_rows, what
        self._bar: progress.Progress | None = None
        self._last_line = time.monotonic()

    def __enter__(self) -> Progress:
        if self._shown and self._console.is_terminal:
            self._bar = progress.Progress(
                progress.TextColumn("predicting"),
                progress.BarColumn(),
                progress.MofNCompleteColumn(),
                progress.TimeRemainingColumn(),
                console=self._console,
                transient=True,
            )
            self._task = self._bar.add_task("", total=self._num_rows)
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def steps(self, rows: int) -> None:
        """So many are done."""
        if self._bar is not None:
            self._bar.update(self._task, completed=rows)
        elif self._shown and time.monotonic() - self._last_line > _SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            self._console.print(f"predicted {rows:,} of {counted(self._num_rows, self._what)}", markup=False)
