"""Node regression: one number per seed, or several."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor
from torch.nn import functional
from torch_geometric.data import HeteroData
from torchmetrics import Metric, MetricCollection

from .. import config
from ..config import ExperimentError
from ..data.split import has_label
from ..graph.graph import Graph
from ..graph.schema import GRAPH, Schema, Wants
from ..world import World
from .columns import Columns
from .entries import Errors, Explained, entries_of_one, entries_there, lacks_some
from .labels import SPLITS, find_label, label_place, mean_and_std, own_training_labels
from .task import Direction, Score

_DIRECTIONS: dict[str, Direction] = {"mae": "min", "rmse": "min", "mse": "min", "mape": "min", "r2": "max"}


@dataclass(frozen=True)
class NodeRegression:
    """What node regression is on one graph: targets, loss and metrics of the seeds."""

    node_type: str
    label: str
    num_targets: int
    loss_name: Literal["mse", "l1", "huber"]
    delta: float
    standardize: bool
    metric_names: tuple[str, ...]
    lacking: bool = False
    """Seeds may lack single targets."""
    mean: tuple[float, ...] = ()
    """Of each target over the training seeds; before `settled`, nothing."""
    std: tuple[float, ...] = ()
    """Likewise; 1 where a target does not vary."""

    @classmethod
    def build(cls, task: config.NodeRegression, schema: Schema) -> NodeRegression:
        """Settle what the experiment leaves open, from the schema.

        Raises:
            ExperimentError: the node type or the label does not exist, or the label holds no numbers.
        """
        node_type, label = find_label(schema, task.node_type, task.label)
        where = label_place(node_type, task.label)
        if label.dtype == "bool":
            kind = "graph_classification" if node_type == GRAPH else "node_classification"
            raise ExperimentError(f"{where} holds true and false; that is task.kind: {kind}")
        if label.high is None:
            raise ExperimentError(f"{where} holds no label (all are missing)")
        columns = label.shape[0] if label.shape else 1
        if not columns:
            raise ExperimentError(f"{where} has no column")
        lacking = lacks_some(label, numbers=True)
        return cls(node_type, task.label, columns, task.loss, task.delta, task.standardize, task.metrics, lacking)

    def settled(self, world: World, graph: Graph) -> NodeRegression:
        """With mean and standard deviation of the training targets."""

        def own() -> np.ndarray:
            labels = own_training_labels(world, graph, self.node_type, self.label)
            return labels.reshape(len(labels), self.num_targets).astype(np.float64)

        what = "reading the training labels"
        mean, std = mean_and_std(world, world.together(own, what), what)
        return replace(self, mean=tuple(mean.tolist()), std=tuple(np.where(std > 0, std, 1.0).tolist()))

    @property
    def out_channels(self) -> int:
        return self.num_targets

    @property
    def wants(self) -> Wants:
        return Wants(nodes={self.node_type: (self.label,)})

    @property
    def splits(self) -> dict[str, str]:
        return SPLITS

    @property
    def has_weights(self) -> bool:
        return self.lacking

    def weight(self, batch: HeteroData) -> Tensor | float:
        """The number of seeds; where some lack targets, the number of targets that are there, see `entries_of_one`."""
        return self.num_entries(batch) / self._of_one if self.lacking else batch[self.node_type].batch_size

    def num_entries(self, batch: HeteroData) -> Tensor | int:
        if self.lacking:
            return entries_there(self.targets(batch), numbers=True).sum()
        return batch[self.node_type].batch_size * self.num_targets

    @property
    def _of_one(self) -> int:
        return entries_of_one(self.num_targets, self.lacking)

    def targets(self, batch: HeteroData) -> Tensor:
        """The seeds' labels in their own units, float64 [batch_size, num_targets]; NaN: it is not there."""
        store = batch[self.node_type]
        return store[self.label][: store.batch_size].double().reshape(-1, self.num_targets)

    def loss(self, logits: Tensor, batch: HeteroData) -> Tensor:
        """The mean over a seed's targets, in the units in which is learnt; summed over the seeds, in fp32.

        Where seeds lack targets, the sum over those that are there, in the same units as `weight`.
        """
        targets = self.targets(batch)
        there = entries_there(targets, numbers=True)
        if self.standardize:
            targets = self._standard(targets)
        targets = targets.float().masked_fill(~there, 0.0)
        with torch.autocast(logits.device.type, enabled=False):
            logits = logits.float()
            if self.loss_name == "mse":
                each = functional.mse_loss(logits, targets, reduction="none")
            elif self.loss_name == "l1":
                each = functional.l1_loss(logits, targets, reduction="none")
            else:
                each = functional.huber_loss(logits, targets, reduction="none", delta=self.delta)
            return each.masked_fill(~there, 0.0).sum() / self._of_one

    @property
    def directions(self) -> Mapping[str, Direction]:
        return {name: _DIRECTIONS[name] for name in self.metric_names}

    def metrics(self) -> MetricCollection:
        """The metrics of the experiment, in the label's own units, over all targets of all seeds that are there.

        mae, mse, rmse: mean absolute and squared error, and its root. mape: mean absolute error as a share of the
        target. r2: 1 - squared error / variance of the targets, the mean over columns.
        """
        # In float64: ranks add their sums up in another order than one rank does.
        made: dict[str, Metric | MetricCollection] = {
            name: Explained(self.num_targets) if name == "r2" else Errors(name, self.num_targets)
            for name in self.metric_names
        }
        return MetricCollection(made, compute_groups=False)

    def update(self, metrics: MetricCollection, logits: Tensor, batch: HeteroData) -> None:
        if logits.size(0) == 0:
            return
        predictions, targets = self.predictions(logits), self.targets(batch).cpu()
        for name, metric in metrics.items(keep_base=True, copy_state=False):
            if name == "r2":
                # It is the same in any units, and in these its sums of squares lose nothing.
                metric.update(self._standard(predictions), self._standard(targets))
            else:
                metric.update(predictions, targets)

    def score(self, name: str, metric: Metric) -> Score:
        assert isinstance(metric, (Errors, Explained))
        each = metric.each()
        value, without = float(metric.compute()), int(each.isnan().sum())
        note = ""
        if name == "r2" and without:
            note = f"r2 leaves out {without} of {len(each)} targets that do not vary"
            if math.isnan(value):
                note = "r2 has no value: the targets do not vary"
        return Score(value, note, tuple(each.tolist()) if len(each) > 1 else ())

    def predictions(self, logits: Tensor) -> Tensor:
        """In the label's own units: float64 [batch_size, num_targets] on the CPU."""
        logits = logits.detach().cpu().double()
        if not self.standardize:
            return logits
        return logits * torch.tensor(self.std, dtype=torch.float64) + torch.tensor(self.mean, dtype=torch.float64)

    def _standard(self, values: Tensor) -> Tensor:
        """float64 [n, num_targets] with the training seeds' mean and standard deviation taken off."""
        assert self.mean, "the task is settled"
        mean, std = (
            torch.tensor(figures, dtype=torch.float64).to(values.device, non_blocking=True)
            for figures in (self.mean, self.std)
        )
        return (values - mean) / std

    def columns(self, logits: Tensor, names: Sequence[str]) -> Columns:
        """`prediction`, in the label's own units: a number, or a list of them where there are several targets."""
        return {"prediction": _numbers(self.predictions(logits).numpy())}

    def label_columns(self, labels: np.ndarray, names: Sequence[str]) -> Columns:
        """`label`; null where there is none; of several targets, each that is not there is null too."""
        rows = labels.reshape(len(labels), self.num_targets).astype(np.float64)
        return {"label": _numbers(rows, self.has_label(labels))}

    def has_label(self, labels: np.ndarray) -> np.ndarray:
        """Which rows of the label attribute are a label, bool [N]; others are neither trained on nor scored."""
        return has_label(labels, numbers=True)

    def describe(self) -> dict[str, Any]:
        return {"target_mean": list(self.mean), "target_std": list(self.std)}

    def as_trained(self, described: dict[str, Any]) -> NodeRegression:
        return replace(self, mean=tuple(described["target_mean"]), std=tuple(described["target_std"]))


def _numbers(rows: np.ndarray, present: np.ndarray | None = None) -> pa.Array:
    """float64 [N, K] -> a number a row, or a list of K; null where `present` (bool [N]) is false; given
    that, in lists also what is NaN."""
    absent = None if present is None else ~present
    if rows.shape[1] == 1:
        return pa.array(rows[:, 0], pa.float64(), mask=absent)
    flat = np.ascontiguousarray(rows).reshape(-1)
    numbers = pa.array(flat, pa.float64(), mask=None if absent is None else np.isnan(flat))
    return pa.FixedSizeListArray.from_arrays(numbers, rows.shape[1], mask=None if absent is None else pa.array(absent))
