"""Every kind of model on several ranks: with all neighbours and no dropout, each step has the loss of one rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from disttrain.config import Experiment
from disttrain.train import job
from disttrain.world import World
from tests.ranks import run_ranks
from tests.training import events

MODELS: dict[str, dict[str, Any]] = {
    "rgcn": {"kind": "rgcn", "bases": 4},
    "rgat": {"kind": "rgat", "norm": "layer", "residual": True},
    "hgt": {"kind": "hgt", "jumping_knowledge": "lstm"},
    "hetero_conv": {
        "kind": "hetero_conv",
        "conv": "graph",
        "aggr": ["sum", "std", {"kind": "lstm"}, {"kind": "set_transformer", "args": {"heads": 2}}],
        "relation_aggr": "cat",
        "jumping_knowledge": "cat",
        "relations": {
            "paper,cites,paper": {"conv": "gin"},
            "paper,has,field": {"conv": "gatv2", "heads": 2},
            "field,rev_has,paper": {"aggr": {"kind": "quantile", "args": {"q": [0.25, 0.75]}}},
        },
    },
}


def _experiment(directory: str, name: str, ranks: int) -> Experiment:
    return Experiment.model_validate(
        {
            "name": name,
            "run_dir": f"{directory}/runs/{ranks}-{name}",
            "data": {
                "source": "generated",
                "nodes": {
                    "paper": {"num_nodes": 240, "features": 6},
                    "author": {"num_nodes": 90, "features": 5},
                    "field": {"num_nodes": 7},
                },
                "edges": {
                    "author,writes,paper": {"num_edges": 400},
                    "paper,cites,paper": {"num_edges": 500},
                    "paper,has,field": {"num_edges": 300},
                },
                "num_classes": 3,
            },
            "partition": {"parts": ranks, "method": "random", "dir": f"{directory}/parts/{ranks}"},
            "task": {"kind": "node_classification", "node_type": "paper"},
            "model": {"hidden": 8, **MODELS[name]},
            # 144 seeds, 60 a step: in the last step the ranks have fewer.
            "sampling": {"fanout": [-1, -1], "batch_size": 60 // ranks, "locality": False},
            "train": {"epochs": 2, "lr": 0.01, "log_every": 1, "threads": 1},
        }
    )


def _train_all(world: World, directory: str) -> None:
    for name in MODELS:
        job.run(_experiment(directory, name, world.size), world)


def test_several_ranks_train_each_kind_as_one_does(tmp_path: Path) -> None:
    for ranks in (1, 2, 3):
        run_ranks(_train_all, ranks, str(tmp_path), timeout=200.0)
    for name in MODELS:
        straight, two, three = (
            [event["loss"] for event in events(tmp_path / "runs" / f"{ranks}-{name}") if event["event"] == "train"]
            for ranks in (1, 2, 3)
        )
        assert len(set(straight)) == len(straight) == 6
        assert two == pytest.approx(straight, rel=0, abs=2e-5), name
        assert three == pytest.approx(straight, rel=0, abs=2e-5), name
