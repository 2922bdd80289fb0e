"""Node classification: one class per seed, or several labels.

Metrics over ranks: each rank updates its own `MetricCollection` and never synchronises through torchmetrics. Every
state is either a count, which the trainer adds up over ranks, or a list of predictions or targets, which it joins;
ranks without seeds have nothing to add. So the result is that of one rank that saw all seeds, exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor
from torch.nn import functional
from torch_geometric.data import HeteroData
from torchmetrics import Metric, MetricCollection
from torchmetrics import classification as tm

from .. import config
from ..config import ExperimentError
from ..data.nearest import nearest
from ..data.split import has_label
from ..graph.schema import Schema, Wants
from .columns import Columns, class_columns, label_set_columns, label_sets, named

_MOST_SPARE_CLASSES = 1 << 20
"""As high may a class be in spite of fewer nodes: the model has an output for each class up to the highest."""

SPLITS = {"train": "train_mask", "val": "val_mask", "test": "test_mask"}


@dataclass(frozen=True)
class NodeClassification:
    """What node classification is on one graph: labels, loss and metrics of the seeds."""

    node_type: str
    label: str
    multilabel: bool
    num_classes: int
    """Classes, or labels where there are several per node."""
    metric_names: tuple[str, ...]

    @classmethod
    def build(cls, task: config.NodeClassification, schema: Schema) -> NodeClassification:
        """Settle what the experiment leaves open, from the schema.

        Raises:
            ExperimentError: the node type or the label does not exist, or the label is not one that can be classified.
        """
        node_type = _node_type(task, schema)
        attributes = schema.nodes[node_type].attributes
        where = f'task.label: attribute "{task.label}" of node type "{node_type}"'
        if task.label not in attributes:
            raise ExperimentError(
                f'task.label: node type "{node_type}" has no attribute "{task.label}"{nearest(task.label, attributes)}'
            )
        for mask in SPLITS.values():
            if mask not in attributes:
                raise ExperimentError(
                    f'task.node_type: "{node_type}" has no {mask}; say with data.split how to divide it'
                )
        label = attributes[task.label]
        if len(label.shape) > 1:
            raise ExperimentError(
                f"{where} has shape [num_nodes, {', '.join(map(str, label.shape))}]; expected one or two axes"
            )
        columns = label.shape[0] if label.shape else 1
        multilabel = columns > 1 if task.multilabel == "auto" else task.multilabel
        if multilabel and not label.shape:
            raise ExperimentError(
                f"{where} has one class per node, but task.multilabel is true; "
                "multi-label needs the shape [num_nodes, num_labels]"
            )
        if not multilabel and columns != 1:
            raise ExperimentError(
                f"{where} has {columns} columns, but task.multilabel is false; "
                "set it to true, or choose a label with one column"
            )
        if label.dtype == "bool":
            high = 1.0
        elif label.high is None or label.high < 0:
            raise ExperimentError(f"{where} holds no label (all are missing or negative)")
        else:
            high = label.high
        if multilabel:
            if high > 1:
                raise ExperimentError(f"{where}: multi-label needs zeros and ones, the largest value is {high:g}")
            return cls(node_type, task.label, True, columns, task.metrics)
        if high != int(high):
            raise ExperimentError(f"{where}: classes are whole numbers from 0 on, the largest value is {high:g}")
        if high >= max(schema.nodes[node_type].count, _MOST_SPARE_CLASSES):
            raise ExperimentError(
                f"{where}: the highest class is {high:.0f}, but there are only {schema.nodes[node_type].count} nodes; "
                "number the classes from 0 on"
            )
        names = schema.info.get("classes", {}).get(node_type, [])
        return cls(node_type, task.label, False, max(int(high) + 1, len(names), 2), task.metrics)

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
        """The seeds' labels: int64 [batch_size] classes, or float32 [batch_size, num_classes] of zeros and ones."""
        store = batch[self.node_type]
        labels = store[self.label][: store.batch_size]
        return labels.float() if self.multilabel else labels.reshape(-1).long()

    def loss(self, logits: Tensor, batch: HeteroData) -> Tensor:
        """Sum over the seeds, in fp32: cross entropy, or binary cross entropy averaged over a seed's labels.

        Zero for an empty batch, and connected to the model all the same.
        """
        targets = self.targets(batch)
        # Autocast would take the sum of many small numbers in half precision.
        with torch.autocast(logits.device.type, enabled=False):
            if not self.multilabel:
                return functional.cross_entropy(logits.float(), targets, reduction="sum")
            total = functional.binary_cross_entropy_with_logits(logits.float(), targets, reduction="sum")
            return total / self.num_classes

    def metrics(self) -> MetricCollection:
        """The metrics of the experiment, on the CPU.

        accuracy: share of seeds whose class is right (multi-label: whose every label is, "exact match").
        micro_f1, macro_f1: over classes or labels; macro leaves out those that neither occur nor are predicted.
        auroc, average_precision: exact, without binning; of class 1 where there are two classes, else the mean over
        classes (one against the rest) or labels.
        """
        # Shared states would have to be sent and merged by group; each metric keeps its own.
        made: dict[str, Metric | MetricCollection] = {name: self._metric(name) for name in self.metric_names}
        return MetricCollection(made, compute_groups=False)

    def _metric(self, name: str) -> Metric:
        classes: dict[str, Any] = {"num_classes": self.num_classes}
        labels: dict[str, Any] = {"num_labels": self.num_classes}
        if self.multilabel:
            return {
                "accuracy": lambda: tm.MultilabelExactMatch(**labels),
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

    def update(self, metrics: MetricCollection, logits: Tensor, batch: HeteroData) -> None:
        """Count the seeds of a batch; an empty one changes nothing."""
        if logits.size(0) == 0:
            return
        # Probabilities, because torchmetrics guesses from each batch's values whether it was given logits.
        scores = self.probabilities(logits)
        targets = self.targets(batch).cpu().long()
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
        """`label`, and `label_name` where names are known; null where there is none."""
        present = self.has_label(labels)
        if self.multilabel:
            return named("label", label_sets(labels > 0, present), names)
        classes = np.where(present, labels.reshape(-1), 0).astype(np.int32)
        return named("label", pa.array(classes, mask=~present), names)

    def has_label(self, labels: np.ndarray) -> np.ndarray:
        """Which rows of the label attribute are a label, bool [N]; others are neither trained on nor scored."""
        return has_label(labels)


def _node_type(task: config.NodeClassification, schema: Schema) -> str:
    if task.node_type is not None:
        if task.node_type not in schema.nodes:
            raise ExperimentError(
                f'task.node_type: the graph has no node type "{task.node_type}"{nearest(task.node_type, schema.nodes)}'
            )
        return task.node_type
    having = [node_type for node_type, nodes in schema.nodes.items() if task.label in nodes.attributes]
    if len(having) != 1:
        came = f"several have ({', '.join(having)})" if having else "none has"
        raise ExperimentError(
            f'task.node_type: expected one node type with the attribute "{task.label}", {came}; '
            f"set task.node_type to one of {', '.join(schema.nodes)}"
        )
    return having[0]
