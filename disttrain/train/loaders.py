"""The three loaders of a run: train, val, test."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Protocol

import numpy as np
from torch import nn
from torch_geometric.data import HeteroData

from ..collection.graphs import Graphs
from ..config import Experiment
from ..graph.graph import Graph
from ..roster import Roster
from ..sampling import NodeLoader, split_seeds
from ..sampling.columns import Columns
from ..sampling.kind import seed_time_attribute
from ..sampling.seeds import Past
from ..world import World
from .collections import build_graph_loaders
from .halves import halved_attributes
from .layerwise import LayerwiseLoader, check_layered


class Loader(Protocol):
    """What the trainer asks of a loader: `disttrain.sampling.NodeLoader`, and the fakes of its tests."""

    num_steps: int
    """Per epoch; the same on every rank."""

    @property
    def rounds(self) -> int:
        """Batches that a rank has in each step; see `Roster`."""
        ...

    def steps_of(self, epoch: int, past: Past = ()) -> int: ...

    def batches(self, epoch: int, start: int = 0, past: Past = ()) -> Generator[HeteroData, None, None]: ...


def build_loaders(
    experiment: Experiment, world: World, graph: Graph | Graphs, task: Any, model: nn.Module
) -> dict[str, Any]:
    """A `Loader` of the training split, and for the others that or a `LayerwiseLoader`; every rank calls it.

    Batches carry what model and task want.

    Raises:
        ExperimentError: `evaluate.method` is layerwise, and the model cannot be computed so.
    """
    if isinstance(graph, Graphs):
        return build_graph_loaders(experiment, world, graph, task, model)
    wants = model.wants | task.wants  # pyright: ignore[reportOperatorIssue, reportUnknownVariableType]
    halved = halved_attributes(experiment, graph.schema, task, model)
    columns = Columns.of(graph, wants, halved)
    layerwise = experiment.evaluate.method == "layerwise"
    if layerwise:
        check_layered(model)

    def sampled(split: str) -> Loader:
        return NodeLoader(
            world,
            graph,
            task.node_type,
            split_seeds(world, graph, task.node_type, task.splits[split], seed_time_attribute(experiment.sampling)),
            sampling=experiment.sampling,
            run_seed=experiment.seed,
            wants=wants,
            training=split == "train",
            columns=columns,
            roster=Roster.of(experiment, world),
        )

    def exact(split: str) -> LayerwiseLoader:
        def chosen(low: int, high: int) -> np.ndarray:
            return np.flatnonzero(graph.node_attribute(task.node_type, task.splits[split])[low:high])

        return LayerwiseLoader(
            world,
            graph,
            task.node_type,
            chosen,
            settings=experiment.evaluate,
            sampling=experiment.sampling,
            wants=model.wants,  # pyright: ignore[reportArgumentType]
            carried=task.wants.nodes[task.node_type],
            halved=halved,
        )

    return {split: (exact if layerwise and split != "train" else sampled)(split) for split in ("train", "val", "test")}
