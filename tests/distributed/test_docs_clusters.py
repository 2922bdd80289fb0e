"""What docs/clusters.md says about stopping is what happens."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ..agents import REPOSITORY

PAGE = (REPOSITORY / "docs" / "clusters.md").read_text(encoding="utf-8")
STOPPING = PAGE.partition("\n## Stopping, time limits, preemption\n")[2].partition("\n## ")[0]
TOUCH, DONE = (line[4:] for line in STOPPING.splitlines() if line.startswith("    "))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "examples").symlink_to(REPOSITORY / "examples")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_run_is_stopped_by_hand_and_goes_on(place: Path) -> None:
    command = [sys.executable, "-m", "disttrain", "examples/own.yaml", "train.threads=1", "train.log_every=1"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    figures = place / "runs" / "own" / "metrics.jsonl"
    with subprocess.Popen([*command, "train.epochs=100000"], env=environment, stdout=subprocess.PIPE, text=True) as run:
        try:
            while not (figures.exists() and '"train"' in figures.read_text()):
                assert run.poll() is None
                time.sleep(0.2)
            subprocess.run(TOUCH, shell=True, check=True)
            out, _ = run.communicate(timeout=300)
        finally:
            run.kill()
    assert run.returncode == 0
    stopped = re.search(
        r"^stopped by runs/own/STOP after step (\d+); a checkpoint is in runs/own/checkpoints, ", out, re.M
    )
    assert stopped, out
    assert not (place / "runs" / "own" / "STOP").exists()
    assert subprocess.run(DONE, shell=True, capture_output=True, text=True).stdout == "to be started again\n"

    steps = int(stopped[1])
    again = [*command, f"train.max_steps={steps + 2}", "train.epochs=100000"]
    ended = subprocess.run(again, env=environment, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    assert f"resuming after step {steps} " in ended.stdout
    assert subprocess.run(DONE, shell=True, capture_output=True, text=True).stdout == ""
