"""`disttrain status RUN_DIR`: whether a run waits, runs, was stopped, failed or is done, and its newest figures."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from ..config import ExperimentError
from ..config.check import nearest
from .note import SCRIPT, Note, read_note
from .progress import Progress, ago, read_progress
from .queue import FORGOTTEN, JobState, job_states
from .results import LOCK, read_failures, read_sweep, results_table, write_results

NOT_STARTED, QUEUED, RUNNING, STOPPED, FAILED, DONE = "not started", "queued", "running", "stopped", "failed", "done"

_NO_FIGURES = 300.0
"""Seconds without new figures after which a run of which nothing else is known is not taken to be running."""

_LOCK_SECONDS = 10.0
"""For the table of a sweep to be written by another process."""


def status(directory: Path, as_json: bool) -> int:
    """Print how a run, or every run of a sweep, does.

    Raises:
        ExperimentError: there is no such directory, it may not be read, or no run has used it.
    """
    try:
        os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        raise ExperimentError(
            f"{directory}: there is no such directory; expected that of a run or of a sweep{nearest_run(directory)}"
        ) from None
    except OSError as error:
        raise ExperimentError(f"{directory} cannot be looked into: {error.strerror}") from None
    note = read_note(directory)
    sweep = read_sweep(directory)
    jobs = job_states(note.job) if note is not None and note.backend == "slurm" else None
    if sweep is not None:
        rows = sweep_rows(directory, sweep, note, jobs)
        if as_json:
            print(json.dumps({"sweep": str(directory), "points": rows}, indent=2))
        else:
            results_table(directory, sweep, rows)
        return 0
    progress = read_progress(directory)
    prepared = ("experiment.yaml", SCRIPT)  # the script alone: sbatch has refused it
    if note is None and not progress.began and not any(os.path.exists(directory / name) for name in prepared):
        raise ExperimentError(
            f"{directory} holds no run: expected the run directory of an experiment (run_dir); a run writes nothing "
            "there before it has read and divided its data"
        )
    found = facts(progress, note, None if jobs is None else jobs.get(None, FORGOTTEN))
    print(
        json.dumps({"directory": str(directory), **found}, indent=2) if as_json else "\n".join(_lines(directory, found))
    )
    return 0


def nearest_run(directory: Path) -> str:
    """End of a message about a run's directory that is not there: the one beside it whose name is closest, if any."""
    with suppress(OSError):
        there = [other.name for other in directory.parent.iterdir() if (other / "experiment.yaml").exists()]
        if close := nearest(directory.name, there):
            return f"; did you mean {directory.with_name(close)}?"
    return ""


def sweep_rows(
    directory: Path, sweep: Mapping[str, Any], note: Note | None, jobs: Mapping[int | None, JobState] | None
) -> list[dict[str, Any]]:
    """The facts of all points, best first; `results.csv` is written from them."""
    with _alone_with(directory / LOCK):  # else, of two runs that end at once, the slower writer may know less
        failed, rows = read_failures(directory), []
        for number, point in enumerate(sweep["points"]):
            job = None if jobs is None else jobs.get(number, FORGOTTEN)
            row = {**point, **facts(read_progress(directory / point["point"]), note, job)}
            if row["state"] == NOT_STARTED and point["point"] in failed:
                row["state"] = FAILED
            rows.append(row)
        return write_results(directory, sweep, rows)


@contextmanager
def _alone_with(file: Path) -> Iterator[None]:
    """As far as can be: without, where it is somebody else's sweep, on a file system without locks, and where who has
    it does not let go."""
    with ExitStack() as held:
        deadline = time.monotonic() + _LOCK_SECONDS
        with suppress(OSError):
            lock = held.enter_context(open(file, "a"))
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        break
                    time.sleep(0.05)
        yield


def facts(progress: Progress, note: Note | None, job: JobState | None) -> dict[str, Any]:
    """What `--json` prints of one run."""
    return {
        "state": state_of(progress, note, job),
        "job": note.job if note is not None else None,
        "job_state": job.state if job is not None else None,
        "reason": job.reason if job is not None else None,
        "epoch": progress.epoch,
        "epochs": progress.epochs,
        "step": progress.step,
        "loss": progress.loss,
        "val": progress.val,
        "test": progress.test,
        "time": progress.time,
        "checkpoint": progress.checkpoint,
        "best_metric": progress.summary.get("best_metric"),
        "best_epoch": progress.summary.get("best_epoch"),
        "seconds": progress.summary.get("seconds", {}).get("total"),
        "output": note.output if note is not None else None,
    }


def state_of(progress: Progress, note: Note | None, job: JobState | None) -> str:
    """One word for it. The batch system knows best what waits and runs; the files know what is over."""
    if job is not None and job.waits and progress.process is None:
        return QUEUED
    if progress.done:  # what goes on with a finished run removes the mark first
        return DONE
    if (job is not None and job.runs) or progress.process is not None:
        return RUNNING
    if progress.ended == "stop":
        return STOPPED
    if not progress.began:
        return NOT_STARTED if job is None else FAILED  # the job is over, and there is nothing
    fresh = progress.time is not None and time.time() - progress.time < _NO_FIGURES
    return RUNNING if job in (None, FORGOTTEN) and progress.elsewhere and fresh else FAILED


def _lines(directory: Path, found: Mapping[str, Any]) -> list[str]:
    state, job = found["state"], found["job"]
    text = f"{directory}: {state}"
    if state == STOPPED:
        text += ", and can be resumed"
    elif state == FAILED:
        text += f", and can go on from {found['checkpoint']}" if found["checkpoint"] else ""
    lines = [text]
    if job is not None:
        said = ", ".join(word for word in (found["job_state"], found["reason"]) if word)
        lines.append(f"  job {job}" + (f": {said}" if said else ""))
    if found["step"] is not None:
        of = f"/{found['epochs']}" if found["epochs"] else ""
        lines.append(f"  epoch {found['epoch']}{of}, step {found['step']}, {ago(found['time'])}")
    if found["loss"] is not None:
        lines.append(f"  training loss {found['loss']:.4f}")
    for split in ("val", "test"):
        if found[split]:
            shown = "  ".join(f"{name} {_figure(value)}" for name, value in found[split].items())
            best = f" (epoch {found['best_epoch']}, the best)" if split == "val" and found["best_epoch"] else ""
            lines.append(f"  {split}: {shown}{best}")
    if found["output"] is not None:
        lines.append(f"  output: {found['output']}")
    return lines


def _figure(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, (int, float)) else "-"
