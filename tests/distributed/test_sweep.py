"""Every command that docs/clusters.md shows of sweeps is run, in their order, with fewer and shorter points."""

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
from disttrain.config.file import read_points

from ..agents import REPOSITORY

FEWER = ["sweep.points=[{model.conv: sage}, {task.label: nothing}]", "sweep.grid={seed: [0]}"]
SHORT = ["train.epochs=1", "train.threads=1"]


def test_the_commands_of_the_page_on_sweeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "configs").symlink_to(REPOSITORY / "configs")
    monkeypatch.chdir(tmp_path)
    page = (REPOSITORY / "docs" / "clusters.md").read_text(encoding="utf-8").partition("\n## Sweeps")[2]
    lines = re.findall(r"^    (python .*)$", page.partition("\n## ")[0], re.MULTILINE)
    assert len(lines) == 6
    assert len(read_points("configs/sweep.yaml")) == 12
    for line in lines:
        words = shlex.split(line)[3:]
        if words == ["configs/sweep.yaml"]:
            sweep(words)
        else:
            assert cli.run([*words, *(SHORT if "--point" in words else [])]) == 0
    said = capfd.readouterr().out
    assert "#SBATCH --array=0-11" in said and "#SBATCH --array=0-2" in said
    assert "1 of 12 points done" in said
    assert (tmp_path / "runs" / "sweep" / "conv=sage,hidden=32,seed=0" / "DONE").exists()


def sweep(words: list[str]) -> None:
    """Each point is a process, and that one of them fails is the end of that one only."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "disttrain", *words, *FEWER, *SHORT]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 1
    assert "label=nothing,seed=0 failed with exit code 2" in ran.stderr
    assert "1 of 2 points done, sorted by val accuracy" in ran.stdout
    with open("runs/sweep/results.csv", encoding="utf-8") as file:
        states = {row["point"]: row["state"] for row in csv.DictReader(file)}
    assert states == {"conv=sage,seed=0": "done", "label=nothing,seed=0": "failed"}
