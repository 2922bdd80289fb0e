"""How far a run has come, read from its directory while it may be being written."""

from __future__ import annotations

import json
import os
import re
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..config.yaml import YamlError, parse_yaml

_TAIL = 1 << 20


@dataclass(frozen=True)
class Progress:
    """What the files of a run directory say; None where they say nothing."""

    directory: Path
    exists: bool = False
    done: bool = False
    process: str | None = None
    """That uses it now; known only of processes on this machine."""
    elsewhere: bool = False
    """The last process that used it was on another machine."""
    ended: str | None = None
    """The newest event: "stop" after an orderly end."""
    epoch: int | None = None
    epochs: int | None = None
    step: int | None = None
    time: float | None = None
    """Of the newest figures, in seconds since 1970."""
    loss: float | None = None
    """Of the newest training steps."""
    val: dict[str, float | None] = field(default_factory=dict)
    test: dict[str, float | None] = field(default_factory=dict)
    checkpoint: str | None = None
    """The newest whole one."""
    summary: dict[str, Any] = field(default_factory=dict)

    @property
    def began(self) -> bool:
        return self.step is not None or self.checkpoint is not None


def read_progress(directory: Path) -> Progress:
    """Look into a run directory. Nothing in it is changed or locked; what is torn or missing is left out."""
    if not os.path.isdir(directory):  # which does not raise where it must not look, unlike that of Path
        return Progress(directory)
    summary = _summary(directory / "summary.json")
    done = os.path.exists(directory / "DONE") and bool(summary)
    lines = _newest_lines(directory / "metrics.jsonl")
    last = lines[-1] if lines else {}
    loss = next((line.get("loss") for line in reversed(lines) if line.get("event") in ("train", "epoch")), None)
    val = next((line["metrics"] for line in reversed(lines) if _is_evaluation(line, "val")), {})
    process, elsewhere = _user(directory / ".lock")
    return Progress(
        directory,
        exists=True,
        done=done,
        process=process,
        elsewhere=elsewhere,
        ended=last.get("event"),
        epoch=last.get("epoch"),
        epochs=_epochs(directory / "experiment.yaml"),
        step=last.get("step"),
        time=last.get("time"),
        loss=loss,
        val=summary["val"] if done else val,
        test=summary["test"] if done else {},
        checkpoint=_newest_checkpoint(directory / "checkpoints"),
        summary=summary if done else {},
    )


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _summary(path: Path) -> dict[str, Any]:
    found = _json(path)
    return found if all(isinstance(found.get(key), dict) for key in ("val", "test", "seconds")) else {}


def _newest_lines(path: Path) -> list[dict[str, Any]]:
    """Of the figures, the newest; all of them where the newest do not go back to an evaluation."""
    for most in (_TAIL, None):
        lines, whole = _lines(path, most)
        if whole or any(_is_evaluation(line, "val") for line in lines):
            return lines
    return []


def _lines(path: Path, most: int | None) -> tuple[list[dict[str, Any]], bool]:
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            start = max(0, size - most) if most else 0
            file.seek(start)
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return [], True
    found = []
    for line in text.splitlines():
        try:
            value = json.loads(line)  # the first may begin, and the last may end, in its middle
        except ValueError:
            continue
        if isinstance(value, dict) and _is_ours(value):
            found.append(value)
    return found, start == 0


def _is_ours(line: dict[str, Any]) -> bool:
    """Whether a run has written it: other programs have files of that name too."""
    number = (int, float)
    whole = "event" in line and all(isinstance(line.get(key), number) for key in ("epoch", "step", "time"))
    return whole and (line.get("loss") is None or isinstance(line["loss"], number))


def _is_evaluation(line: dict[str, Any], split: str) -> bool:
    return line.get("event") == "evaluation" and line.get("split") == split and isinstance(line.get("metrics"), dict)


def _epochs(path: Path) -> int | None:
    try:
        return int(parse_yaml(path.read_text(encoding="utf-8")).value["train"]["epochs"])
    except (OSError, YamlError, UnicodeDecodeError, KeyError, TypeError, ValueError):
        return None


def _newest_checkpoint(directory: Path) -> str | None:
    try:
        names = [entry.name for entry in directory.iterdir() if (entry / "manifest.json").is_file()]
    except OSError:
        return None
    return max((name for name in names if name.startswith("step-")), default=None)


def _user(lock: Path) -> tuple[str | None, bool]:
    """Who holds the run directory, if it lives on this machine; and whether it was on another one.

    The lock itself is not tried: a run that starts at that moment would be refused. The kernel tells whether it is
    held, on most file systems, also by processes in containers, which know themselves by other numbers.
    """
    try:
        found = re.match(r"process (\d+) on (\S+)", lock.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return None, False
    if found is None:
        return None, False
    if _is_held(lock):
        return f"process {found[1]} on {found[2]}", False
    if found[2] != socket.gethostname():
        return None, True
    try:
        command = Path("/proc", found[1], "cmdline").read_bytes()
    except OSError:
        return None, False
    return (f"process {found[1]} on {found[2]}" if b"disttrain" in command else None), False


def _is_held(lock: Path) -> bool:
    try:
        file, held = os.stat(lock), Path("/proc/locks").read_text(encoding="utf-8")
    except OSError:
        return False
    return f" {os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}:{file.st_ino} " in held


def ago(moment: float) -> str:
    """How long ago a time was, as people say it."""
    seconds = max(0.0, time.time() - moment)
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"
