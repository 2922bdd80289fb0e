"""What is asked of Slurm: times as Slurm reads them, and what it would refuse or mistake."""

from __future__ import annotations

import pytest

from disttrain.config import ExperimentError
from disttrain.config.file import parse_experiment
from disttrain.config.launch import slurm_seconds
from disttrain.launch.slurm_script import render
from tests.tiny_experiment import TINY


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (90, 5400),
        ("90", 5400),
        ("1:30:00", 5400),
        ("2-12", 216000),
        ("1-0:30", 88200),
        ("0:1:30", 90),
        ("UNLIMITED", None),
    ],
)
def test_time_limits(text: int | str, seconds: float | None) -> None:
    assert slurm_seconds(text) == seconds


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("launch.slurm.time=1:30", "1 minute and 30 seconds to Slurm; write 1:30:00"),
        ("launch.slurm.time=soon", "expected minutes"),
        ("launch.slurm.time=1", "would be stopped at once"),
        ("launch.slurm.lines=[--time=3]", "--time is decided by launch.slurm.time"),
        ("launch.slurm.lines=[--cpus-per-task=8]", "--cpus-per-task is decided by launch.slurm.cpus"),
        ("launch.slurm.lines=[-c8]", "-c is decided by launch.slurm.cpus"),
        ("launch.slurm.lines=[mail]", "expected an option of sbatch"),
        ("launch.slurm.partition=a b", "expected a name without spaces"),
        ("launch.slurm.gpus=a100", "a type and a number"),
        ("launch.slurm.memory=64 GB", "a size as Slurm has it"),
        ("launch.env={A B: c}", "the name of an environment variable"),
        ("launch.min_nodes=2", "needs nodes"),
        ("launch.slurm.container={}", "is missing"),
        ("launch.slurm.container={image: a.sif, options: [--cleanenv]}", "would not hear from the environment"),
    ],
)
def test_settings_that_slurm_would_refuse_or_mistake(setting: str, says: str) -> None:
    with pytest.raises(ExperimentError) as caught:
        parse_experiment(TINY, (setting,))
    assert says in str(caught.value)


def test_more_ranks_than_gpus_are_refused() -> None:
    more = "launch: {procs_per_node: 4, slurm: {gpus: 'a100:2'}}"
    with pytest.raises(ExperimentError, match="launch.slurm.gpus is a100:2, and each node has 4 ranks"):
        render(parse_experiment(TINY + more), "experiment.yaml")
    for override in ("train.device=cpu", "launch.procs_per_node=2", "launch.slurm.gpus=null"):
        assert render(parse_experiment(TINY + more, [override]), "experiment.yaml")


def test_names_that_slurm_cannot_write_to_are_refused() -> None:
    with pytest.raises(ExperimentError, match="backslashes"):
        render(parse_experiment(TINY, (r"run_dir='a\b'",)), "experiment.yaml")
    with pytest.raises(ExperimentError, match="control characters"):
        render(parse_experiment(TINY), "a\nb.yaml")
