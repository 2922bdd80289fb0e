"""A run whose model sees no neighbours says so, with what makes the relations that lack."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import HeteroData

from disttrain.config import Experiment
from disttrain.train.idle_types import idle_line
from disttrain.train.job import run
from disttrain.world import World

SPLIT = {"by": "ratio", "train": 0.5, "val": 0.25, "test": 0.25}


def shop(shop_too: bool = False) -> HeteroData:
    """Users buy items, and nothing leads back; items may come from a shop."""
    data = HeteroData()
    data["user"].x, data["user"].y = torch.randn(40, 3), torch.arange(40) % 2
    data["item"].x = torch.randn(10, 2)
    data["user", "buys", "item"].edge_index = torch.stack([torch.arange(40), torch.arange(40) % 10])
    if shop_too:
        data["shop"].x = torch.randn(4, 2)
        data["shop", "sells", "item"].edge_index = torch.stack([torch.arange(10) % 4, torch.arange(10)])
    return data


def experiment(tmp_path: Path, **data: Any) -> Experiment:
    return Experiment.model_validate(
        {
            "run_dir": str(tmp_path / "run"),
            "data": {"source": "python", "function": f"{__name__}:shop", "split": SPLIT, **data},
            "partition": {"dir": str(tmp_path / "parts")},
            "task": {"kind": "node_classification", "node_type": "user"},
            "model": {"kind": "hetero_conv", "hidden": 4},
            "sampling": {"fanout": [2, 2]},
            "train": {"epochs": 1, "threads": 1, "device": "cpu"},
        }
    )


def warned(experiment: Experiment, caplog: pytest.LogCaptureFixture) -> list[str]:
    with World.start(device="cpu", timeout=60) as world, caplog.at_level(logging.WARNING):
        run(experiment, world)
    return [record.getMessage() for record in caplog.records if record.name.endswith("idle_types")]


def test_it_warns_where_no_edge_leads_to_the_target_and_the_cure_cures(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert warned(experiment(tmp_path / "without"), caplog) == [
        'no edge leads to "user": the model sees nothing but its own features. Add reverse relations '
        "(data.transforms=[ToUndirected]), or other relations that end at it"
    ]
    caplog.clear()
    assert warned(experiment(tmp_path / "with", transforms=["ToUndirected"]), caplog) == []


def test_types_that_take_no_part_are_named(tmp_path: Path) -> None:
    settings, types = experiment(tmp_path), ("user", "item", "shop")
    edges = {("user", "buys", "item"): 40, ("item", "rev_buys", "user"): 40, ("item", "sold_by", "shop"): 10}
    assert idle_line(settings, types, edges, "user") == (
        '"shop" cannot reach user in 2 layers and takes no part: add reverse relations '
        "(data.transforms=[ToUndirected]) or layers, or leave it out"
    )
    assert idle_line(settings, types, {**edges, ("shop", "sells", "item"): 10}, "user") == ""
    # A relation without an edge is none.
    assert idle_line(settings, types, {**edges, ("item", "rev_buys", "user"): 0}, "user").startswith("no edge leads")


@pytest.mark.parametrize(
    ("data", "cure"),
    [
        ({"source": "generated", "nodes": {"v": {"num_nodes": 3}}}, "(`reverse: true` in data.edges)"),
        ({"source": "tables", "root": ".", "nodes": {"v": {"file": "v.csv"}}}, "(`reverse: true`, for all in data or"),
        (
            {"source": "python", "function": f"{__name__}:shop", "transforms": ["AddSelfLoops"]},
            "(`ToUndirected` among data.transforms)",
        ),
    ],
    ids=lambda value: value["source"] if isinstance(value, dict) else "",
)
def test_the_cure_is_that_of_the_source(tmp_path: Path, data: dict[str, Any], cure: str) -> None:
    settings = experiment(tmp_path)
    settings = Experiment.model_validate({**settings.model_dump(), "data": data})
    assert cure in idle_line(settings, ["v"], {}, "v")
