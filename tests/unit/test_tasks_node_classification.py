"""Node classification: what it reads from the schema, its loss, and metrics however the seeds are shared out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from sklearn.metrics import accuracy_score, average_precision_score, f1_score, roc_auc_score
from torch.nn import functional
from torch_geometric.data import HeteroData
from torchmetrics import MetricCollection

from disttrain import config
from disttrain.config import ExperimentError
from disttrain.graph.schema import Attribute, Nodes, Schema
from disttrain.tasks import NodeClassification, build_task
from disttrain.tasks.labels import SPLITS

ALL = ("accuracy", "micro_f1", "macro_f1", "auroc", "average_precision")


def schema_with(label: Attribute, **info: Any) -> Schema:
    masks = {mask: Attribute("bool") for mask in SPLITS.values()}
    return Schema(
        {"paper": Nodes(10, {"y": label, **masks}), "author": Nodes(5, {"x": Attribute("float32", (3,))})}, {}, info
    )


def task_of(attribute: Attribute, info: dict[str, Any] | None = None, **settings: Any) -> NodeClassification:
    task = config.NodeClassification(kind="node_classification", metrics=ALL, **settings)
    built = build_task(task, schema_with(attribute, **(info or {})))
    assert isinstance(built, NodeClassification)
    return built


def batch_of(labels: torch.Tensor, batch_size: int) -> HeteroData:
    batch = HeteroData()
    batch["paper"].y, batch["paper"].batch_size = labels, batch_size
    return batch


def test_what_the_schema_says() -> None:
    task = task_of(Attribute("int64", (), -1, 3))
    assert (task.node_type, task.multilabel, task.out_channels) == ("paper", False, 4)
    assert task.wants.nodes == {"paper": ("y",)}
    assert task.splits["val"] == "val_mask"
    assert task_of(Attribute("int64", (), 0, 1), info={"classes": {"paper": ["a", "b", "c"]}}).out_channels == 3
    assert task_of(Attribute("float32", (), 0, 2, missing=4)).out_channels == 3
    assert task_of(Attribute("bool")).out_channels == 2
    assert task_of(Attribute("int64", (1,), 0, 4)).multilabel is False
    several = task_of(Attribute("float32", (5,), 0, 1))
    assert (several.multilabel, several.out_channels) == (True, 5)


@pytest.mark.parametrize(
    ("label", "settings", "message"),
    [
        (Attribute("int64", (), 0, 3), {"label": "z"}, "none has"),
        (Attribute("int64", (), 0, 3), {"node_type": "papr"}, 'did you mean "paper"'),
        (Attribute("int64", (), 0, 3), {"node_type": "author"}, 'has no attribute "y"'),
        (Attribute("int64", (), 0, 3), {"multilabel": True}, "needs the shape"),
        (Attribute("int64", (4,), 0, 1), {"multilabel": False}, "4 columns"),
        (Attribute("int64", (4,), 0, 7), {}, "zeros and ones"),
        (Attribute("float32", (), 0, 1.5), {}, "whole numbers"),
        (Attribute("int64", (), -1, -1), {}, "no label"),
        (Attribute("float32", (2, 2), 0, 1), {}, "one or two axes"),
        (Attribute("int64", (), 0, 10**12), {}, "number the classes from 0 on"),
    ],
)
def test_labels_that_do_not_fit_are_refused(label: Attribute, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ExperimentError, match=message):
        task_of(label, **settings)


def test_classes_with_weights_are_named_by_their_names() -> None:
    label = Attribute("int64", (), 0, 2)

    def weights(given: Any, *names: str) -> Any:
        return task_of(label, info={"classes": {"paper": list(names)}}, class_weights=given).weights_setting

    assert weights({1: 5.0}, "1", "2", "3") == weights({"1": 5.0}, "1", "2", "3") == (5.0, 1.0, 1.0)
    assert weights({3: 5.0, "2": 0.0}, "1", "2", "3") == (1.0, 0.0, 5.0)
    assert weights({-1: 2.0}, "-1", "0", "1") == (2.0, 1.0, 1.0)
    assert weights({1: 5.0}, "a", "b", "c") == weights({"b": 5.0}, "a", "b", "c") == (1.0, 5.0, 1.0)
    assert weights({1: 5.0}) == weights({"1": 5.0}) == (1.0, 5.0, 1.0)
    for wrong, names in (({0: 1.0}, "123"), ({3: 1.0}, "abc"), ({"d": 1.0}, "abc"), ({3: 1.0}, "")):
        with pytest.raises(ExperimentError, match="there is no class"):
            weights(wrong, *names)


def test_a_label_that_two_types_have_needs_a_node_type() -> None:
    schema = schema_with(Attribute("int64", (), 0, 3))
    schema.nodes["author"].attributes["y"] = Attribute("int64", (), 0, 3)
    with pytest.raises(ExperimentError, match=r"several have \(paper, author\)"):
        build_task(config.NodeClassification(kind="node_classification"), schema)


def test_loss_is_the_sum_over_seeds() -> None:
    task = task_of(Attribute("int64", (), 0, 3))
    labels, logits = torch.tensor([3, 0, 1, -1, -1]), torch.randn(3, 4, requires_grad=True)
    expected = functional.cross_entropy(logits, labels[:3]) * 3
    torch.testing.assert_close(task.loss(logits, batch_of(labels, 3)), expected)
    with torch.autocast("cpu", torch.bfloat16):
        low = task.loss(logits.bfloat16(), batch_of(labels, 3))
    assert low.dtype == torch.float32
    several = task_of(Attribute("float32", (4,), 0, 1))
    ones = (torch.rand(5, 4) > 0.5).float()
    expected = functional.binary_cross_entropy_with_logits(logits, ones[:3]) * 3
    torch.testing.assert_close(several.loss(logits, batch_of(ones, 3)), expected)


@pytest.mark.parametrize("columns", [1, 4])
def test_an_empty_batch_is_zero_and_connected(columns: int) -> None:
    task = task_of(Attribute("int64", (4,), 0, 1) if columns > 1 else Attribute("int64", (), 0, 3))
    weight = torch.randn(2, 4, requires_grad=True)
    batch = batch_of(torch.zeros(0, 4) if columns > 1 else torch.zeros(0), 0)
    logits = torch.empty(0, 2) @ weight
    loss = task.loss(logits, batch)
    loss.backward()
    assert loss.item() == 0
    assert torch.equal(weight.grad, torch.zeros(2, 4))  # type: ignore[arg-type]
    metrics = task.metrics()
    task.update(metrics, logits, batch)
    assert not any(metric.update_called for metric in metrics.values())


def values(metrics: MetricCollection) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.compute().items()}


@pytest.mark.parametrize("num_classes", [2, 3])
def test_metrics_of_classes_are_those_of_scikit_learn(num_classes: int) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(60, num_classes, generator=generator) * 40  # so sure that float32 would call many scores equal
    labels = torch.randint(0, num_classes, (60,), generator=generator)
    task = task_of(Attribute("int64", (), 0, num_classes - 1))
    metrics = task.metrics()
    for part in torch.arange(60).split(17):
        task.update(metrics, logits[part].requires_grad_(), batch_of(labels[part], len(part)))
    scores = logits.double().softmax(1).numpy()
    guess, truth = scores.argmax(1), labels.numpy()
    if num_classes == 2:
        area, precision = roc_auc_score(truth, scores[:, 1]), average_precision_score(truth, scores[:, 1])
    else:
        one_hot = functional.one_hot(labels).numpy()
        area = roc_auc_score(truth, scores, multi_class="ovr", average="macro")
        precision = average_precision_score(one_hot, scores, average="macro")
    assert values(metrics) == pytest.approx(
        {
            "accuracy": accuracy_score(truth, guess),
            "micro_f1": f1_score(truth, guess, average="micro"),
            "macro_f1": f1_score(truth, guess, average="macro"),
            "auroc": area,
            "average_precision": precision,
        },
        abs=1e-6,
    )


def test_metrics_of_labels_are_those_of_scikit_learn() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(40, 3, generator=generator)
    labels = (torch.rand(40, 3, generator=generator) < 0.4).float()
    task = task_of(Attribute("float32", (3,), 0, 1))
    metrics = task.metrics()
    task.update(metrics, logits, batch_of(labels, 40))
    scores, truth = logits.sigmoid().numpy(), labels.int().numpy()
    guess = (scores > 0.5).astype(int)
    assert values(metrics) == pytest.approx(
        {
            "accuracy": accuracy_score(truth, guess),
            "micro_f1": f1_score(truth, guess, average="micro"),
            "macro_f1": f1_score(truth, guess, average="macro"),
            "auroc": roc_auc_score(truth, scores, average="macro"),
            "average_precision": average_precision_score(truth, scores, average="macro"),
        },
        abs=1e-6,
    )


@pytest.mark.parametrize("label", [Attribute("int64", (), 0, 2), Attribute("float32", (3,), 0, 1), Attribute("bool")])
def test_states_of_ranks_merge_to_those_of_one(label: Attribute) -> None:
    """What the trainer relies on: each state is a count or a list, and a rank without seeds has nothing to add."""
    task = task_of(label)
    width = task.out_channels
    logits, generator = torch.randn(30, width), torch.Generator().manual_seed(2)
    shape = (30, 3) if task.multilabel else (30,)
    labels = torch.randint(0, 2 if task.multilabel else width, shape, generator=generator)
    one = task.metrics()
    task.update(one, logits, batch_of(labels, 30))
    merged = task.metrics()
    for part in (torch.arange(30)[:11], torch.arange(0), torch.arange(30)[11:]):
        rank = task.metrics()
        task.update(rank, logits[part], batch_of(labels[part], len(part)))
        for name, metric in rank.items():
            if metric.update_called:
                merged[name].merge_state(metric.metric_state)
    for metric in merged.values():
        metric._update_count = 1
    assert values(merged) == values(one)
