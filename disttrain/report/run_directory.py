"""The run directory: who uses it, which job began it, and whether its run is over."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import psutil

from ..config import Experiment, ExperimentError
from ..config.file import write_experiment
from ..world import World
from .files import explaining, finite, replace_text

logger = logging.getLogger(__name__)

_LOCK = ".lock"
_JOB = "job.json"
_OURS = (
    "checkpoints",
    "predictions",
    "tensorboard",
    "metrics.jsonl",
    "summary.json",
    "report.html",
    "experiment.yaml",
    "DONE",
)


@dataclass(frozen=True)
class RunDirectory:
    """A run directory that this process has to itself until `close`."""

    path: Path
    _lock: TextIO

    @staticmethod
    def open(path: Path) -> RunDirectory:
        """Take the directory, making it if need be.

        Raises:
            ExperimentError: if another process uses it, it may not be written to, or it holds files that are no run's
                and that a run would replace.
        """
        with explaining(path, "the run directory"):
            path.mkdir(parents=True, exist_ok=True)
            _refuse_others(path)
            lock = open(path / _LOCK, "a+", encoding="utf-8")  # noqa: SIM115 (stays open while the run lasts)
            try:
                _take(lock, path)
            except BaseException:
                lock.close()
                raise
        return RunDirectory(path, lock)

    def write_experiment(self, experiment: Experiment) -> None:
        with explaining(self.path, "experiment.yaml"):
            write_experiment(experiment, self.path / "experiment.yaml")

    @property
    def is_done(self) -> bool:
        return (self.path / "DONE").exists() and (self.path / "summary.json").exists()

    def mark_done(self) -> None:
        with explaining(self.path, "DONE"):
            replace_text(self.path / "DONE", "")

    def unmark_done(self) -> None:
        (self.path / "DONE").unlink(missing_ok=True)

    def write_summary(self, summary: dict[str, Any]) -> None:
        with explaining(self.path, "summary.json"):
            replace_text(self.path / "summary.json", json.dumps(finite(summary), indent=2) + "\n")

    def read_summary(self) -> dict[str, Any]:
        return json.loads((self.path / "summary.json").read_text(encoding="utf-8"))

    def close(self) -> None:
        self._lock.close()  # and with it goes the lock


def open_run_directory(world: World, path: Path, fresh: bool) -> RunDirectory | None:
    """Rank 0 takes the run directory and gets it; the other ranks get None, or its error.

    Args:
        fresh: remove what an earlier run left, on every machine; but not when torchrun restarts the ranks of the very
            job that began anew. That is told by the processes that would start the ranks again: `job.json` lists them.
    """
    what = "opening the run directory"
    opened: list[RunDirectory] = []
    world.lead(lambda: opened.append(RunDirectory.open(path)), what)
    if fresh:
        launchers = set(world.gather(_launcher(), what))
        known = set().union(*world.gather(_recorded(path) if world.leads_machine else [], what))
        if not launchers & known:
            world.lead(lambda: _clear(path), what, per_machine=True)
            world.barrier(what)
            known = set()
        world.lead(lambda: _record(path, launchers | known), what, per_machine=True)
    return opened[0] if opened else None


def _is_of_a_run(path: Path) -> bool:
    return (path / _LOCK).exists() or (path / _JOB).exists()


def _refuse_others(path: Path) -> None:
    """The user's own experiment.yaml is not to be written over, nor are checkpoints of another program removed."""
    if not _is_of_a_run(path) and (others := [name for name in _OURS if (path / name).exists()]):
        raise ExperimentError(
            f"the run directory {path} holds {', '.join(others)}, which no run here has made; a run would replace what "
            f"is there. Choose another run_dir, or move them away (a copy of a run needs its {_LOCK}, even if empty)"
        )


def _take(lock: TextIO, path: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            lock.seek(0)
            holder = lock.read().strip() or "another process"
            raise ExperimentError(
                f"the run directory {path} is in use by {holder}. Wait for it to end or stop it, or give this run "
                "another name or run_dir"
            ) from error
        if error.errno not in (errno.ENOTSUP, errno.ENOSYS, errno.ENOLCK):
            raise
        logger.warning("%s is on a file system without locks: make sure that no two runs use it at once", path)
    lock.seek(0)
    lock.truncate()
    lock.write(f"process {os.getpid()} on {socket.gethostname()}\n")
    lock.flush()


def _launcher() -> str:
    """What started this process and would start it again: the torchrun agent, else the process itself."""
    process = psutil.Process()
    parent = process.parent()
    if parent is not None:
        try:
            command = " ".join(parent.cmdline())
        except psutil.Error:
            command = ""
        if "torchrun" in command or "torch.distributed.run" in command:
            process = parent
    return f"{socket.gethostname()} {process.pid} {process.create_time():.2f}"


def _recorded(path: Path) -> list[str]:
    try:
        return json.loads((path / _JOB).read_text(encoding="utf-8"))["launchers"]
    except (OSError, ValueError, KeyError):
        return []


def _record(path: Path, launchers: set[str]) -> None:
    with explaining(path, "the run directory"):
        path.mkdir(parents=True, exist_ok=True)
        replace_text(path / _JOB, json.dumps({"launchers": sorted(launchers)}) + "\n")


def _clear(path: Path) -> None:
    if not _is_of_a_run(path):
        return
    with explaining(path, "the run directory"):
        for name in _OURS:
            entry = path / name
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)  # machines that share it may all be at it
            else:
                entry.unlink(missing_ok=True)
