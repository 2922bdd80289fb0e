"""Node regression: what it reads from the schema, its loss, and metrics in the label's own units."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import mean_absolute_error, mean_absolute_percentage_error, mean_squared_error, r2_score
from torch.nn import functional
from torch_geometric.data import HeteroData
from torchmetrics import MetricCollection

from disttrain import config
from disttrain.config import ExperimentError
from disttrain.graph.schema import Attribute, Nodes, Schema
from disttrain.tasks import NodeRegression, build_task
from disttrain.tasks.labels import SPLITS, exact_sum, mean_and_std
from disttrain.world import World
from tests.ranks import run_ranks

ALL = ("mae", "rmse", "mse", "mape", "r2")


def task_of(label: Attribute, mean: Any = (0.0,), std: Any = (1.0,), **settings: Any) -> NodeRegression:
    masks = {mask: Attribute("bool") for mask in SPLITS.values()}
    schema = Schema({"paper": Nodes(10, {"y": label, **masks})}, {})
    task = build_task(config.NodeRegression(kind="node_regression", metrics=ALL, **settings), schema)
    assert isinstance(task, NodeRegression)
    return NodeRegression(**{**task.__dict__, "mean": tuple(mean), "std": tuple(std)})


def batch_of(labels: torch.Tensor) -> HeteroData:
    batch = HeteroData()
    batch["paper"].y, batch["paper"].batch_size = labels, len(labels)
    return batch


def values(task: NodeRegression, metrics: MetricCollection) -> dict[str, float]:
    return {name: task.score(name, metric).value for name, metric in metrics.items(keep_base=True, copy_state=False)}


@pytest.mark.parametrize(
    ("label", "message"),
    [
        (Attribute("bool"), "node_classification"),
        (Attribute("float32", (), None, None, missing=10), "no label"),
        (Attribute("float32", (0,), 0, 1), "has no column"),
        (Attribute("float32", (2, 2), 0, 1), "one or two axes"),
    ],
)
def test_labels_that_are_no_numbers_are_refused(label: Attribute, message: str) -> None:
    with pytest.raises(ExperimentError, match=message):
        task_of(label)


@pytest.mark.parametrize("loss", ["mse", "l1", "huber"])
def test_loss_is_the_sum_over_seeds_of_the_mean_over_standardised_targets(loss: Any) -> None:
    mean, std = (1900.0, -2.0), (30.0, 0.5)
    task = task_of(Attribute("float32", (2,), 0, 1), mean, std, loss=loss, delta=0.7)
    targets = torch.tensor([[1960.0, -2.5], [1900.0, 0.0], [1870.0, -2.0]])
    logits = torch.randn(3, 2, requires_grad=True)
    standard = (targets - torch.tensor(mean)) / torch.tensor(std)
    compare = {"mse": functional.mse_loss, "l1": functional.l1_loss}
    one = compare[loss](logits, standard) if loss in compare else functional.huber_loss(logits, standard, delta=0.7)
    torch.testing.assert_close(task.loss(logits, batch_of(targets)), one * 3)
    plain = task_of(Attribute("float32", (2,), 0, 1), mean, std, loss="l1", standardize=False)
    torch.testing.assert_close(plain.loss(logits, batch_of(targets)), (logits - targets).abs().mean(dim=1).sum())


def test_an_empty_batch_is_zero_and_connected() -> None:
    task = task_of(Attribute("float32", (), 0, 1))
    weight = torch.randn(2, 1, requires_grad=True)
    logits = torch.empty(0, 2) @ weight
    loss = task.loss(logits, batch_of(torch.empty(0)))
    loss.backward()
    assert loss.item() == 0
    assert torch.equal(weight.grad, torch.zeros(2, 1))  # type: ignore[arg-type]


@pytest.mark.parametrize("columns", [1, 3])
@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_metrics_are_those_of_scikit_learn_in_the_users_units_however_the_seeds_are_shared(columns: int, offset: float):
    generator = np.random.default_rng(0)
    targets = offset + generator.normal(size=(60, columns)) * np.arange(1, columns + 1)
    mean, std = targets.mean(axis=0), targets.std(axis=0)
    task = task_of(Attribute("float64", (columns,), 0, 1), mean, std)
    logits = (targets - mean) / std + 0.3 * generator.normal(size=targets.shape)
    merged = task.metrics()
    for part in (range(11), range(0), range(11, 40), range(40, 60)):
        rank = task.metrics()
        task.update(rank, torch.tensor(logits[part]), batch_of(torch.tensor(targets[part])))
        for name, metric in rank.items():
            if metric.update_called:
                merged[name].merge_state(metric.metric_state)
    for metric in merged.values():
        metric._update_count = 1
    guess = logits * std + mean
    expected = {
        "mae": mean_absolute_error(targets, guess),
        "mse": mean_squared_error(targets, guess),
        "rmse": mean_squared_error(targets, guess) ** 0.5,
        "mape": mean_absolute_percentage_error(targets, guess),
        "r2": r2_score(targets, guess),
    }
    assert values(task, merged) == pytest.approx(expected, rel=1e-9)
    torch.testing.assert_close(task.predictions(torch.tensor(logits)), torch.tensor(guess))


def test_r2_of_tiny_and_of_constant_targets() -> None:
    task = task_of(Attribute("float32", (2,), 0, 1), (0.0, 7.0), (1.0, 1.0))
    targets = torch.tensor([[1e-5, 7.0], [-1e-5, 7.0]])
    metrics = task.metrics()
    task.update(metrics, torch.tensor([[0.5e-5, 0.0], [-0.5e-5, 0.0]]), batch_of(targets))
    score = task.score("r2", metrics["r2"])  # type: ignore[arg-type]
    assert score.value == pytest.approx(0.75, rel=1e-6)
    assert "1 of 2 targets that do not vary" in score.note
    alone = task.metrics()
    task.update(alone, torch.zeros(1, 2), batch_of(targets[:1]))
    assert np.isnan(task.score("r2", alone["r2"]).value)  # type: ignore[arg-type]


def test_a_sum_does_not_depend_on_the_order() -> None:
    generator = np.random.default_rng(1)
    values = generator.normal(size=2000) * 10.0 ** generator.integers(-30, 30, 2000)
    expected = sum(map(Fraction, values.tolist()), Fraction(0))
    assert exact_sum(values) == exact_sum(values[::-1]) == exact_sum(values[:7]) + exact_sum(values[7:]) == expected
    assert exact_sum(np.empty(0)) == 0


def _share(world: World, rows: np.ndarray) -> tuple[list[float], list[float]]:
    mine = rows if world.size == 1 else [rows[:5], rows[:0], rows[5:]][world.rank]
    mean, std = mean_and_std(world, mine, "test")
    return mean.tolist(), std.tolist()


def test_mean_and_deviation_are_the_same_bits_on_one_rank_and_three() -> None:
    rows = np.random.default_rng(2).normal(size=(101, 2)) * [1.0, 1e6] + [0.0, 3e7]
    (one,) = run_ranks(_share, 1, rows)
    assert run_ranks(_share, 3, rows) == [one] * 3
    assert np.allclose(one[0], rows.mean(axis=0), rtol=1e-14)
    assert np.allclose(one[1], rows.std(axis=0), rtol=1e-12)
