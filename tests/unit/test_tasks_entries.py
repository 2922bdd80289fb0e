"""Labels and targets of which single ones are missing: loss, weight, metrics and standardisation, by arithmetic."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, f1_score, mean_absolute_percentage_error, r2_score, roc_auc_score
from torch.nn import functional
from torchmetrics import MetricCollection

from disttrain import config
from disttrain.config import ExperimentError
from disttrain.graph.schema import Attribute
from disttrain.tasks import NodeClassification, NodeRegression, build_task
from disttrain.tasks.labels import mean_and_std
from disttrain.tasks.node_classification import balanced_weights
from disttrain.tasks.task import Score
from disttrain.world import World
from tests.ranks import run_ranks

from .test_tasks_node_classification import batch_of, schema_with

NAN = math.nan
LABELS = Attribute("float32", (3,), 0, 1, missing=4)
TARGETS = Attribute("float32", (3,), -3, 9, missing=4)


def classification(label: Attribute = LABELS, **settings: Any) -> NodeClassification:
    names = ("accuracy", "label_accuracy", "micro_f1", "macro_f1", "auroc", "average_precision")
    task = config.NodeClassification.model_validate({"kind": "node_classification", "metrics": names, **settings})
    built = build_task(task, schema_with(label))
    assert isinstance(built, NodeClassification)
    return built


def regression(**settings: Any) -> NodeRegression:
    task = config.NodeRegression(kind="node_regression", metrics=("mae", "rmse", "mse", "mape", "r2"), **settings)
    built = build_task(task, schema_with(TARGETS))
    assert isinstance(built, NodeRegression)
    return NodeRegression(**{**built.__dict__, "mean": (1.0, 0.0, -2.0), "std": (2.0, 1.0, 0.5)})


def scores(task: Any, *parts: tuple[torch.Tensor, torch.Tensor]) -> dict[str, Score]:
    """Of ranks that have seen a part each."""
    merged: MetricCollection = task.metrics()
    for logits, labels in parts:
        rank = task.metrics()
        task.update(rank, logits, batch_of(labels, len(labels)))
        for name, metric in rank.items(keep_base=True, copy_state=False):
            merged[name].merge_state(metric.metric_state)
    for metric in merged.values(copy_state=False):
        metric._update_count = 1
    return {name: task.score(name, metric) for name, metric in merged.items(keep_base=True, copy_state=False)}


@pytest.mark.parametrize("none", [NAN, -1.0])
def test_loss_and_weight_are_sums_over_the_labels_that_are_there(none: float) -> None:
    label = LABELS if math.isnan(none) else Attribute("int64", (3,), -1, 1)
    task = classification(label)
    labels = torch.tensor([[1, none, 0], [none, 0, 1], [none, none, none], [1, 1, 1]])
    labels = labels if math.isnan(none) else labels.long()
    logits = torch.randn(4, 3, requires_grad=True)
    there = [(0, 0), (0, 2), (1, 1), (1, 2), (3, 0), (3, 1), (3, 2)]
    each = [functional.binary_cross_entropy_with_logits(logits[at], labels[at].float()) for at in there]
    batch = batch_of(labels, 4)
    loss, weight = task.loss(logits, batch), torch.as_tensor(task.weight(batch))
    assert task.has_weights and task.num_entries(batch) == 7
    assert weight == 7 / 4, "in units of a power of two, in which counts are exact"
    (loss / weight).backward()
    assert (loss / weight).item() == pytest.approx(sum(each).item() / 7, rel=1e-6)  # type: ignore[union-attr]
    by_hand = torch.autograd.grad(sum(each) / 7, logits)[0]  # type: ignore[arg-type]
    torch.testing.assert_close(logits.grad, by_hand)
    assert not by_hand[2].any(), "of what is not there nothing is learnt"
    assert task.label_columns(labels.numpy(), [])["label_missing"].to_pylist() == [[1], [0], [0, 1, 2], []]
    assert task.label_columns(labels.numpy(), ["a", "b", "c"])["label_name"].to_pylist()[2:] == [None, ["a", "b", "c"]]


@pytest.mark.parametrize("loss_name", ["mse", "l1", "huber"])
def test_the_loss_of_targets_is_over_those_that_are_there(loss_name: Any) -> None:
    task = regression(loss=loss_name, delta=0.3)
    targets = torch.tensor([[1.0, NAN, 3.0], [NAN, NAN, -2.0]])
    logits = torch.randn(2, 3, requires_grad=True)
    standard = [(targets[at] - task.mean[at[1]]) / task.std[at[1]] for at in ((0, 0), (0, 2), (1, 2))]
    picked = torch.stack([logits[0, 0], logits[0, 2], logits[1, 2]])
    compare = {"mse": functional.mse_loss, "l1": functional.l1_loss}
    expected = (
        compare[loss_name](picked, torch.stack(standard))
        if loss_name in compare
        else functional.huber_loss(picked, torch.stack(standard), delta=0.3)
    )
    batch = batch_of(targets, 2)
    assert task.weight(batch) == 3 / 4 and task.num_entries(batch) == 3
    torch.testing.assert_close(task.loss(logits, batch) / task.weight(batch), expected)
    task.loss(logits, batch).backward()
    assert logits.grad is not None and not logits.grad[targets.isnan()].any()
    assert task.label_columns(targets.numpy(), [])["label"].to_pylist() == [[1, None, 3], [None, None, -2]]
    assert task.label_columns(np.full((1, 3), NAN), [])["label"].to_pylist() == [None]


def test_metrics_of_labels_are_those_of_scikit_learn_over_what_is_there() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(60, 3, generator=generator)
    labels = (torch.rand(60, 3, generator=generator) < 0.4).float()
    labels[torch.rand(60, 3, generator=generator) < 0.5] = NAN
    labels[:, 2] = torch.where(labels[:, 2].isnan(), NAN, 1.0)
    found = scores(classification(), (logits[:20], labels[:20]), (logits[20:], labels[20:]))
    chance, there = logits.sigmoid().numpy(), ~labels.isnan().numpy()
    truth, guess = labels.nan_to_num().numpy().astype(int), chance > 0.5
    right = guess == truth
    columns = [(truth[own, k], guess[own, k], chance[own, k]) for k, own in enumerate(there.T)]
    areas = [roc_auc_score(t, c) for t, _, c in columns[:2]]
    precisions = [average_precision_score(t, c) for t, _, c in columns]
    ones = [f1_score(t, g) for t, g, _ in columns]
    expected = {
        "accuracy": (right | ~there).all(axis=1).mean(),
        "label_accuracy": right[there].mean(),
        "micro_f1": f1_score(truth[there], guess[there]),
        "macro_f1": np.mean(ones),
        "auroc": np.mean(areas),
        "average_precision": np.mean(precisions),
    }
    assert {name: score.value for name, score in found.items()} == pytest.approx(expected, abs=1e-6)
    assert found["auroc"].each == pytest.approx((*areas, NAN), abs=1e-6, nan_ok=True)
    assert "auroc leaves out 1 of 3 labels" in found["auroc"].note
    assert found["average_precision"].each == pytest.approx(precisions, abs=1e-6)
    assert found["macro_f1"].each == pytest.approx(ones, abs=1e-6)
    assert found["label_accuracy"].each == pytest.approx([right[own, k].mean() for k, own in enumerate(there.T)])
    labels[:, 0] = NAN
    without = scores(classification(), (logits, labels))["macro_f1"]
    assert without.value == pytest.approx(np.mean(ones[1:]), abs=1e-6) and "1 of 3 labels" in without.note


def test_metrics_of_targets_are_over_what_is_there() -> None:
    task, generator = regression(), np.random.default_rng(0)
    targets = generator.normal(size=(50, 3)) + 3
    logits = generator.normal(size=(50, 3))
    targets[generator.random((50, 3)) < 0.4] = NAN
    targets[1:, 1] = NAN
    found = scores(task, *((torch.tensor(logits[own]), torch.tensor(targets[own])) for own in (slice(9), slice(9, 50))))
    guess, there = logits * task.std + task.mean, ~np.isnan(targets)
    errors = np.abs(guess - targets)
    columns = [(targets[own, k], guess[own, k]) for k, own in enumerate(there.T)]
    explained = [r2_score(*columns[0]), NAN, r2_score(*columns[2])]
    expected = {
        "mae": errors[there].mean(),
        "mse": np.square(errors[there]).mean(),
        "rmse": np.square(errors[there]).mean() ** 0.5,
        "mape": mean_absolute_percentage_error(targets[there], guess[there]),
        "r2": np.nanmean(explained),
    }
    assert {name: score.value for name, score in found.items()} == pytest.approx(expected, rel=1e-9)
    assert found["rmse"].each == pytest.approx([np.square(g - t).mean() ** 0.5 for t, g in columns])
    assert found["r2"].each == pytest.approx(explained, nan_ok=True) and "1 of 3 targets" in found["r2"].note


def _share(world: World, rows: np.ndarray) -> tuple[list[float], list[float]]:
    mine = rows if world.size == 1 else [rows[:5], rows[:0], rows[5:]][world.rank]
    mean, std = mean_and_std(world, mine, "test")
    return mean.tolist(), std.tolist()


def test_means_and_deviations_are_of_what_is_there_the_same_bits_on_three_ranks() -> None:
    generator = np.random.default_rng(2)
    rows = generator.normal(size=(101, 3)) * [1.0, 1e6, 1.0] + [0.0, 3e7, 0.0]
    rows[generator.random((101, 3)) < 0.4] = NAN
    rows[:, 2] = NAN
    (one,) = run_ranks(_share, 1, rows)
    assert run_ranks(_share, 3, rows) == [one] * 3
    assert np.allclose(one[0][:2], np.nanmean(rows[:, :2], axis=0), rtol=1e-14)
    assert np.allclose(one[1][:2], np.nanstd(rows[:, :2], axis=0), rtol=1e-12)
    assert (one[0][2], one[1][2]) == (0.0, 0.0)


def test_weights_are_balanced_by_what_is_there() -> None:
    assert balanced_weights(np.array([1, 2, 0]), np.array([4, 10, 3]), True) == (3.0, 4.0, 1.0)


def test_where_every_label_is_there_nothing_is_counted_in_other_units() -> None:
    task, labels = classification(Attribute("float32", (3,), 0, 1)), torch.tensor([[1.0, 0.0, 1.0]] * 2)
    assert not task.has_weights and task.weight(batch_of(labels, 2)) == 2 and task.num_entries(batch_of(labels, 2)) == 6
    assert "label_missing" not in task.label_columns(labels.numpy(), [])
    with pytest.raises(ExperimentError, match="label_accuracy is about several labels"):
        classification(Attribute("int64", (), 0, 3))
