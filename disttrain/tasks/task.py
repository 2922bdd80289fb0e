"""What a task is: all that the rest of the program asks of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from torch import Tensor
from torch_geometric.data import HeteroData
from torchmetrics import Metric, MetricCollection

from ..graph.graph import Graph
from ..graph.schema import Wants
from ..world import World
from .columns import Columns

Direction = Literal["max", "min"]
"""Which way a metric gets better."""


class Score(NamedTuple):
    """The value of a metric."""

    value: float
    """NaN where there is none: it is written as null."""
    note: str = ""
    """What a reader has to know: why there is none, or what was left out of it."""
    each: tuple[float, ...] = ()
    """Of each label or target by itself, where there are several; NaN where it has none."""


class Task(Protocol):
    """Which nodes are seeds, what is learnt about them and how that is scored. Made by `build_task`; it never changes.

    It knows one batch at a time, and of the ranks nothing: losses and weights are sums over the batch's own seeds,
    metrics states that can be merged, so that trainer and evaluation make of them what one rank would find that saw
    all seeds. An empty batch adds nothing, but its loss is connected to the model.
    """

    @property
    def node_type(self) -> str:
        """Of the seeds."""
        ...

    @property
    def label(self) -> str:
        """The seeds' attribute that is learnt."""
        ...

    @property
    def out_channels(self) -> int:
        """Width of the model's output."""
        ...

    @property
    def wants(self) -> Wants:
        """What a batch has to carry for the loss."""
        ...

    @property
    def splits(self) -> Mapping[str, str]:
        """train, val, test -> the node attribute (bool) that marks their seeds."""
        ...

    def settled(self, world: World, graph: Graph) -> Task:
        """This task with what it takes from the training labels of the whole graph. Every rank calls it.

        The result is the same on every rank, and the same, bit for bit, however the graph is cut.
        """
        ...

    def loss(self, logits: Tensor, batch: HeteroData) -> Tensor:
        """The sum over the batch's seeds, each times its weight: a scalar, fp32."""
        ...

    def weight(self, batch: HeteroData) -> Tensor | float:
        """The sum of the seeds' weights. The loss of a global batch is divided by the sum of these over all ranks."""
        ...

    def num_entries(self, batch: HeteroData) -> Tensor | int:
        """How many labels or targets of the batch's seeds are there; of one per seed, the number of seeds."""
        ...

    @property
    def has_weights(self) -> bool:
        """False: each seed counts 1, and `weight` is the number of seeds."""
        ...

    @property
    def directions(self) -> Mapping[str, Direction]:
        """The names of the metrics, the one that chooses the best epoch (unless told otherwise) first."""
        ...

    def metrics(self) -> MetricCollection:
        """The metrics, on the CPU, before anything was seen; each has a state of its own that can be merged."""
        ...

    def update(self, metrics: MetricCollection, logits: Tensor, batch: HeteroData) -> None:
        """Count the seeds of a batch."""
        ...

    def score(self, name: str, metric: Metric) -> Score:
        """The value of a metric that has seen something."""
        ...

    def predictions(self, logits: Tensor) -> Tensor:
        """What the model says of each seed, in the label's own terms and units; on the CPU."""
        ...

    def columns(self, logits: Tensor, names: Sequence[str]) -> Columns:
        """What is predicted for each row of `logits`, as the files of `disttrain predict` have it.

        Args:
            names: of the classes or labels, or nothing.
        """
        ...

    def label_columns(self, labels: np.ndarray, names: Sequence[str]) -> Columns:
        """`label`, and `label_name` where names are known; null where there is none."""
        ...

    def has_label(self, labels: np.ndarray) -> np.ndarray:
        """Which rows of the label attribute are a label, bool [N]; others are neither trained on nor scored."""
        ...

    def describe(self) -> dict[str, Any]:
        """JSON of what `settled` found: a checkpoint and the summary hold it."""
        ...

    def as_trained(self, described: dict[str, Any]) -> Task:
        """This task with what `describe` gave in the run that trained the model, whatever the graph of now holds."""
        ...
