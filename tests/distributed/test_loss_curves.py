"""With all neighbours and no dropout, the loss of every step depends on neither ranks nor machines nor partitions."""

from __future__ import annotations

from pathlib import Path

import pytest

from disttrain.config import Experiment
from disttrain.train import job
from disttrain.world import World
from tests.ranks import run_ranks
from tests.training import events


def _experiment(directory: str, ranks: int, parts: int) -> Experiment:
    return Experiment.model_validate(
        {
            "name": "curve",
            "run_dir": f"{directory}/runs/{ranks}-{parts}",
            "data": {
                "source": "generated",
                "nodes": {
                    "paper": {"num_nodes": 4000, "features": 16},
                    "author": {"num_nodes": 1500, "features": 5},
                    "field": {"num_nodes": 60},
                },
                "edges": {
                    "author,writes,paper": {"num_edges": 9000},
                    "paper,cites,paper": {"num_edges": 12000},
                    "paper,has,field": {"num_edges": 5000},
                },
                "num_classes": 5,
            },
            "partition": {"parts": parts, "dir": f"{directory}/parts/{parts}"},
            "task": {"kind": "node_classification", "node_type": "paper"},
            "model": {"kind": "hetero_conv", "hidden": 16, "relations": {"paper,has,field": {"conv": "gat"}}},
            "sampling": {"fanout": [-1, -1], "batch_size": 1024 // ranks, "locality": False},
            "train": {"epochs": 2, "lr": 0.005, "log_every": 1, "threads": 1},
        }
    )


def _train(world: World, directory: str, parts: int) -> None:
    job.run(_experiment(directory, world.size, parts), world)


@pytest.mark.parametrize(("ranks", "machines", "parts"), [(2, 2, 2), (4, 2, 8)])
def test_one_by_1024_equals_two_by_512_and_four_by_256(tmp_path: Path, ranks: int, machines: int, parts: int) -> None:
    run_ranks(_train, 1, str(tmp_path), 1)
    run_ranks(_train, ranks, str(tmp_path), parts, machines=machines)
    straight, spread = (
        [event["loss"] for event in events(tmp_path / "runs" / name) if event["event"] == "train"]
        for name in ("1-1", f"{ranks}-{parts}")
    )
    assert len(straight) == 6 and len(set(straight)) == 6
    assert spread == pytest.approx(straight, rel=0, abs=1e-5)
