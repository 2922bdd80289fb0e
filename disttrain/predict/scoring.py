"""The scores of the nodes that are asked for, by the method of the experiment."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

from torch import nn

from ..config import Experiment
from ..graph.graph import Graph
from ..graph.schema import Wants
from ..sampling import NodeLoader, gather_seeds
from ..sampling.columns import Columns
from ..sampling.kind import seed_time_attribute
from ..train.halves import halved_attributes
from ..train.layerwise import LayerwiseLoader
from ..train.phases import PhaseClock
from ..train.precision import Precision, keep_fp32
from ..train.scores import Scores, sampled_scores
from ..train.transfer import Transfer
from ..world import World
from .selection import Choice, joined


def scores_of(
    experiment: Experiment,
    world: World,
    graph: Graph,
    task: Any,
    model: nn.Module,
    groups: Mapping[str, Choice],
    *,
    embeddings: bool,
) -> Generator[Scores, None, None]:
    """Scores of all nodes of all groups. Every rank iterates to the end; all make the same number of steps.

    Sampled ones come group by group, in the batches that evaluation makes of it. Layer-wise ones do not depend on
    batches, and are made at once.
    """
    precision = Precision(experiment.train.precision, world.device)
    model = model.to(world.device).eval()
    keep_fp32(model, experiment.train.fp32_layers, world.device)
    carried = (task.label, *task.splits.values())
    halved = halved_attributes(experiment, graph.schema, task, model)
    if experiment.evaluate.method == "layerwise":
        loader = LayerwiseLoader(
            world,
            graph,
            task.node_type,
            joined(groups.values()),
            settings=experiment.evaluate,
            sampling=experiment.sampling,
            wants=model.wants,  # pyright: ignore[reportArgumentType]
            carried=carried,
            halved=halved,
        )
        yield from loader.scores(model, task, precision, embeddings=embeddings)
        return
    wants: Wants = model.wants | Wants(nodes={task.node_type: carried})  # pyright: ignore
    columns = Columns.of(graph, wants, halved)
    for name, chosen in groups.items():
        what = f"gathering the nodes of {name}"
        seeds = gather_seeds(world, graph, task.node_type, chosen, what, seed_time_attribute(experiment.sampling))
        if not len(seeds):
            continue
        loader = NodeLoader(
            world,
            graph,
            task.node_type,
            seeds,
            sampling=experiment.sampling,
            run_seed=experiment.seed,
            wants=wants,
            training=False,
            columns=columns,
        )
        transfer = Transfer(world.device, PhaseClock(world.device))
        yield from sampled_scores(model, task, loader, transfer, precision, embeddings=embeddings)
