"""What Slurm says of a job: where it stands in the queue, or how it ended."""

from __future__ import annotations

import os
import re
import subprocess
from typing import NamedTuple

from ..config import ExperimentError

SECONDS = 60.0
"""So long, Slurm may take for an answer."""

_WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SUSPENDED")
_RUNNING = ("RUNNING", "COMPLETING", "STOPPED")


class JobState(NamedTuple):
    state: str
    """Slurm's own word: PENDING, RUNNING, COMPLETED, FAILED, ..."""
    reason: str
    """Why it waits or ended."""

    @property
    def waits(self) -> bool:
        return self.state in _WAITING

    @property
    def runs(self) -> bool:
        return self.state in _RUNNING


def job_words(job: str) -> list[str]:
    """Words of a command of Slurm about a job, which may be one of another cluster: `12;cluster`, as sbatch says."""
    number, _, cluster = job.partition(";")
    return [*([f"--clusters={cluster}"] if cluster else []), number]


FORGOTTEN = JobState("", "Slurm has forgotten it")
"""As it does minutes after the end."""


def job_states(job: str) -> dict[int | None, JobState] | None:
    """By the number of the task in its array; a job that is none has the one of None. What Slurm has forgotten is
    missing. None: Slurm does not answer."""
    *cluster, number = job_words(job)
    try:
        done = subprocess.run(
            ["scontrol", *cluster, "--oneliner", "show", "job", number],
            env={**os.environ, "SLURM_BITSTR_LEN": "0"},  # or else of many tasks the last ones are dots
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode != 0:
        return {} if "Invalid job id" in done.stderr else None
    return parse_jobs(done.stdout)


def parse_jobs(text: str) -> dict[int | None, JobState]:
    """Read what `scontrol --oneliner show job` prints, a line for each job or part of an array."""
    found: dict[int | None, JobState] = {}
    for line in text.splitlines():
        state = re.search(r" JobState=(\S+)", line)
        if state is None:
            continue
        reason = re.search(r" Reason=(\S+)", line)
        task = re.search(r" ArrayTaskId=([\d,:\-]+)", line)
        entry = JobState(state[1], "" if reason is None or reason[1] == "None" else reason[1])
        for number in [None] if task is None else _numbers(task[1]):
            found[number] = entry
    return found


def _numbers(ranges: str) -> list[int]:
    """`0-2,5,10-14:2` as `[0, 1, 2, 5, 10, 12, 14]`."""
    found: list[int] = []
    for first, last, step in re.findall(r"(\d+)(?:-(\d+))?(?::(\d+))?", ranges):
        found += range(int(first), int(last or first) + 1, int(step or 1))
    return found


def refuse_second(job: str, directory: str) -> None:
    """Raises:
    ExperimentError: an earlier job of the same run directory waits or runs.
    """
    alive = [state for state in (job_states(job) or {}).values() if state.waits or state.runs]
    if alive:
        raise ExperimentError(
            f"job {job} of the run directory {directory} is {alive[0].state}: end it with "
            f"`scancel {' '.join(job_words(job))}`, or give "
            "this run another name or run_dir"
        )
