"""What a run writes down as it goes: `metrics.jsonl`, one JSON object a line, and the same figures for TensorBoard."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from ..config import ExperimentError
from .files import explaining, finite
from .run_directory import RunDirectory
from .scalars import ScalarFile

_LONGEST_LINE = 1 << 20


class RunReport:
    """Appends to `metrics.jsonl` and `tensorboard/` in a run directory.

    Every line has `event`, `epoch`, `step` (optimizer steps over all epochs) and `time` (seconds since 1970), and the
    event's figures. In TensorBoard they are `train/loss`, `epoch/seconds/forward`, `val/accuracy`, ... Values that
    are not finite are written as null.
    """

    def __init__(self, directory: Path, length: int = 0, step: int = 0) -> None:
        """Args:
        length: bytes of `metrics.jsonl` to keep: as many as it had when the checkpoint was written that the run goes
            on from (0: begin anew). What came later, whole lines or torn ones, is cut off.
        step: the step that the run goes on from; TensorBoard drops what came later.
        """
        self._path, self._told = directory / "metrics.jsonl", False
        with self._explaining():
            _cut_back(self._path, length, step)
            self._lines: TextIO = open(self._path, "a", encoding="utf-8")  # noqa: SIM115
            self._scalars = ScalarFile(directory / "tensorboard", purge_step=step + 1 if step else None)

    def write(self, event: str, epoch: int, step: int, **figures: Any) -> None:
        line = {"event": event, "epoch": epoch, "step": step, "time": round(time.time(), 3), **figures}
        with self._explaining():
            self._lines.write(json.dumps(finite(line)) + "\n")
            self._lines.flush()
            scalars = (
                _scalars(figures["metrics"], figures["split"]) if "metrics" in figures else _scalars(figures, event)
            )
            self._scalars.write(scalars, step)

    def durable_length(self) -> int:
        """Make what was written safe against a crash; returns the length of `metrics.jsonl` in bytes."""
        with self._explaining():
            os.fsync(self._lines.fileno())
            return self._path.stat().st_size

    def close(self) -> None:
        """After a refusal of the disk that was raised before, it is not raised again."""
        for file in (self._lines, self._scalars):
            with suppress(OSError, ExperimentError) if self._told else self._explaining():
                file.close()

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            with explaining(self._path, "metrics.jsonl"):
                yield
        except ExperimentError:
            self._told = True
            raise


def note_stop(directory: Path) -> None:
    """Let the newest line of a run that has begun and is not over say that it was stopped. The next start cuts it off.

    Not where another process uses the directory by now, nor where the disk does not take it.
    """
    path = directory / "metrics.jsonl"
    try:
        text = _tail(path)
        newest = next(line for line in map(_parsed, reversed(text.splitlines())) if line is not None)
        if newest["event"] == "stop":
            return
        place = {name: newest[name] for name in ("epoch", "step")}
        run = RunDirectory.open(directory)
        try:
            if not run.is_done:
                line = {"event": "stop", **place, "time": round(time.time(), 3)}
                with open(path, "a", encoding="utf-8") as file:  # the last line may be torn
                    file.write(("" if text.endswith(b"\n") else "\n") + json.dumps(line) + "\n")
        finally:
            run.close()
    except (OSError, ExperimentError, KeyError, StopIteration):
        return


def _tail(path: Path) -> bytes:
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - _LONGEST_LINE))
        return file.read()


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _cut_back(path: Path, length: int, step: int) -> None:
    if length and path.exists() and _ends_line_at(path, length, step):
        os.truncate(path, length)
        return
    # Not the file that the checkpoint knew (another machine's, or the checkpoint is from a copied directory).
    kept = []
    if length and path.exists():
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True):
            try:
                if not line.endswith("\n") or json.loads(line)["step"] > step:
                    break
            except (ValueError, KeyError, TypeError):
                break
            kept.append(line)
    temporary = path.with_name(".metrics.jsonl.tmp")
    temporary.write_text("".join(kept), encoding="utf-8")
    os.replace(temporary, path)


def _ends_line_at(path: Path, length: int, step: int) -> bool:
    """Whether the first so many bytes end with a line of this step, or an earlier one."""
    if path.stat().st_size < length:
        return False
    with open(path, "rb") as file:
        file.seek(max(0, length - _LONGEST_LINE))
        before = file.read(min(length, _LONGEST_LINE))
    try:
        return before.endswith(b"\n") and json.loads(before.splitlines()[-1])["step"] <= step
    except (ValueError, KeyError, TypeError):
        return False


def _scalars(figures: dict[str, Any], group: str) -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = []
    for name, value in figures.items():
        if isinstance(value, dict):
            found += _scalars(value, f"{group}/{name}")
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            found.append((f"{group}/{name}", float(value)))
    return found
