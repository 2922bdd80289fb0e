"""`disttrain submit BACKEND EXPERIMENT.yaml`: one way to start a job for each backend."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace

from ..config import ExperimentError
from ..config.check import nearest
from ..config.file import SweepPoint, read_points
from . import docker, local, slurm
from .request import Request
from .sweep import run_points

BACKENDS: dict[str, Callable[[Request], int]] = {
    "slurm": slurm.submit,
    "docker": docker.submit,
    "local": local.submit,
}
"""Each starts what is requested, or with `dry_run` prints the very thing; returns the exit code.

Raises:
    ExperimentError: it cannot be started: what is missing here, or what the backend said.
"""


def submit(backend: str, request: Request) -> int:
    """Start a job.

    Raises:
        ExperimentError: there is no such backend, or it could not be started.
    """
    if backend not in BACKENDS:
        close = nearest(backend, BACKENDS)
        raise ExperimentError(
            f"submit: expected one of {', '.join(BACKENDS)}, got {backend!r}"
            + (f"; did you mean `{close}`?" if close else "")
        )
    start = BACKENDS[backend]
    if request.experiment.sweep is None or backend == "slurm":  # which makes a sweep an array
        return start(request)
    points = read_points(request.path, request.overrides)

    def of(point: SweepPoint) -> Request:
        return replace(request, experiment=point.experiment, point=point.name)

    if request.dry_run:
        if len(points) > 1:
            print(
                f"submit: a script for each of {len(points)} points, which `submit` runs one after another. Each ends "
                "its shell: give bash one at a time (--point NAME prints it)",
                file=sys.stderr,
            )
        return max(start(of(point)) for point in points)
    elsewhere = backend == "docker" and bool(request.experiment.launch.docker.hosts)
    return run_points(
        request.experiment, points, lambda point: start(of(point)), fresh=request.fresh, elsewhere=elsewhere
    )
