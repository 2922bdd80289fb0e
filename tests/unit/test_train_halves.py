"""What `sampling.feature_precision: fp16` concerns, and what it cannot carry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import HeteroData

from disttrain.config import Experiment, ExperimentError
from disttrain.graph.graph import Graph
from disttrain.graph.schema import Wants
from disttrain.train import job
from disttrain.train.halves import halved_attributes
from disttrain.world import World

from ..graphs import open_parts, write_parts, zoo

CITES = ("paper", "cites", "paper")


def graph_of(data: HeteroData, directory: Path) -> Graph:
    return open_parts(write_parts(data, directory, 2))


def experiment(**settings: Any) -> Experiment:
    return Experiment.model_validate(
        {
            "data": {"source": "generated", "nodes": {"v": {"num_nodes": 10}}},
            "task": {"kind": "node_classification", "node_type": "paper"},
            "model": {"kind": "hetero_conv", "hidden": 4, "conv": "gat"},
            "sampling": {"fanout": [2, 2], "feature_precision": "fp16"},
            **settings,
        }
    )


def refusal(data: HeteroData, directory: Path, **settings: Any) -> str:
    """The message, or nothing."""
    try:
        with World.start(device="cpu") as world:
            job.build(experiment(**settings), graph_of(data, directory), world)
    except ExperimentError as error:
        return str(error)
    return ""


def test_it_concerns_what_the_model_reads_in_float32(tmp_path: Path) -> None:
    data = zoo()
    data["author"].x = torch.rand(97, 2)
    graph, settings = graph_of(data, tmp_path / "parts"), experiment()
    with World.start(device="cpu") as world:
        task, model = job.build(settings, graph, world)
    halved = halved_attributes(settings, graph.schema, task, model)
    # The venue's x is float64, lonely's is fp16 already; labels are the task's.
    assert {t: names for t, names in halved.nodes.items() if names} == {"paper": ("x",), "author": ("x",)}
    assert {e: names for e, names in halved.edges.items() if names} == {CITES: ("edge_attr",)}
    exact = experiment(sampling={"fanout": [2, 2]})
    assert halved_attributes(exact, graph.schema, task, model) == Wants()


def test_values_that_fp16_cannot_hold_are_refused_each_by_name(tmp_path: Path) -> None:
    data = zoo()
    data["paper"].x[7, 1] = -70_000
    data[CITES].edge_attr[3, 0] = float("inf")
    text = refusal(data, tmp_path / "both")
    assert "sampling.feature_precision is fp16, which holds numbers of up to 65504" in text
    assert "`x` of paper has values from -70000 to 420" in text
    assert "`edge_attr` of paper,cites,paper has values" in text and "sampling.feature_precision=exact" in text
    assert refusal(data, tmp_path / "exact", sampling={"fanout": [2, 2]}) == ""


@pytest.mark.parametrize("value", [65504.0, float("nan")])
def test_the_largest_number_and_missing_values_are_carried(tmp_path: Path, value: float) -> None:
    data = zoo()
    data["paper"].x[7, 1] = value
    assert refusal(data, tmp_path / "parts") == ""


def test_labels_are_sent_as_they_are(tmp_path: Path) -> None:
    data = zoo()
    data["paper"].price = torch.linspace(0, 1e9, 211)
    task = {"kind": "node_regression", "node_type": "paper", "label": "price"}
    assert refusal(data, tmp_path / "parts", task=task) == ""
