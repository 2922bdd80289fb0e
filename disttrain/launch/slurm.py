"""Submitting to Slurm: the script, sbatch, and what sbatch says."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from ..config import ExperimentError
from ..config.file import SweepPoint, read_points
from .note import SCRIPT, Note, read_note, write_note
from .progress import read_progress
from .queue import job_words, refuse_second
from .request import Request
from .results import note_sweep
from .slurm_script import render

SECONDS = 120.0
"""So long, Slurm may take for an answer."""


def submit(request: Request) -> int:
    """Render the script; with `dry_run` print it, else write it into the run directory and give it to sbatch.

    Raises:
        ExperimentError: there is no sbatch here, it refused the script, or a job of this run directory is still there.
    """
    experiment, directory = request.experiment, request.run_directory
    points: list[SweepPoint] = []
    if experiment.sweep is not None:
        points = read_points(request.path, request.overrides)
    left = [p for p in points if request.fresh or not read_progress(Path(p.experiment.directory)).done]
    if points and not left:
        print(f"all {len(points)} points of {directory} are done: nothing to submit (--fresh begins anew)")
        return 0
    script = render(
        experiment,
        request.path,
        request.overrides,
        fresh=request.fresh,
        point=request.point,
        points={point.number: point.name for point in left} if points else None,
    )
    if request.dry_run:
        sys.stdout.write(script)
        return 0
    if shutil.which("sbatch") is None:
        raise ExperimentError(
            "there is no sbatch here: submit from a login node of the cluster, or see the script with --dry-run"
        )
    note = read_note(directory)
    if note is not None and note.backend == "slurm":
        refuse_second(note.job, str(directory))
    try:
        directory.mkdir(parents=True, exist_ok=True)
        file = directory / SCRIPT
        file.write_text(script, encoding="utf-8")
    except OSError as error:
        raise ExperimentError(
            f"the run directory {directory} cannot be written to: {error}; choose another run_dir"
        ) from error
    if points:
        note_sweep(experiment, points)
    job = _sbatch(str(file))
    *cluster, number = job_words(job)
    output = str(directory / (f"slurm-{number}_*.out" if points else f"slurm-{number}.out"))
    try:
        write_note(directory, Note("slurm", job, output))
    except OSError as error:
        print(f"warning: the job is not noted in {directory}, for `disttrain status`: {error}", file=sys.stderr)
    print(f"job {job}" + (f": {len(left)} of {len(points)} points of a sweep" if points else ""))
    for command, what in (
        (["squeue", *cluster, "--job", number], "where it stands in the queue"),
        (["disttrain", "status", str(directory)], "how far it is"),
        (["tail", "-F", output], "what it says"),
        (
            ["touch", f"{directory}/STOP"],
            f"stop it, with a checkpoint; submit it again{' without --fresh' * request.fresh} to go on",
        ),
        (["scancel", *cluster, number], "end it"),
    ):
        if not (points and command[0] == "touch"):
            print(f"  {shlex.join(command) if '*' not in command[-1] else _with_pattern(command)}  # {what}")
    if experiment.launch.slurm.cpus is None and not any("exclusive" in line for line in experiment.launch.slurm.lines):
        print("note: launch.slurm.cpus is null, and most clusters give a node's task one core then", file=sys.stderr)
    return 0


def _with_pattern(command: list[str]) -> str:
    """The last word names several files by a `*`, which the shell is to see."""
    return shlex.join(command[:-1]) + " " + "*".join(shlex.quote(part) for part in command[-1].split("*"))


def _sbatch(script: str) -> str:
    """The number of the job, and after a semicolon its cluster, if that is another one."""
    try:
        done = subprocess.run(
            ["sbatch", "--parsable", "--", script], capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ExperimentError(
            f"sbatch did not answer within {SECONDS:g} s: is Slurm's controller well? (sinfo)"
        ) from error
    if done.returncode != 0:
        raise ExperimentError(f"sbatch refused the job:\n{(done.stderr or done.stdout).strip()}{_hint(done.stderr)}")
    sys.stderr.write(done.stderr)
    found = re.findall(r"^(\d+(?:;\S+)?)\s*$", done.stdout, re.MULTILINE)  # a site's plugins may say more before it
    if not found:
        raise ExperimentError(
            f"sbatch has taken the job, but did not say its number (see `squeue --me`):\n{done.stdout.strip()}"
        )
    return found[-1]


def _hint(said: str) -> str:
    """What may help, for what sbatch says."""
    if "partition" in said:
        try:
            done = subprocess.run(
                ["sinfo", "-h", "-o", "%R"], capture_output=True, text=True, timeout=SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return ""
        names = ", ".join(done.stdout.split())
        return f"\nlaunch.slurm.partition: there are {names}" if names else ""
    if "node" in said or "configuration is not available" in said:
        return "\nlaunch.nodes and launch.slurm (cpus, gpus, memory) ask for more than the partition has; see sinfo"
    return ""
