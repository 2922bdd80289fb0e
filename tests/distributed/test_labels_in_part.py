"""Graphs that lack some of several labels or targets: what ranks learn and score together is what one does by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch.nn import functional
from torch_geometric.data import Data

from disttrain.config import Experiment
from disttrain.train import job
from disttrain.world import World
from tests.collections_of_graphs import assays, ninths
from tests.ranks import run_ranks
from tests.training import events

EPOCHS, RATE = 5, 0.2


def experiment(directory: str, ranks: int, numbers: bool) -> Experiment:
    task: dict[str, Any] = {"kind": "graph_classification", "metrics": ["auroc", "label_accuracy"]}
    if numbers:
        task = {"kind": "graph_regression", "metrics": ["mae", "rmse"]}
    return Experiment.model_validate(
        {
            "run_dir": f"{directory}/{ranks}{'n' if numbers else ''}",
            "data": {
                "source": "python", "function": "tests.collections_of_graphs:assays", "args": {"numbers": numbers},
                "store": f"{directory}/store",
                "split": {"by": "function", "function": "tests.collections_of_graphs:ninths"},
            },
            "task": task,
            "model": {"kind": "custom", "module": "tests.collections_of_graphs:Sums"},
            # The training graphs in two batches that are one step, of which the last is not full.
            "sampling": {"batch_size": 66 // ranks},
            "train": {
                "epochs": EPOCHS, "optimizer": "sgd", "momentum": 0, "lr": RATE, "accumulate": 2, "log_every": 1,
                "threads": 1, "device": "cpu",
            },
        }
    )  # fmt: skip


def train(world: World, directory: str) -> list[dict[str, Any]]:
    return [job.run(experiment(directory, world.size, numbers), world) for numbers in (False, True)]


def by_hand(numbers: bool) -> tuple[list[float], np.ndarray, np.ndarray]:
    """The losses of all steps, and labels and logits of the graphs that test: plain PyTorch, in float64."""
    graphs: list[Data] = assays(numbers=numbers)
    means = torch.stack([graph.x.mean(dim=0) for graph in graphs]).double()  # type: ignore[union-attr]
    x = torch.cat([means * torch.tensor([1.0, 0.02]), torch.ones(len(graphs), 1)], dim=1)
    labels = torch.cat([graph.y for graph in graphs]).double()  # type: ignore[misc]
    trained, _, tested = (torch.from_numpy(mask) for mask in ninths(len(graphs)))
    there = ~labels.isnan()
    tested, mean, std = tested & there.any(dim=1), torch.zeros(4), torch.ones(4)
    if numbers:
        mean = labels[trained].nanmean(dim=0)
        std = (labels[trained] - mean).square().nanmean(dim=0).sqrt()
    weights, losses = torch.zeros(3, 4, dtype=torch.float64, requires_grad=True), []
    chosen = there & trained.unsqueeze(1)
    for _ in range(EPOCHS):
        out, wanted = (x @ weights)[chosen], ((labels - mean) / std)[chosen]
        loss = functional.mse_loss(out, wanted) if numbers else functional.binary_cross_entropy_with_logits(out, wanted)
        (gradient,) = torch.autograd.grad(loss, weights)
        weights = (weights - RATE * gradient).detach().requires_grad_()
        losses.append(loss.item())
    return losses, labels[tested].numpy(), ((x @ weights)[tested] * std + mean).detach().numpy()


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_all_ranks_learn_and_score_what_one_does_by_hand(tmp_path: Path, ranks: int) -> None:
    found = run_ranks(train, ranks, str(tmp_path), timeout=120)[0]
    for numbers, summary in zip((False, True), found, strict=True):
        losses, labels, logits = by_hand(numbers)
        run = tmp_path / f"{ranks}{'n' if numbers else ''}"
        ours = [event["loss"] for event in events(run) if event["event"] == "train"]
        assert summary["steps"] == len(ours) == EPOCHS and ours == pytest.approx(losses, rel=1e-5)
        there = ~np.isnan(labels)
        assert summary["num_evaluated"]["test"] == len(labels) and summary["num_entries"]["test"] == there.sum()
        last = [event for event in events(run) if event["event"] == "evaluation" and event["split"] == "test"]
        assert (last[0]["num_evaluated"], last[0]["num_entries"]) == (len(labels), int(there.sum()))
        if numbers:
            errors = np.abs(logits - labels)
            each = [errors[own, k].mean() for k, own in enumerate(there.T)]
            assert summary["test"]["mae"] == pytest.approx(errors[there].mean(), rel=1e-5)
            assert summary["test"]["rmse"] == pytest.approx(np.square(errors[there]).mean() ** 0.5, rel=1e-5)
            assert summary["each"]["test"]["mae"] == pytest.approx(each, rel=1e-5)
        else:
            areas = [roc_auc_score(labels[own, k], logits[own, k]) for k, own in enumerate(there.T[:3])]
            assert summary["test"]["auroc"] == pytest.approx(np.mean(areas), rel=1e-5)
            each = json.loads((run / "summary.json").read_text())["each"]["test"]["auroc"]
            assert each[:3] == pytest.approx(areas, rel=1e-5) and each[3] is None, "only ones are known of the last"
            assert summary["test"]["label_accuracy"] == pytest.approx(((logits > 0) == labels)[there].mean())
