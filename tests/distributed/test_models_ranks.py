"""Every kind of model on several ranks: with all neighbours and no dropout, each step has the loss of one rank."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import HeteroData

from disttrain.config import Experiment
from disttrain.train import job
from disttrain.world import World
from tests.graphs import zoo
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


def few_seeds() -> HeteroData:
    """The zoo with two training nodes, one to validate on and one to test on: in three parts, one has none to train."""
    data = zoo()
    for number, split in enumerate(("train_mask", "val_mask", "test_mask")):
        mask = torch.zeros(211, dtype=torch.bool)
        mask[[40 + number, 200] if split == "train_mask" else [40 + number]] = True
        data["paper"][split] = mask
    return data


RELATIONS = {
    "paper,cites,paper": {"conv": "gin"},
    "venue,publishes,paper": {"conv": "gatv2", "heads": 2},
    "author,writes,paper": {"aggr": {"kind": "quantile", "args": {"q": [0.25, 0.75]}}},
}


def _few(directory: str, name: str, ranks: int) -> Experiment:
    relations = {"relations": RELATIONS} if name == "hetero_conv" else {}
    return Experiment.model_validate(
        {
            "name": name,
            "run_dir": f"{directory}/runs/few-{ranks}-{name}",
            "data": {
                "source": "python",
                "function": "tests.distributed.test_models_ranks:few_seeds",
                "split": {"by": "masks"},
            },
            "partition": {"parts": ranks, "method": "random", "dir": f"{directory}/parts/few-{ranks}"},
            "task": {"kind": "node_classification", "node_type": "paper"},
            "model": {"hidden": 8, "inputs": {"standardize": True}, **MODELS[name], **relations},
            "sampling": {"fanout": [-1, -1], "batch_size": 2},
            "train": {"epochs": 3, "lr": 0.01, "log_every": 1, "threads": 1},
        }
    )


def _train_few(world: World, directory: str) -> None:
    for name in MODELS:
        job.run(_few(directory, name, world.size), world)


def test_a_partition_without_seeds_takes_part_with_each_kind(tmp_path: Path) -> None:
    for ranks in (1, 3):
        run_ranks(_train_few, ranks, str(tmp_path), timeout=200.0)
    manifest = json.loads((tmp_path / "parts" / "few-3" / "manifest.json").read_text())
    assert sorted(manifest["balance"]["train_seeds"]) == [0, 1, 1]
    for name in MODELS:
        straight, spread = (
            [e["loss"] for e in events(tmp_path / "runs" / f"few-{ranks}-{name}") if e["event"] == "train"]
            for ranks in (1, 3)
        )
        assert len(set(straight)) == len(straight) == 3
        assert spread == pytest.approx(straight, rel=1e-5, abs=2e-5), name


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
