"""The points of a sweep one after another, with a function in the place of training."""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path

import pytest
import rich.console

from disttrain import cli
from disttrain.config import ExperimentError
from disttrain.config.file import SweepPoint, read_experiment, read_points
from disttrain.launch import results, status
from disttrain.launch.command import one_run
from disttrain.launch.results import LOCK, RESULTS
from disttrain.launch.sweep import run_points

from .test_config_sweep import EXPERIMENT

SWEEP = "sweep: {grid: {seed: [0, 1, 2]}}\n"


class Trainings:
    """Stands in for training: notes what was run, and ends each point as it is told to."""

    def __init__(self, place: Path) -> None:
        (place / "sweep.yaml").write_text(EXPERIMENT + SWEEP)
        self.run: list[str] = []
        self.codes: dict[str, int] = {}
        self.stops: set[str] = set()

    def start(self, point: SweepPoint) -> int:
        self.run.append(point.name)
        run = Path(point.experiment.directory)
        code = self.codes.get(point.name, 0)
        if code == 0 and point.name not in self.stops:
            run.mkdir(parents=True, exist_ok=True)
            scores = {"accuracy": 0.1 * (point.number + 1)}
            summary = {
                "val": scores,
                "test": scores,
                "best_epoch": 1,
                "best_metric": "accuracy",
                "seconds": {"total": 1},
            }
            (run / "summary.json").write_text(json.dumps(summary))
            (run / "DONE").touch()
        return code

    def all(self, fresh: bool = False, elsewhere: bool = False) -> int:
        self.run = []
        experiment, points = read_experiment("sweep.yaml"), read_points("sweep.yaml")
        return run_points(experiment, points, self.start, fresh=fresh, elsewhere=elsewhere)


@pytest.fixture
def trainings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trainings:
    monkeypatch.chdir(tmp_path)
    return Trainings(tmp_path)


def states() -> list[str]:
    lines = Path("runs/tiny", RESULTS).read_text().splitlines()
    return [",".join(line.split(",")[1:3]) for line in lines[1:]]


def test_a_failing_point_does_not_stop_the_others_and_finished_ones_are_not_repeated(
    trainings: Trainings, capfd: pytest.CaptureFixture[str]
) -> None:
    trainings.codes = {"seed=1": 2}
    assert trainings.all() == 1
    assert trainings.run == ["seed=0", "seed=1", "seed=2"]
    assert states() == ["2,done", "0,done", "1,failed"], "the best first"
    said = capfd.readouterr()
    assert "seed=1 failed with exit code 2" in said.err and "1 point failed: seed=1" in said.err
    assert "2 of 3 points done, sorted by val accuracy" in said.out
    assert "over 2 seeds: val accuracy 0.2000 ± 0.1414" in said.out

    trainings.codes = {}
    assert trainings.all() == 0
    assert trainings.run == ["seed=1"]
    assert states() == ["2,done", "1,done", "0,done"]
    assert (trainings.all(), trainings.run) == (0, [])
    assert trainings.all(fresh=True) == 0
    assert len(trainings.run) == 3


def test_the_table_fits_into_a_narrow_terminal(
    trainings: Trainings, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "Console", lambda **_: rich.console.Console(width=60))
    assert trainings.all() == 0
    few = capfd.readouterr().out.splitlines()
    assert "val accuracy" in few[2] and "test accuracy" in few[2] and any("0.3000" in line for line in few)
    monkeypatch.setattr(results, "_metric_names", lambda *_: ["loss", "accuracy", "macro_f1", "micro_f1"])
    assert trainings.all() == 0
    assert capfd.readouterr().out.splitlines() == few, "the others are in the file"


@pytest.mark.parametrize("code", [130, 143, 0])
def test_a_sweep_that_is_asked_to_stop_stops(trainings: Trainings, code: int) -> None:
    trainings.codes, trainings.stops = {"seed=1": code}, {"seed=1"}
    assert trainings.all() == code
    assert trainings.run == ["seed=0", "seed=1"]
    assert states() == ["0,done", "1,not started", "2,not started"]


def test_points_on_disks_that_are_not_seen_here_are_judged_by_their_exit_code(
    trainings: Trainings, capfd: pytest.CaptureFixture[str]
) -> None:
    trainings.stops, trainings.codes = {"seed=0", "seed=1", "seed=2"}, {"seed=1": 1}
    assert trainings.all(elsewhere=True) == 1
    assert trainings.run == ["seed=0", "seed=1", "seed=2"]
    said = capfd.readouterr().err
    assert said.count("ended well; runs/tiny/seed=") == 2 and "1 point failed: seed=1" in said
    Path("runs/tiny/seed=0").mkdir(exist_ok=True)
    Path("runs/tiny/seed=0/experiment.yaml").touch()  # this one is seen here
    assert (trainings.all(elsewhere=True), trainings.run) == (0, ["seed=0"])


@pytest.mark.parametrize(("fresh", "again"), [(False, "command"), (True, "command without --fresh")])
def test_a_sweep_that_was_stopped_says_what_goes_on(
    trainings: Trainings, capfd: pytest.CaptureFixture[str], fresh: bool, again: str
) -> None:
    trainings.stops = {"seed=1"}
    trainings.all(fresh)
    assert f"sweep: stopped; the same {again} goes on from here\n" in capfd.readouterr().err


def test_the_file_stop_goes_to_the_point_that_runs(trainings: Trainings) -> None:
    def start(point: SweepPoint) -> int:
        Path("runs/tiny/STOP").touch()
        asked, deadline = Path(point.experiment.directory, "STOP"), time.monotonic() + 60
        while not asked.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        asked.unlink()
        return 0

    trainings.start = start
    assert trainings.all() == 0
    assert not Path("runs/tiny/STOP").exists()


def test_a_file_that_comes_when_a_point_ends_stops_the_sweep_and_is_gone(trainings: Trainings) -> None:
    train = trainings.start

    def start(point: SweepPoint) -> int:
        code = train(point)
        Path("runs/tiny/STOP").touch()
        deadline = time.monotonic() + 60
        while Path("runs/tiny/STOP").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        return code

    trainings.start = start
    assert (trainings.all(), trainings.run) == (0, ["seed=0"])
    assert states() == ["0,done", "1,not started", "2,not started"]
    assert not list(Path("runs").rglob("STOP"))


def test_a_file_of_an_earlier_sweep_is_removed_and_says_so(
    trainings: Trainings, capfd: pytest.CaptureFixture[str]
) -> None:
    file = Path("runs/tiny/STOP")
    file.parent.mkdir(parents=True)
    file.touch()
    os.utime(file, (1e9, 1e9))
    assert (trainings.all(), trainings.run) == (0, ["seed=0", "seed=1", "seed=2"])
    assert not file.exists()
    assert f"{file} is older than this sweep: it is removed, and the sweep begins" in capfd.readouterr().err


def test_a_file_that_came_between_two_points_is_not_too_old_for_the_next(trainings: Trainings) -> None:
    train, times = trainings.start, []

    def start(point: SweepPoint) -> int:
        if point.number == 1:
            Path("runs/tiny/STOP").touch()
            os.utime("runs/tiny/STOP", (1e9, 1e9))
            asked, deadline = Path(point.experiment.directory, "STOP"), time.monotonic() + 60
            while not (asked.exists() and asked.stat().st_mtime > 1e9) and time.monotonic() < deadline:
                time.sleep(0.05)
            times.append(asked.stat().st_mtime)
        return train(point)

    trainings.start = start
    assert (trainings.all(), trainings.run) == (0, ["seed=0", "seed=1"])
    assert times[0] > 1e9


def test_a_directory_that_cannot_be_written_to_is_refused(trainings: Trainings) -> None:
    Path("file").touch()
    experiment = read_experiment("sweep.yaml", ["run_dir=file/sweep"])
    with pytest.raises(ExperimentError, match="the sweep, file/sweep, cannot be written to: Not a dir"):
        run_points(experiment, read_points("sweep.yaml", ["run_dir=file/sweep"]), trainings.start)
    assert not trainings.run


def test_who_writes_the_table_and_does_not_let_go_is_not_waited_for(
    trainings: Trainings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "_LOCK_SECONDS", 0.2)
    assert trainings.all() == 0
    Path("runs/tiny", RESULTS).unlink()
    with open(Path("runs/tiny", LOCK)) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert cli.run(["status", "runs/tiny"]) == 0
    assert states() == ["2,done", "1,done", "0,done"]


def test_the_scripts_of_several_points_are_not_taken_for_one(
    trainings: Trainings, capfd: pytest.CaptureFixture[str]
) -> None:
    for more, count in (([], 3), (["--point", "1"], 1)):
        assert cli.run(["submit", "local", "sweep.yaml", "--dry-run", *more]) == 0
        said = capfd.readouterr()
        assert said.out.count("#!/usr/bin/env bash") == count
        assert ("a script for each of 3 points" in said.err) == (count == 3)


def test_torchrun_starts_points_only(trainings: Trainings) -> None:
    with pytest.raises(ExperimentError, match="start each of its points with --point NAME"):
        one_run(None)("sweep.yaml", [])
    assert one_run("2")("sweep.yaml", []).seed == 2
