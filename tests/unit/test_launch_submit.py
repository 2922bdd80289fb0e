"""What `disttrain submit slurm` gives to sbatch, and makes of its answer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from disttrain import cli
from disttrain.config import ExperimentError
from disttrain.launch.note import Note, read_note
from tests.tiny_experiment import TINY

from .test_launch_slurm import Stage


@pytest.mark.parametrize("which", ["1", "seed=1"])
def test_a_point_by_its_number_is_the_one_by_its_name(
    which: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "s.yaml").write_text(TINY + "sweep: {grid: {seed: [0, 1]}}\n")
    monkeypatch.chdir(tmp_path)
    assert cli.run(["submit", "slurm", "s.yaml", "--point", which, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "run_dir=runs/experiment/seed=1\n" in said
    assert 'arguments=(s.yaml --point seed=1 "$@" run_dir=runs/experiment)\n' in said


@pytest.mark.parametrize(
    ("said", "job", "commands"),
    [
        ("12", "12", ["squeue --job 12", "scancel 12"]),
        ("12;other", "12;other", ["squeue --clusters=other --job 12", "scancel --clusters=other 12"]),
        ("Welcome, 7 hours are left\n12", "12", ["squeue --job 12"]),
        ("thank you", None, []),
    ],
)
def test_what_sbatch_says(
    tmp_path: Path, said: str, job: str | None, commands: list[str],
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    stage = Stage(tmp_path)
    stage.program("sbatch", f"echo 'sbatch: slow today' >&2; printf '%s\\n' '{said}'")
    monkeypatch.setenv("PATH", f"{stage.bin}:{os.environ['PATH']}")
    monkeypatch.chdir(stage.folder)
    (stage.folder / "experiment.yaml").write_text(TINY)
    if job is None:
        with pytest.raises(ExperimentError, match="has taken the job, but did not say its number.*\nthank you"):
            cli.run(["submit", "slurm", "experiment.yaml"])
        return
    assert cli.run(["submit", "slurm", "experiment.yaml"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"job {job}\n") and "sbatch: slow today" in err
    assert all(command in out for command in commands)
    note = read_note(Path("runs/experiment"))
    assert note == Note("slurm", job, "runs/experiment/slurm-12.out")
