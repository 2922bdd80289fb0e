"""`make test-gpu`: `check_gpu.py` in a process of its own; it prints losses, seeds per second and shares of phases."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.check_gpu import reason_to_skip

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.gpu
def test_training_on_a_gpu() -> None:
    if skip := reason_to_skip():
        pytest.skip(skip)
    subprocess.run([sys.executable, "-m", "tests.gpu.check_gpu"], cwd=REPOSITORY, check=True, timeout=600)


def test_the_check_itself_runs_without_one() -> None:
    """Its steps on a small graph on the CPU, so that what a GPU machine finds are not its own mistakes."""
    command = [sys.executable, "-m", "tests.gpu.check_gpu", "--device", "cpu", "--quick"]
    subprocess.run(command, cwd=REPOSITORY, check=True, timeout=600)
