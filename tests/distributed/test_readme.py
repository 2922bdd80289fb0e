"""Every command that README.md shows is run: here, or where this file says."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from disttrain import cli
from disttrain.config import HeteroConvModel
from disttrain.config.file import read_experiment
from tests.agents import REPOSITORY

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")

TESTED_ELSEWHERE = {
    "make quickstart": ".ci/run",
    "make test": ".ci/run",
    "make lint": "a part of make test",
    "make test-cluster": ".ci/run",
    "make test-gpu": "tests/gpu/test_gpu.py, which .ci/run runs as far as it goes without a GPU",
    "torchrun --nnodes 2 --nproc-per-node 4 ... -m disttrain experiment.yaml": "a shortened form",
    "torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-id job1 --rdzv-endpoint host1:29500 "
    "-m disttrain experiment.yaml": "tests/cluster/test_two_hosts.py",
    "torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-id job1 --rdzv-endpoint host1:29500 "
    "-m disttrain own_graphs.yaml": "disttrain submit local starts such agents, above it",
}

SUBMITTED = {
    "python -m disttrain submit slurm examples/own.yaml launch.nodes=4 launch.slurm.time=4:00:00 "
    "--dry-run": "#SBATCH --nodes=4",
    "python -m disttrain submit docker experiment.yaml 'launch.docker.hosts=[host1, host2]'": "hosts=(host1 host2)",
}
"""A line of what they print with --dry-run; tests/cluster/test_slurm.py and test_docker.py submit the like."""


def commands() -> list[str]:
    blocks = [line[4:] for line in README.replace("\\\n", " ").splitlines() if line.startswith("    ")]
    return [" ".join(line.split()) for line in blocks if re.match(r"(make|python|torchrun) ", line)]


def runs_here(command: str) -> bool:
    """In order: later ones use what earlier ones have made."""
    return any(word in command for word in ("examples/", "verify", "predict"))


@pytest.mark.parametrize("command", [c for c in dict.fromkeys(commands()) if runs_here(c) and c not in SUBMITTED])
def test_the_command_runs(command: str, place: Path) -> None:
    words = shlex.split(command)
    start = {"python": [sys.executable], "torchrun": [sys.executable, "-m", "torch.distributed.run"]}[words[0]]
    if "verify" not in words and "predict" not in words:
        words += ["train.epochs=1", "train.device=cpu"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [*start, *words[1:]], cwd=place, env=environment, capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 0, ended.stderr


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the commands find what they find in the repository, and leave what they make."""
    directory = tmp_path_factory.mktemp("readme")
    for name in ("examples", "launch"):
        (directory / name).symlink_to(REPOSITORY / name)
    return directory


def test_the_experiment_and_its_overrides_are_valid(tmp_path: Path) -> None:
    block, of_graphs = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    assert (REPOSITORY / "examples" / "own_graphs.yaml").read_text(encoding="utf-8").endswith(of_graphs)
    (tmp_path / "experiment.yaml").write_text(block)
    (overridden,) = [c for c in commands() if c.startswith("python -m disttrain experiment.yaml")]
    experiment = read_experiment(tmp_path / "experiment.yaml", shlex.split(overridden)[4:])
    assert (experiment.train.lr, experiment.sampling.fanout) == (0.01, (15, 10))
    assert isinstance(experiment.model, HeteroConvModel)
    assert experiment.model.relations["paper,to,author"].aggr == "max"


@pytest.mark.parametrize("command", SUBMITTED)
def test_the_command_prints_what_it_would_start(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command in commands()
    (tmp_path / "examples").symlink_to(REPOSITORY / "examples")
    (tmp_path / "experiment.yaml").write_text(re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)[0])
    monkeypatch.chdir(tmp_path)
    assert cli.run([*shlex.split(command.removesuffix(" --dry-run"))[3:], "--dry-run"]) == 0
    assert SUBMITTED[command] in capsys.readouterr().out.splitlines()


def test_no_command_is_left_out() -> None:
    known = [c for c in commands() if c in TESTED_ELSEWHERE or c in SUBMITTED or runs_here(c)]
    rest = [c for c in commands() if c not in known]
    assert [c.split()[:4] for c in rest] == [["python", "-m", "disttrain", "experiment.yaml"]]
