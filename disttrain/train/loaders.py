"""The three loaders of a run: train, val, test."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Protocol

from torch import nn
from torch_geometric.data import HeteroData

from ..config import Experiment
from ..graph.graph import Graph
from ..sampling import NodeLoader, split_seeds
from ..sampling.kind import seed_time_attribute
from ..world import World


class Loader(Protocol):
    """What the trainer asks of a loader: `disttrain.sampling.NodeLoader`, and the fakes of its tests."""

    num_steps: int
    """Per epoch; the same on every rank."""

    def batches(self, epoch: int, start: int = 0) -> Generator[HeteroData, None, None]: ...


def build_loaders(experiment: Experiment, world: World, graph: Graph, task: Any, model: nn.Module) -> dict[str, Loader]:
    """Loaders of the task's splits; batches carry what model and task want. Every rank calls it."""
    wants = model.wants | task.wants  # pyright: ignore[reportOperatorIssue, reportUnknownVariableType]
    return {
        split: NodeLoader(
            world,
            graph,
            task.node_type,
            split_seeds(world, graph, task.node_type, task.splits[split], seed_time_attribute(experiment.sampling)),
            sampling=experiment.sampling,
            run_seed=experiment.seed,
            wants=wants,
            training=split == "train",
        )
        for split in ("train", "val", "test")
    }
