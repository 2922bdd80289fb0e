"""Predictions of several labels, of a number, and of several."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import HeteroData
from torchmetrics import classification as tm

from disttrain.config.file import read_experiment
from disttrain.train.job import run
from disttrain.world import World

from .test_predict import ask


def graph_of(y: torch.Tensor) -> HeteroData:
    data = HeteroData()
    count = len(y)
    data["v"].x, data["v"].y = torch.randn(count, 4, generator=torch.Generator().manual_seed(0)), y
    data["v", "to", "v"].edge_index = torch.stack([torch.arange(count), torch.arange(count).roll(1)])
    return data


@pytest.mark.parametrize("kind", ["several labels", "number", "several numbers"])
def test_labels_of_other_kinds(tmp_path: Path, kind: str) -> None:
    generator = torch.Generator().manual_seed(1)
    if kind == "several labels":
        y = torch.rand(60, 3, generator=generator).round().long()
        y[:10] = -1
        task = "{kind: node_classification, metrics: [micro_f1]}"
    else:
        y = torch.randn(60, 1 if kind == "number" else 2, generator=generator) * 7 + 100
        y[:10] = float("nan")
        task = "{kind: node_regression}"
    torch.save(graph_of(y), tmp_path / "graph.pt")
    (tmp_path / "kind.yaml").write_text(
        f"name: kind\nrun_dir: {tmp_path}/runs/kind\npartition: {{dir: {tmp_path}/cut}}\n"
        f"data: {{source: file, path: {tmp_path}/graph.pt, trust: true,"
        " split: {by: ratio, train: 0.5, val: 0.25, test: 0.25}}\n"
        f"task: {task}\nmodel: {{kind: hetero_conv, hidden: 4}}\ntrain: {{epochs: 2, threads: 1, device: cpu}}\n"
    )
    with World.start(device="cpu", threads=1) as world:
        trained = run(read_experiment(tmp_path / "kind.yaml"), world)
    summary, rows = ask(tmp_path, "out", run_name="kind")
    assert [row["id"] for row in rows] == list(range(60))
    assert [row["label"] is None for row in rows] == [True] * 10 + [False] * 50
    assert summary["metrics"]["test"] == trained["test"]
    test = [row for row in rows if row["split"] == "test"]
    if kind == "several labels":
        target = y[[row["id"] for row in test]]
        assert [row["label"] for row in test] == [torch.nonzero(labels).flatten().tolist() for labels in target]
        predicted = torch.zeros_like(target)
        for row, number in zip(test, range(len(test))):
            predicted[number, row["prediction"]] = 1
        metric = tm.MultilabelF1Score(3, average="micro")
        assert metric(predicted, target).item() == trained["test"]["micro_f1"]
        assert len(rows[0]["probabilities"]) == 3
        return
    for row in rows[10:]:
        assert np.atleast_1d(row["label"]) == pytest.approx(y[row["id"]].tolist())
    error = [np.abs(np.atleast_1d(row["label"]) - np.atleast_1d(row["prediction"])).mean() for row in test]
    assert np.mean(error) == pytest.approx(trained["test"]["mae"], rel=1e-6)
