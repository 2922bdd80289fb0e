"""The example of a model and a data set of one's own learns, on two ranks as on any number."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from disttrain.config.file import read_experiment
from disttrain.train.job import run
from disttrain.world import World

from ..ranks import run_ranks

REPOSITORY = Path(__file__).resolve().parents[2]


def train(world: World, directory: str) -> dict[str, Any]:
    # Dotted paths are looked up beside the working directory, which for a user is the repository's root.
    os.chdir(REPOSITORY)
    settings = [
        f"run_dir={directory}/run",
        f"partition.dir={directory}/partitions",
        "train.epochs=6",
        "train.device=cpu",
    ]
    return run(read_experiment(REPOSITORY / "examples" / "own.yaml", settings), world)


def test_own_example_learns(tmp_path: Path) -> None:
    first, second = run_ranks(train, 2, str(tmp_path))
    assert first["test"] == second["test"]
    assert first["num_evaluated"]["test"] == 120
    assert first["test"]["auroc"] > 0.95
