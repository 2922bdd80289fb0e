"""The commands about jobs and sweeps: a few lines each onto a function beside them."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

from ..config import Experiment, ExperimentError
from ..config.file import read_experiment, read_point, read_points
from ..config.ignored import ignored_settings


def experiment_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("experiment", metavar="EXPERIMENT.yaml")
    parser.add_argument(
        "overrides",
        nargs="*",
        default=[],  # without it, argparse says that they are required
        metavar="key.path=value",
        help="settings laid over the file: train.lr=0.01 sampling.fanout=[15,10] model.relations.a,to,b.conv=gat",
    )


def point_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--point", metavar="NAME", help="of a sweep, only this run: its name, or its number from 0")


def one_run(point: str | None) -> Callable[[str, list[str]], Experiment]:
    """How the experiment of one run is read, which may be a point of a sweep."""

    def read(path: str, overrides: list[str]) -> Experiment:
        if point is not None:
            return read_point(path, overrides, point)
        experiment = read_experiment(path, overrides)
        if experiment.sweep is not None:
            raise ExperimentError(
                f"{path} is a sweep, and torchrun starts one run: start each of its points with --point NAME or "
                "--point NUMBER, or let `disttrain submit local` or `disttrain submit slurm` start torchrun for each"
            )
        return experiment

    return read


def run_sweep(experiment: Experiment, arguments: argparse.Namespace) -> int:
    """All points of a sweep, here, one after another."""
    from .sweep import run_here, run_points

    points = read_points(arguments.experiment, arguments.overrides)
    if arguments.dry_run:
        for point in points:
            print(f"{point.number}: {point.experiment.directory}")
        return 0
    return run_points(
        experiment,
        points,
        lambda point: run_here(arguments.experiment, arguments.overrides, point, arguments.fresh),
        fresh=arguments.fresh,
    )


def note_points(path: str, overrides: list[str]) -> Path:
    """Write down the points of a sweep, one of which is going to be run; returns the sweep's directory."""
    from .results import note_sweep

    return note_sweep(read_experiment(path, overrides), read_points(path, overrides))


def note_results(sweep: Path) -> None:
    """Write the table of a sweep anew, one point of which has been run."""
    from .sweep import show_results

    show_results(sweep, quiet=True)


def submit_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("backend", metavar="slurm|docker|local")
    experiment_arguments(parser)
    parser.add_argument("--dry-run", action="store_true", help="print what would be started; touch nothing")
    parser.add_argument("--fresh", action="store_true", help="begin anew, whatever an earlier run left")
    point_argument(parser)


def run_submit(arguments: argparse.Namespace) -> int:
    from .request import Request
    from .submit import submit

    path, overrides, point = arguments.experiment, arguments.overrides, arguments.point
    experiment = read_experiment(path, overrides) if point is None else read_point(path, overrides, point)
    if point is not None:
        point = Path(experiment.directory).name  # it may have been given by its number
    for line in ignored_settings(experiment):
        print(f"disttrain: warning: {line}", file=sys.stderr, flush=True)
    request = Request(experiment, path, tuple(overrides), fresh=arguments.fresh, dry_run=arguments.dry_run, point=point)
    return submit(arguments.backend, request)


def status_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="RUN_DIR", help="of a run or of a sweep; or its EXPERIMENT.yaml")
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def run_status(arguments: argparse.Namespace) -> int:
    from .status import status

    directory = Path(arguments.directory)
    if directory.suffix in (".yaml", ".yml") and os.path.isfile(directory):
        directory = Path(read_experiment(directory).directory)
    return status(directory, arguments.json)
