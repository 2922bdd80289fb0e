"""`disttrain submit local` with real agents and ranks: Ctrl-C leaves a checkpoint and nothing else, and it goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from disttrain.train.checkpoint import CheckpointDirectory

from ..agents import REPOSITORY, marked, run_machines
from ..preloaded import Preloaded
from .test_launch import EXPERIMENT, losses

OVERRIDES = ["sampling.batch_size=24", "train.epochs=4", "train.checkpoint.every_steps=1", "train.log_every=1"]
NODES = ["launch.nodes=2"]


def begin(directory: Path, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "disttrain", "submit", "local", "tiny.yaml", *NODES, *OVERRIDES, *more]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "DISTTRAIN_TEST_MARKER": str(directory)}
    return subprocess.Popen(
        command, cwd=directory, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "tiny.yaml").write_text(EXPERIMENT)
    return tmp_path


def test_it_is_stopped_and_goes_on(server: Preloaded, place: Path) -> None:
    run = place / "runs" / "tiny"
    checkpoints = CheckpointDirectory(run / "checkpoints")
    first = begin(place)
    while not (run / "checkpoints").exists() or not checkpoints.names():
        assert first.poll() is None, first.communicate()
        time.sleep(0.05)
    first.send_signal(signal.SIGINT)
    said, _ = first.communicate(timeout=150)
    assert first.returncode == 130, said
    assert marked(str(place)) == []
    assert not (run / "DONE").exists()
    newest = checkpoints.names()[0]

    again = begin(place)
    said, _ = again.communicate(timeout=300)
    assert again.returncode == 0, said
    assert marked(str(place)) == []
    assert json.loads((run / "summary.json").read_text())["nodes"] == 2
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [e["step"] for e in events if e["event"] == "resume"] == [int(newest.removeprefix("step-"))]

    program = ["tiny.yaml", *NODES, *OVERRIDES, "name=straight"]
    for ended in run_machines(program, place, machines=2, server=server, timeout=400):
        assert ended.code == 0, ended.err
    assert losses(place, "tiny") == losses(place, "straight")


def test_a_sweep_is_a_job_for_each_point(place: Path) -> None:
    grid = ["sweep.grid.seed=[0,1]", "train.epochs=1"]
    job = begin(place, *grid)
    said, _ = job.communicate(timeout=400)
    assert job.returncode == 0, said
    assert "2 of 2 points done" in said
    summaries = [json.loads((place / "runs" / "tiny" / f"seed={k}" / "summary.json").read_text()) for k in range(2)]
    assert [summary["nodes"] for summary in summaries] == [2, 2]
    assert marked(str(place)) == []


def test_a_mistake_is_said_once_before_anything_starts(place: Path) -> None:
    job = begin(place, "train.epochs=0", "--dry-run")
    said, _ = job.communicate(timeout=60)
    assert job.returncode == 2
    assert said.count("expected a whole number above 0, got 0") == 1


def test_the_template_runs_by_itself(place: Path) -> None:
    """As it stands, in a folder with an experiment.yaml; here, one that is refused by all ranks together."""
    (place / "experiment.yaml").write_text(EXPERIMENT.replace("epochs: 2", "epochs: 0"))
    environment = {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "DISTTRAIN_TEST_MARKER": str(place),
    }
    done = subprocess.run(
        ["bash", str(REPOSITORY / "launch" / "local.sh")],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.count("expected a whole number above 0, got 0") == 1, done.stderr
    assert marked(str(place)) == []
