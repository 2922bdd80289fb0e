"""The run directory: who uses it, which job began it, and whether its run is over."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import secrets
import shutil
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import psutil

from ..config import Experiment, ExperimentError
from ..config.file import write_experiment
from ..environment import job_name
from ..watchman import find_agent, is_torchrun
from ..world import World
from .files import explaining, finite, replace_text

logger = logging.getLogger(__name__)

_LOCK = ".lock"
_NAMELESS = "none"
"""How torchrun names a job that has no `--rdzv-id`: others may be called so too."""
_SECONDS_TO_END = 30.0
"""Beyond `train.timeout`, for a process that has lost the others."""
_SECONDS_BETWEEN_LOOKS = 0.5
_SECONDS_TO_SHOW_UP = 1.0
"""A shared disk may show a file to other machines a moment later."""
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

    token: str
    """In the lock: by it, other machines see whether this is the directory that they have."""

    @staticmethod
    def open(path: Path, job: str = "", patience: float = 0.0) -> RunDirectory:
        """Take the directory, making it if need be.

        Args:
            job: whose processes may succeed one another, machines that are gone among them; "": of none.
            patience: seconds to wait for a process of that job, which has lost its machine or its network and will end.
                After that its lock, which a file system may keep when a machine is gone, is void.

        Raises:
            ExperimentError: if another process uses it, it may not be written to, or it holds files that are no run's
                and that a run would replace.
        """
        with explaining(path, "the run directory"):
            path.mkdir(parents=True, exist_ok=True)
            _refuse_others(path)
            token = secrets.token_hex(8)
            return RunDirectory(path, _taken(path, token, job, patience), token)

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


def open_run_directory(world: World, path: Path, fresh: bool, elastic: bool = False) -> RunDirectory | None:
    """Rank 0 takes the run directory and gets it; the other ranks get None, or its error.

    Args:
        fresh: remove what an earlier run left, on every machine; but not when torchrun or a batch system restarts the
            ranks of the very job that began anew. That is told by who would start the ranks again: `job.json` has it.
        elastic: machines come and go. So the process that has the directory may be one of this job's that has lost the
            others, and is waited for; and the first rank of each machine that does not see rank 0's directory takes
            its own, so that the run can go on from there without the machine of rank 0.
    """
    what = "opening the run directory"
    opened: list[RunDirectory] = []
    job, patience = (job_name(), world.timeout + _SECONDS_TO_END) if elastic else ("", 0.0)
    world.lead(lambda: opened.append(RunDirectory.open(path, job, patience)), what)
    if elastic and world.num_machines > 1:
        token = world.broadcast(opened[0].token if opened else "", what)

        def own() -> None:
            if not world.is_lead and not _shows(path, token):
                opened.append(RunDirectory.open(path, job, patience))

        world.lead(own, what, per_machine=True)
    if fresh:
        try:
            _begin_anew(world, path, what)
        except BaseException:
            for run in opened:
                run.close()
            raise
    return opened[0] if opened else None


def _begin_anew(world: World, path: Path, what: str) -> None:
    """Remove what an earlier run left; every rank calls it."""
    launchers = set(world.gather(_launcher(), what))
    known = set(_recorded(path))
    # A machine that joins later has what an earlier run left there, while the others are well on with this one.
    world.lead(lambda: None if launchers & known else _clear(path), what, per_machine=True)
    world.barrier(what)
    world.lead(lambda: None if launchers & known else _refuse_left(path), what, per_machine=True)
    known = set().union(*world.gather(_recorded(path) if world.leads_machine else [], what))
    world.lead(lambda: _record(path, launchers | known), what, per_machine=True)


def _shows(path: Path, token: str) -> bool:
    """Whether this machine sees the directory that rank 0 has, by what it has written there."""
    deadline = time.monotonic() + _SECONDS_TO_SHOW_UP
    while True:
        try:
            os.listdir(path)  # makes a network file system look again
            if token in (path / _LOCK).read_text(encoding="utf-8"):
                return True
        except OSError:
            pass
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.2)


def _is_of_a_run(path: Path) -> bool:
    return (path / _LOCK).exists() or (path / _JOB).exists()


def _refuse_others(path: Path) -> None:
    """The user's own experiment.yaml is not to be written over, nor are checkpoints of another program removed."""
    if not _is_of_a_run(path) and (others := [name for name in _OURS if (path / name).exists()]):
        raise ExperimentError(
            f"the run directory {path} holds {', '.join(others)}, which no run here has made; a run would replace what "
            f"is there. Choose another run_dir, or move them away (a copy of a run needs its {_LOCK}, even if empty)"
        )


def _taken(path: Path, token: str, job: str, patience: float) -> TextIO:
    """The lock of the directory, taken."""
    deadline, told = time.monotonic() + patience, False
    while True:
        lock = open(path / _LOCK, "a+", encoding="utf-8")  # noqa: SIM115 (stays open while the run lasts)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError as error:
            if error.errno in (errno.ENOTSUP, errno.ENOSYS, errno.ENOLCK):
                logger.warning("%s is on a file system without locks: make sure that no two runs use it at once", path)
                break
            lock.seek(0)
            holder, _, others = lock.read().partition("\n")
            lock.close()
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            ours = bool(job) and f"job {job}\n" in others
            if not ours or (time.monotonic() >= deadline and job == _NAMELESS):
                raise ExperimentError(
                    f"the run directory {path} is in use by {holder.strip() or 'another process'}. Wait for it to end "
                    "or stop it, or give this run another name or run_dir"
                    + (f"; if its machine is gone, remove {path / _LOCK}" if ours else "")
                ) from error
            if time.monotonic() >= deadline:
                logger.warning("%s is taken over from %s, which this job has lost", path, holder)
                (path / _LOCK).unlink(missing_ok=True)
            elif not told:
                logger.warning("waiting for %s, which this job has lost, to let go of %s", holder, path)
                told = True
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    lock.seek(0)
    lock.truncate()
    lock.write(f"process {os.getpid()} on {socket.gethostname()}\n{token}\njob {job}\n")
    lock.flush()
    return lock


def _launcher() -> str:
    """What started this process and would start it again: a batch job that says its name, the torchrun agent (perhaps
    by way of a script), else the process itself."""
    if job := os.environ.get("DISTTRAIN_JOB"):
        return job
    agent = find_agent()
    process = psutil.Process(agent if is_torchrun(agent) else None)
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


def _refuse_left(path: Path) -> None:
    """What could not be removed would be gone on from: checkpoints of another user, say of root in a container."""
    left = [name for name in _OURS if os.path.lexists(path / name)]
    if left and _is_of_a_run(path):
        raise ExperimentError(
            f"--fresh could not remove {', '.join(left)} in the run directory {path}: do they belong to another user? "
            "Remove them, or choose another run_dir"
        )
