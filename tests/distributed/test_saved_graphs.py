"""Saved graphs as people have them train on two machines, and what is trained on is what was saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from disttrain.config import Experiment
from disttrain.graph.graph import Graph
from disttrain.train.job import run
from disttrain.world import World
from tests.ranks import run_ranks
from tests.saved_graphs import SAVED


def train(world: World, folder: str) -> dict[str, Any]:
    summaries = {}
    for name, make in SAVED.items():
        experiment = Experiment.model_validate(
            {
                "name": name,
                "run_dir": f"{folder}/{name}/run",
                "data": {"source": "file", "path": f"{folder}/{name}.pt"},
                "partition": {"dir": f"{folder}/{name}/parts"},
                "task": {"kind": "node_classification", "node_type": make().target},
                "model": {"kind": "hetero_conv", "hidden": 8, "layers": 2},
                "sampling": {"fanout": [3, 2], "batch_size": 8},
                "train": {"epochs": 1, "device": "cpu"},
            }
        )
        summaries[name] = run(experiment, world)
    return summaries


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("saved")
    for name, make in SAVED.items():
        torch.save(make().graph, folder / f"{name}.pt")
    return folder, run_ranks(train, 2, str(folder))[0]


@pytest.mark.parametrize("name", SAVED)
def test_saved_graph(trained: tuple[Path, dict[str, Any]], name: str):
    folder, summaries = trained
    saved = SAVED[name]()
    summary, seeds = summaries[name], saved.nodes[saved.target]
    assert summary["num_evaluated"] == {split: int(seeds[f"{split}_mask"].sum()) for split in summary["num_evaluated"]}
    assert all(np.isfinite(value) for value in summary["test"].values())
    graph = Graph.open(folder / name / "parts")
    for node_type, attributes in saved.nodes.items():
        ids = graph.original_ids(node_type)
        for attribute, expected in attributes.items():
            found = graph.node_attribute(node_type, attribute)
            assert found.dtype == expected.numpy().dtype
            np.testing.assert_array_equal(found, expected.numpy()[ids], err_msg=f"{node_type}.{attribute}")
    for edge_type, expected in saved.edges.items():
        csc = graph.csc(edge_type)
        destination = np.repeat(np.arange(len(csc.colptr) - 1), np.diff(csc.colptr))
        found = np.stack([graph.original_ids(edge_type[0])[csc.row], graph.original_ids(edge_type[2])[destination]])
        order = [ends[:, np.lexsort(ends)] for ends in (found, expected.numpy())]
        np.testing.assert_array_equal(*order, err_msg=str(edge_type))
