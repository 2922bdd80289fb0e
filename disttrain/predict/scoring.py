"""The scores of the nodes or graphs that are asked for, by the method of the experiment."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any

from torch import nn

from ..collection.graphs import Graphs
from ..collection.loader import GraphLoader
from ..config import Experiment
from ..graph.graph import Graph
from ..graph.schema import Wants
from ..sampling import NodeLoader, gather_seeds
from ..sampling.columns import Columns
from ..sampling.kind import seed_time_attribute
from ..sampling.seeds import Seeds
from ..train.halves import halved_attributes
from ..train.layerwise import LayerwiseLoader
from ..train.loaders import Loader
from ..train.phases import PhaseClock
from ..train.precision import Precision, keep_fp32
from ..train.scores import Scores, sampled_scores
from ..train.transfer import Transfer
from ..world import World
from .selection import Choice, joined


def scores_of(
    experiment: Experiment,
    world: World,
    graph: Graph | Graphs,
    task: Any,
    model: nn.Module,
    groups: Mapping[str, Choice],
    *,
    embeddings: bool,
) -> Generator[Scores, None, None]:
    """Scores of all members of all groups. Every rank iterates to the end; all make the same number of steps.

    Sampled ones come group by group, in the batches that evaluation makes of it. Layer-wise ones do not depend on
    batches, and are made at once.
    """
    precision = Precision(experiment.train.precision, world.device)
    model = model.to(world.device).eval()
    keep_fp32(model, experiment.train.fp32_layers, world.device)
    carried = (task.label, *task.splits.values())
    if not isinstance(graph, Graphs) and experiment.evaluate.method == "layerwise":
        loader = LayerwiseLoader(
            world,
            graph,
            task.node_type,
            joined(groups.values()),
            settings=experiment.evaluate,
            sampling=experiment.sampling,
            wants=model.wants,  # pyright: ignore[reportArgumentType]
            carried=carried,
            halved=halved_attributes(experiment, graph.schema, task, model),
        )
        yield from loader.scores(model, task, precision, embeddings=embeddings)
        return
    wants: Wants = model.wants | Wants(nodes={task.node_type: carried})  # pyright: ignore
    loader_of = _loader_maker(experiment, world, graph, task, model, wants)
    time = None if isinstance(graph, Graphs) else seed_time_attribute(experiment.sampling)
    for name, chosen in groups.items():
        seeds = gather_seeds(world, graph, task.node_type, chosen, f"gathering the members of {name}", time)
        if len(seeds):
            transfer = Transfer(world.device, PhaseClock(world.device))
            yield from sampled_scores(model, task, loader_of(seeds), transfer, precision, embeddings=embeddings)


def _loader_maker(
    experiment: Experiment, world: World, graph: Graph | Graphs, task: Any, model: nn.Module, wants: Wants
) -> Callable[[Seeds], Loader]:
    """Seeds -> their batches, as evaluation makes them."""
    common: dict[str, Any] = {
        "sampling": experiment.sampling, "run_seed": experiment.seed, "wants": wants, "training": False,
    }  # fmt: skip
    if isinstance(graph, Graphs):
        return lambda seeds: GraphLoader(world, graph, seeds, **common)
    columns = Columns.of(graph, wants, halved_attributes(experiment, graph.schema, task, model))
    return lambda seeds: NodeLoader(world, graph, task.node_type, seeds, columns=columns, **common)
