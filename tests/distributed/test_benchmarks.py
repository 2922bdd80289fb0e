"""The benchmarks run; on graphs of a twentieth, which measure nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.agents import REPOSITORY


@pytest.mark.parametrize(
    "script",
    [
        ["sampling.py", "--quick", "--against", "none"],
        ["sampling_kinds.py", "--quick"],
        ["training.py", "--quick"],
        ["exits.py", "--runs", "5"],
        ["graph_collections.py", "--quick"],
        ["partition.py", "examples/own.yaml", "--parts", "2", "--cut-only"],
        ["partition.py", "--quick"],
    ],
)
def test_benchmark(script: list[str]) -> None:
    run_script(script)


@pytest.mark.parametrize(("config", "data"), [("aifb", "rdf-aifb"), ("pyg_imdb", "pyg-raw-imdb")])
def test_accuracy_benchmark(config: str, data: str, real_data: Callable[[str], Path]) -> None:
    printed = run_script(["accuracy.py", config, "--quick", "--data", str(real_data(data))])
    assert f"| {config} | " in printed


def test_cross_validation_benchmark(real_data: Callable[[str], Path], tmp_path: Path) -> None:
    """A fold: as many runs as it says, none again, and the setting is the one that validation prefers."""
    script = [
        "cross_validation.py",
        "tu_mutag",
        "--quick",
        "--data",
        str(real_data("tu-MUTAG")),
        "--work",
        str(tmp_path),
    ]
    printed = run_script(script)
    assert "| tu_mutag | 1 | 1 | " in printed
    done = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs" / "tu_mutag").rglob("summary.json")}
    assert len(done) == 4 + 3
    assert run_script(script) == printed
    assert all(path.stat().st_mtime_ns == when for path, when in done.items())
    assert not list((tmp_path / "runs").rglob("*.distcp")), "checkpoints of finished runs are removed"


def test_molecules_benchmark(real_data: Callable[[str], Path], tmp_path: Path) -> None:
    script = [
        "molecules.py",
        "qm9_gap",
        "--seeds",
        "1",
        "--data",
        str(real_data("qm9-subset")),
        "--work",
        str(tmp_path),
    ]
    assert "| qm9_gap | mae | " in run_script([*script, "--set", "train.max_steps=2"])


def run_script(script: list[str]) -> str:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(REPOSITORY / "benchmarks" / script[0]), *script[1:]]
    ended = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=500)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout
