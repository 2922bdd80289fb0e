"""Node classification: one class per seed, or several labels.

Metrics over ranks: each rank updates its own `MetricCollection` and never synchronises through torchmetrics. Every
state is either a count, which the trainer adds up over ranks, or a list of predictions or targets, which it joins;
ranks without seeds have nothing to add. So the result is that of one rank that saw all seeds, exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor
from torch.nn import functional
from torch_geometric.data import HeteroData
from torchmetrics import Metric, MetricCollection
from torchmetrics import classification as tm
from torchmetrics.functional.classification import binary_auroc, binary_average_precision
from torchmetrics.utilities.data import dim_zero_cat

from .. import config
from ..config import ExperimentError
from ..config.counted import counted
from ..data.nearest import nearest
from ..data.split import entries_there as known_entries
from ..data.split import has_label
from ..graph.graph import Graph
from ..graph.schema import Schema, Wants
from ..world import World
from .columns import Columns, class_columns, label_set_columns, label_sets, named
from .entries import AllRight, entries_of_one, entries_there, lacks_some, score_of_counts
from .labels import SPLITS, find_label, label_place, own_training_labels
from .task import Direction, Score

_MOST_SPARE_CLASSES = 1 << 20
"""As high may a class be in spite of fewer nodes: the model has an output for each class up to the highest."""

_RANKED: dict[str, Callable[..., Tensor]] = {"auroc": binary_auroc, "average_precision": binary_average_precision}
"""Metrics of the order of the scores: each class or label has one, where some seeds have it and some do not."""


@dataclass(frozen=True)
class NodeClassification:
    """What node classification is on one graph: labels, loss and metrics of the seeds."""

    node_type: str
    label: str
    multilabel: bool
    num_classes: int
    """Classes, or labels where there are several per node."""
    metric_names: tuple[str, ...]
    lacking: bool = False
    """Seeds may lack single labels of several."""
    weights_setting: Literal["none", "balanced"] | tuple[float, ...] = "none"
    """What the experiment says, with a weight for each class where it gives some."""
    weights: tuple[float, ...] | None = None
    """Of each class, or of a one against a zero of each label; before `settled`, None."""

    @classmethod
    def build(cls, task: config.NodeClassification, schema: Schema) -> NodeClassification:
        """Settle what the experiment leaves open, from the schema.

        Raises:
            ExperimentError: the node type or the label does not exist, or the label is not one that can be classified.
        """
        node_type, label = find_label(schema, task.node_type, task.label)
        where = label_place(node_type, task.label)
        columns = label.shape[0] if label.shape else 1
        multilabel = columns > 1 if task.multilabel == "auto" else task.multilabel
        if multilabel and not label.shape:
            raise ExperimentError(
                f"{where} has one class per node, but task.multilabel is true; "
                "multi-label needs the shape [num_nodes, num_labels]"
            )
        if not multilabel and columns != 1:
            raise ExperimentError(
                f"{where} has {counted(columns, 'column')}, but task.multilabel is false; "
                "set it to true, or choose a label with one column"
            )
        names = schema.info.get("classes", {}).get(node_type, [])
        if label.dtype == "bool":
            high = 1.0
        elif label.high is None or label.high < 0:
            raise ExperimentError(f"{where} holds no label (all are missing or negative)")
        else:
            high = label.high
        if multilabel:
            if high > 1:
                raise ExperimentError(f"{where}: multi-label needs zeros and ones, the largest value is {high:g}")
            weights = _class_weights(task, columns, names)
            return cls(node_type, task.label, True, columns, task.metrics, lacks_some(label), weights)
        if "label_accuracy" in task.metrics:
            raise ExperimentError(
                f"task.metrics: label_accuracy is about several labels, and {where} has one class; take accuracy"
            )
        if high != int(high):
            raise ExperimentError(f"{where}: classes are whole numbers from 0 on, the largest value is {high:g}")
        if high >= max(schema.nodes[node_type].count, _MOST_SPARE_CLASSES):
            raise ExperimentError(
                f"{where}: the highest class is {high:.0f}, more than there are nodes "
                f"({schema.nodes[node_type].count:,}); number the classes from 0 on"
            )
        num_classes = max(int(high) + 1, len(names), 2)
        weights = _class_weights(task, num_classes, names)
        return cls(node_type, task.label, False, num_classes, task.metrics, weights_setting=weights)

    def settled(self, world: World, graph: Graph) -> NodeClassification:
        """With the weights of the classes; `balanced` ones by the training labels of the whole graph."""
        if self.weights_setting == "none":
            return self
        if self.weights_setting != "balanced":
            return replace(self, weights=self.weights_setting)

        def own() -> tuple[np.ndarray, Any]:
            labels = own_training_labels(world, graph, self.node_type, self.label)
            if self.multilabel:
                return (labels > 0).sum(axis=0), known_entries(labels).sum(axis=0)
            return np.bincount(labels.reshape(-1).astype(np.int64), minlength=self.num_classes), len(labels)

        what = "counting the training labels"
        counted = world.gather(world.together(own, what), what)
        counts, num_seeds = sum(counts for counts, _ in counted), sum(seeds for _, seeds in counted)
        return replace(self, weights=balanced_weights(np.asarray(counts), num_seeds, self.multilabel))

    @property
    def out_channels(self) -> int:
        """Width of the model's output."""
        return self.num_classes

    @property
    def wants(self) -> Wants:
        return Wants(nodes={self.node_type: (self.label,)})

    @property
    def splits(self) -> dict[str, str]:
        """Split -> node attribute (bool) that marks its seeds."""
        return SPLITS

    def targets(self, batch: HeteroData) -> Tensor:
        """The seeds' labels: int64 [batch_size] classes, or float32 [batch_size, num_classes] of zeros and ones, and
        of NaN or negative numbers where a label is not there."""
        store = batch[self.node_type]
        labels = store[self.label][: store.batch_size]
        return labels.float() if self.multilabel else labels.reshape(-1).long()

    @property
    def has_weights(self) -> bool:
        return self.lacking if self.multilabel else self.weights is not None

    def weight(self, batch: HeteroData) -> Tensor | float:
        """The sum of the weights of the seeds' classes; with several labels, a seed counts 1, or where some lack labels
        those that are there, see `entries_of_one`."""
        if not self.has_weights:
            return batch[self.node_type].batch_size
        if self.multilabel:
            return self.num_entries(batch) / self._of_one
        targets = self.targets(batch)
        return self._weights_on(targets.device)[targets].sum()

    def num_entries(self, batch: HeteroData) -> Tensor | int:
        if self.lacking:
            return entries_there(self.targets(batch)).sum()
        return batch[self.node_type].batch_size * (self.num_classes if self.multilabel else 1)

    @property
    def _of_one(self) -> int:
        return entries_of_one(self.num_classes, self.lacking)

    def loss(self, logits: Tensor, batch: HeteroData) -> Tensor:
        """Sum over the seeds, in fp32: cross entropy, or binary cross entropy averaged over a seed's labels; where some
        lack labels, the sum over those that are there, in the same units as `weight`.

        Zero for an empty batch, and connected to the model all the same.
        """
        targets, weights = self.targets(batch), self._weights_on(logits.device)
        # Autocast would take the sum of many small numbers in half precision.
        with torch.autocast(logits.device.type, enabled=False):
            if not self.multilabel:
                return functional.cross_entropy(logits.float(), targets, weight=weights, reduction="sum")
            lacks = ~entries_there(targets)
            each = functional.binary_cross_entropy_with_logits(
                logits.float(), targets.masked_fill(lacks, 0.0), pos_weight=weights, reduction="none"
            )
            return each.masked_fill(lacks, 0.0).sum() / self._of_one

    def _weights_on(self, device: torch.device) -> Any:
        """float32 [num_classes] on a device, without waiting for it; None where there are none."""
        return None if self.weights is None else torch.tensor(self.weights).to(device, non_blocking=True)

    @property
    def directions(self) -> Mapping[str, Direction]:
        return dict.fromkeys(self.metric_names, "max")

    def metrics(self) -> MetricCollection:
        """The metrics of the experiment, on the CPU.

        accuracy: share of seeds whose class is right (multi-label: whose every label is, "exact match").
        label_accuracy: share of all labels of all seeds that are right.
        micro_f1, macro_f1: over classes or labels; macro leaves out those that neither occur nor are predicted.
        auroc, average_precision: exact, without binning; of class 1 where there are two classes, else the mean over
        classes (one against the rest) or labels.
        Labels that seeds lack count for nothing in any of them.
        """
        # Shared states would have to be sent and merged by group; each metric keeps its own.
        made: dict[str, Metric | MetricCollection] = {name: self._metric(name) for name in self.metric_names}
        return MetricCollection(made, compute_groups=False)

    def _metric(self, name: str) -> Metric:
        classes: dict[str, Any] = {"num_classes": self.num_classes}
        labels: dict[str, Any] = {"num_labels": self.num_classes, "ignore_index": -1}
        if self.multilabel:
            return {
                "accuracy": AllRight,
                "label_accuracy": lambda: tm.MultilabelAccuracy(average="micro", **labels),
                "micro_f1": lambda: tm.MultilabelF1Score(average="micro", **labels),
                "macro_f1": lambda: tm.MultilabelF1Score(average="macro", **labels),
                "auroc": lambda: tm.MultilabelAUROC(average="macro", thresholds=None, **labels),
                "average_precision": lambda: tm.MultilabelAveragePrecision(average="macro", thresholds=None, **labels),
            }[name]()
        binary = self.num_classes == 2
        return {
            "accuracy": lambda: tm.MulticlassAccuracy(average="micro", **classes),
            "micro_f1": lambda: tm.MulticlassF1Score(average="micro", **classes),
            "macro_f1": lambda: tm.MulticlassF1Score(average="macro", **classes),
            "auroc": lambda: (
                tm.BinaryAUROC(thresholds=None)
                if binary
                else tm.MulticlassAUROC(average="macro", thresholds=None, **classes)
            ),
            "average_precision": lambda: (
                tm.BinaryAveragePrecision(thresholds=None)
                if binary
                else tm.MulticlassAveragePrecision(average="macro", thresholds=None, **classes)
            ),
        }[name]()

    def probabilities(self, logits: Tensor) -> Tensor:
        """[batch_size, num_classes] float64 on the CPU: softmax over classes, or a sigmoid per label."""
        # float64, so that confident predictions do not become equal and lose their order.
        logits = logits.detach().cpu().double()
        return logits.sigmoid() if self.multilabel else logits.softmax(dim=-1)

    def predictions(self, logits: Tensor) -> Tensor:
        """int64 on the CPU: [batch_size] classes, or [batch_size, num_classes] zeros and ones."""
        logits = logits.detach().cpu()
        return (logits > 0).long() if self.multilabel else logits.argmax(dim=-1)

    def update(self, metrics: MetricCollection, logits: Tensor, batch: HeteroData) -> None:
        """Count the seeds of a batch; an empty one changes nothing."""
        if logits.size(0) == 0:
            return
        # Probabilities, because torchmetrics guesses from each batch's values whether it was given logits.
        scores = self.probabilities(logits)
        targets = self.targets(batch).cpu()
        targets = torch.where(entries_there(targets), targets, -1).long()
        for metric in metrics.values(copy_state=False):
            if isinstance(metric, (tm.BinaryAUROC, tm.BinaryAveragePrecision)):
                metric.update(scores[:, 1], targets)
            else:
                metric.update(scores, targets)

    def columns(self, logits: Tensor, names: Sequence[str]) -> Columns:
        """What is predicted for each row of `logits`, as the files of `disttrain predict` have it.

        Args:
            names: of the classes or labels, or nothing.
        """
        make = label_set_columns if self.multilabel else class_columns
        return make(self.probabilities(logits), names)

    def label_columns(self, labels: np.ndarray, names: Sequence[str]) -> Columns:
        """`label`, and `label_name` where names are known; null where there is none. Where nodes may lack some of
        several labels, `label_missing` (and its names) lists these."""
        present = self.has_label(labels)
        if self.multilabel:
            found = named("label", label_sets(labels > 0, present), names)
            if self.lacking:
                found |= named("label_missing", label_sets(~known_entries(labels)), names)
            return found
        classes = np.where(present, labels.reshape(-1), 0).astype(np.int32)
        return named("label", pa.array(classes, mask=~present), names)

    def has_label(self, labels: np.ndarray) -> np.ndarray:
        """Which rows of the label attribute are a label, bool [N]; others are neither trained on nor scored."""
        return has_label(labels)

    def score(self, name: str, metric: Metric) -> Score:
        """A class or label that all seeds have, or none, has no order to score: it is left out of the mean."""
        if name not in _RANKED:
            if self.multilabel and name in ("label_accuracy", "macro_f1"):
                return score_of_counts(name, metric.metric_state)
            return Score(float(metric.compute()))
        state = metric.metric_state
        scores, targets = dim_zero_cat(state["preds"]), dim_zero_cat(state["target"])
        if scores.dim() == 1:
            scores, targets = scores.unsqueeze(1), targets.unsqueeze(1)
        elif targets.dim() == 1:
            targets = functional.one_hot(targets, self.num_classes)
        there = targets >= 0
        ones, counts = (targets > 0).sum(dim=0), there.sum(dim=0)
        # Without zeros each order is right: that is a precision of 1, but no area.
        ranked = (ones > 0) & (ones < counts) if name == "auroc" else ones > 0
        what = "labels" if self.multilabel else "classes"
        if not ranked.any():
            return Score(math.nan, f"{name} has no value: {what} that some seeds have and some have not are needed")
        each = torch.full((len(ranked),), torch.nan)  # as exact as torchmetrics has the areas
        for k in ranked.nonzero().flatten().tolist():
            known = there[:, k]
            each[k] = _RANKED[name](scores[known, k], targets[known, k], thresholds=None)
        left_out = int((~ranked).sum())
        note = f"{name} leaves out {left_out} of {len(ranked)} {what}, which no seed or all seeds have"
        return Score(
            float(each[ranked].mean()), note if left_out else "", tuple(each.tolist()) if self.multilabel else ()
        )

    def describe(self) -> dict[str, Any]:
        return {} if self.weights is None else {"class_weights": list(self.weights)}

    def as_trained(self, described: dict[str, Any]) -> NodeClassification:
        return replace(self, weights=tuple(described["class_weights"]) if "class_weights" in described else None)


def balanced_weights(counts: np.ndarray, num_seeds: Any, multilabel: bool) -> tuple[float, ...]:
    """Weights by which all classes count alike; 1 where there is nothing to go by.

    Args:
        counts: int [num_classes], the training seeds of each class, or with each label.
        num_seeds: training seeds; of several labels, maybe of each the number of those that have it or have it not.

    Returns:
        num_seeds / (classes that occur * count) of each class, by which a seed counts 1 on average; or zeros / ones of
        each label.
    """
    if multilabel:
        zeros = num_seeds - counts
        return tuple(np.where((counts > 0) & (zeros > 0), zeros / np.maximum(counts, 1), 1.0).tolist())
    occurring = np.count_nonzero(counts)
    return tuple(np.where(counts > 0, num_seeds / (occurring * np.maximum(counts, 1)), 1.0).tolist())


def _class_weights(
    task: config.NodeClassification, num_classes: int, names: list[str]
) -> Literal["none", "balanced"] | tuple[float, ...]:
    """The experiment's weights, one for each class."""
    given = task.class_weights
    if isinstance(given, str):
        return given
    if isinstance(given, tuple):
        if len(given) != num_classes:
            raise ExperimentError(
                f"task.class_weights: expected {counted(num_classes, 'weight')}, one for each class or label, got "
                f"{len(given)}"
            )
        weights = list(given)
    else:
        weights = [1.0] * num_classes
        for name, weight in given.items():
            place = _place(name, names)
            if not 0 <= place < num_classes:
                hint = nearest(str(name), names) if names else f"; expected 0 to {num_classes - 1}"
                raise ExperimentError(f"task.class_weights: there is no class {name!r}{hint}")
            weights[place] = weight
    if not any(weights):
        raise ExperimentError("task.class_weights: all are 0, which leaves nothing to learn from")
    return tuple(weights)


def _place(name: str | int, names: list[str]) -> int:
    """The number of a class; -1: there is none. Where a class's own name is a number, a number is never a place."""
    if str(name) in names:
        return names.index(str(name))
    if any(own.lstrip("-").isdecimal() for own in names):
        return -1
    return int(name) if isinstance(name, int) or name.isdecimal() else -1
