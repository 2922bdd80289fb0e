"""Weights of classes and of labels, by arithmetic: what they are, and what they make of the loss."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import HeteroData

from disttrain import config
from disttrain.config import ExperimentError
from disttrain.graph.schema import Attribute
from disttrain.predict.tables import Scored
from disttrain.predict.tally import Tally
from disttrain.tasks import NodeClassification, build_task
from disttrain.train.evaluate import evaluate
from disttrain.train.precision import Precision
from disttrain.world import World

from ..graphs import open_parts, write_parts
from .test_tasks_node_classification import batch_of, schema_with

CLASSES = Attribute("int64", (), 0, 2)
LABELS = Attribute("float32", (3,), 0, 1)


def task_of(label: Attribute, weights: Any, **info: Any) -> NodeClassification:
    task = config.NodeClassification.model_validate({"kind": "node_classification", "class_weights": weights})
    built = build_task(task, schema_with(label, **info))
    assert isinstance(built, NodeClassification)
    with World.start(device="cpu") as world:
        return built.settled(world, None)  # type: ignore[arg-type]  # only `balanced` looks at the graph


def log_odds(*chances: float) -> torch.Tensor:
    return torch.tensor(chances).log()


def test_the_loss_is_the_sum_of_weight_times_cross_entropy() -> None:
    task = task_of(CLASSES, [0.5, 2.0, 10.0])
    assert task.describe() == {"class_weights": [0.5, 2.0, 10.0]}
    logits = torch.stack([log_odds(0.5, 0.25, 0.25), log_odds(0.5, 0.25, 0.25), log_odds(0.1, 0.1, 0.8)])
    batch = batch_of(torch.tensor([0, 1, 2, 2]), 3)  # the last one is no seed
    expected = 0.5 * math.log(2) + 2 * math.log(4) + 10 * -math.log(0.8)
    assert task.loss(logits, batch).item() == pytest.approx(expected, rel=1e-6)
    assert task.weight(batch) == 12.5, "by which the sum over all ranks is divided"
    assert task.weight(batch_of(torch.tensor([], dtype=torch.int64), 0)) == 0


class _SameLogits(torch.nn.Module):
    def forward(self, batch: HeteroData) -> torch.Tensor:
        return torch.zeros(batch["paper"].batch_size, 3)

    def batches(self, epoch: int):
        batch = batch_of(torch.tensor([0, 0]), 2)
        batch["paper"].input_id = torch.arange(2)
        yield batch


def test_a_loss_of_seeds_that_count_nothing_has_no_value() -> None:
    """And not the best that there can be, 0."""
    task, fake = task_of(CLASSES, [0.0, 1.0, 1.0]), _SameLogits()
    tally, ids = Tally(task), np.arange(2)
    tally.add(Scored(ids, torch.zeros(2, 3), None, torch.tensor([0, 0]), ids >= 0, np.zeros(2, np.int8)))
    with World.start(device="cpu") as world:
        found = tally.over_all_ranks(world).metrics["train"]
        evaluated = evaluate(fake, task, fake, iter, Precision("fp32", world.device), world)
    for metrics in (found, evaluated.metrics):
        assert math.isnan(metrics["loss"]) and metrics["accuracy"] == 1.0


def test_with_several_labels_a_one_counts_so_often() -> None:
    task = task_of(LABELS, {0: 3.0, "2": 0.0})
    assert task.weights == (3.0, 1.0, 0.0)
    chance = torch.tensor([[0.8, 0.4, 0.5], [0.8, 0.4, 0.5]])
    batch = batch_of(torch.tensor([[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]]), 2)
    ones = 3 * -math.log(0.8) - math.log(0.4) + 0 * -math.log(0.5)
    zeros = -math.log(0.2) - math.log(0.6) - math.log(0.5)
    assert task.loss(torch.logit(chance), batch).item() == pytest.approx((ones + zeros) / 3, rel=1e-6)
    assert task.weight(batch) == 2, "seeds"


def test_names_stand_for_classes() -> None:
    names = {"classes": {"paper": ["early", "late", "2"]}}
    assert task_of(CLASSES, {"late": 4.0}, **names).weights == (1.0, 4.0, 1.0)
    assert task_of(CLASSES, {"2": 4.0}, **names).weights == (1.0, 1.0, 4.0)
    assert task_of(CLASSES, "none").weights is None


@pytest.mark.parametrize(
    ("label", "weights", "message"),
    [
        (CLASSES, [1.0, 2.0], "expected 3 weights, one for each class or label, got 2"),
        (LABELS, [1.0], "expected 3 weights, one for each class or label, got 1"),
        (CLASSES, {"3": 1.0}, "there is no class '3'"),
        (CLASSES, [0.0, 0.0, 0.0], "all are 0"),
    ],
)
def test_weights_that_do_not_fit_are_refused(label: Attribute, weights: Any, message: str) -> None:
    with pytest.raises(ExperimentError, match=message):
        task_of(label, weights)


def _graph(label: torch.Tensor) -> HeteroData:
    data = HeteroData()
    count = len(label)
    data["v"].x, data["v"].y = torch.ones(count, 1), label
    for name, low, high in (("train_mask", 0, 10), ("val_mask", 10, 13), ("test_mask", 13, count)):
        data["v"][name] = (torch.arange(count) >= low) & (torch.arange(count) < high)
    data["v", "to", "v"].edge_index = torch.stack([torch.arange(count), torch.arange(count).roll(1)])
    return data


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        # 6, 3 and 1 of 10 training nodes, none of class 3: 10 / (3 * count).
        (torch.tensor([0, 0, 0, 1, 0, 1, 2, 0, 1, 0, 3, 3, 2, 2]), (10 / 18, 10 / 9, 10 / 3, 1.0)),
        # 5 ones of 10, 2 of 10, and a label that all have: nothing to hold it against.
        (
            torch.stack([torch.arange(14) % 2, (torch.arange(14) < 2).long(), torch.ones(14).long()], dim=1),
            (1.0, 4.0, 1.0),
        ),
    ],
)
def test_balanced_is_by_the_training_seeds_of_the_whole_graph(tmp_path: Path, label: Any, expected: Any) -> None:
    graph = open_parts(write_parts(_graph(label), tmp_path / "parts", 3))
    task = config.NodeClassification(kind="node_classification", class_weights="balanced")
    built = build_task(task, graph.schema)
    assert isinstance(built, NodeClassification)
    with World.start(device="cpu") as world:
        settled = built.settled(world, graph)
    assert settled.weights == pytest.approx(expected)
    if not settled.multilabel:
        targets = label[:10]
        weights = torch.tensor(expected)[targets]
        assert weights.sum().item() == pytest.approx(10), "a seed counts one on average"
        assert settled.weight(batch_of_v(targets)) == pytest.approx(10)


def batch_of_v(labels: torch.Tensor) -> HeteroData:
    batch = HeteroData()
    batch["v"].y, batch["v"].batch_size = labels, len(labels)
    return batch
