"""Sweeps here: each point is a process, a failing one does not stop the others, finished ones are not repeated."""

from __future__ import annotations

import csv
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from disttrain import cli
from disttrain.config import ExperimentError
from disttrain.config.file import read_points
from disttrain.launch.command import one_run

from ..agents import REPOSITORY
from .test_launch import EXPERIMENT

SWEEP = """\
sweep:
  points:
    - {seed: 1, train.epochs: 1}
    - {seed: 2, task.label: nothing}
    - {seed: 3}
"""


def sweep(directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "disttrain", *words]
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=300)


def results(directory: Path) -> dict[str, dict[str, str]]:
    with open(directory / "runs" / "tiny" / "results.csv", encoding="utf-8") as file:
        return {row["point"]: row for row in csv.DictReader(file)}


def test_a_failing_point_does_not_stop_the_others_and_finished_ones_are_not_repeated(tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_text(EXPERIMENT + SWEEP)
    ran = sweep(tmp_path, "sweep.yaml")
    assert ran.returncode == 1
    assert (
        "label=nothing failed with exit code 2" in ran.stderr and "1 point failed: seed=2,label=nothing" in ran.stderr
    )
    assert "2 of 3 points done, sorted by val accuracy" in ran.stdout
    states = {name: row["state"] for name, row in results(tmp_path).items()}
    assert states == {"seed=1,epochs=1": "done", "seed=3": "done", "seed=2,label=nothing": "failed"}
    assert list(states)[-1] == "seed=2,label=nothing"
    before = {
        name: (tmp_path / "runs" / "tiny" / name / "metrics.jsonl").stat().st_mtime_ns for name in list(states)[:2]
    }

    (tmp_path / "sweep.yaml").write_text(EXPERIMENT + SWEEP.replace(", task.label: nothing", ""))
    ran = sweep(tmp_path, "sweep.yaml")
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.count("is done") == 2
    assert {row["state"] for row in results(tmp_path).values()} == {"done"}
    after = {name: (tmp_path / "runs" / "tiny" / name / "metrics.jsonl").stat().st_mtime_ns for name in before}
    assert after == before


def test_torchrun_starts_points_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sweep.yaml").write_text(EXPERIMENT + SWEEP)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ExperimentError, match="start each of its points with --point NAME"):
        one_run(None)("sweep.yaml", [])
    assert one_run("2")("sweep.yaml", []).seed == 3


def test_the_commands_of_the_page_on_sweeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """In their order, with fewer and shorter points."""
    (tmp_path / "configs").symlink_to(REPOSITORY / "configs")
    monkeypatch.chdir(tmp_path)
    page = (REPOSITORY / "docs" / "clusters.md").read_text(encoding="utf-8").partition("\n## Sweeps")[2]
    lines = re.findall(r"^    (python .*)$", page.partition("\n## ")[0], re.MULTILINE)
    assert len(lines) == 5
    assert len(read_points("configs/sweep.yaml")) == 12
    for line in lines:
        words = shlex.split(line)[3:]
        if words[-1] == "configs/sweep.yaml":
            fewer = ["sweep.grid={seed: [0]}", "sweep.points=[{model.conv: sage}]", "train.epochs=1", "train.threads=1"]
            ran = sweep(tmp_path, *words, *fewer)
            assert ran.returncode == 0, ran.stderr
            assert "1 of 1 points done" in ran.stdout
        elif "--point" in words:
            assert cli.run([*words, "train.epochs=1", "train.threads=1"]) == 0
            assert (tmp_path / "runs" / "sweep" / "conv=sage,hidden=32,seed=0" / "DONE").exists()
        else:
            assert cli.run(words) == 0
    said = capfd.readouterr().out
    assert "#SBATCH --array=0-11" in said and "#SBATCH --array=0-2" in said
    assert "points=(" in said
