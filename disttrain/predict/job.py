"""From a run to files: checkpoint -> graph -> model -> nodes -> scores -> Parquet, each node once over all ranks."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import ExitStack, closing
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from torch import nn

from ..config import Experiment, ExperimentError
from ..config.file import plain
from ..graph.graph import Graph
from ..graph.schema import Wants
from ..sampling import NodeLoader, Seeds
from ..sampling.kind import seed_time_attribute
from ..train.job import build, prepare_graph
from ..train.phases import PhaseClock
from ..train.precision import Precision, keep_fp32
from ..train.scores import Scores, sampled_scores
from ..train.transfer import Transfer
from ..world import World
from .ids import rows_of_ids
from .keys import NodeKeys
from .output import PartFile, clear, prepare, take, write_summary
from .progress import Progress
from .request import Request
from .run import Chosen, choose_checkpoint, fit_to_world, load_weights
from .selection import select
from .tables import TableMaker
from .tally import Tally

FORMAT = 1
_STEPS_BETWEEN_CHECKS = 8


def predict(experiment: Experiment, request: Request, world: World) -> dict[str, Any]:
    """Predict the nodes that are asked for; every rank calls it.

    Args:
        experiment: the run's, with the user's overrides.

    Returns:
        What `_predictions.json` holds.

    Raises:
        ExperimentError: on every rank: no whole checkpoint, weights that do not fit, ids that there are not, an output
            that is there already, a full disk. Nothing is left in the output folder then.
    """
    started = time.perf_counter()
    with ExitStack() as stack:

        def take_it() -> None:
            stack.enter_context(closing(take(request.output)))

        world.lead(take_it, "taking the output")
        world.lead(lambda: prepare(request.output, request.overwrite), "preparing the output", per_machine=True)
        world.barrier("preparing the output")
        chosen = choose_checkpoint(world, request.run_directory, request.checkpoint)
        experiment = fit_to_world(experiment, chosen, world)
        graph = prepare_graph(experiment, world)
        same_data = chosen.state["run"]["data"]["fingerprint"] == graph.fingerprint
        task, model = world.together(lambda: build(experiment, graph, world), "building task and model")
        load_weights(model, chosen, world)
        keys = world.together(lambda: NodeKeys.of(graph, task.node_type), "reading the keys")
        rows = _rows(request, keys, graph, task, world)
        groups = select(world, graph, task, request.splits, rows, seed_time_attribute(experiment.sampling))
        embeddings = callable(getattr(model, "embed", None)) if request.embeddings is None else request.embeddings
        if embeddings and not callable(getattr(model, "embed", None)):
            raise ExperimentError(
                "--embeddings: this model has no `embed(batch)`; give it one (see disttrain/models/__init__.py), or "
                "leave them out with --no-embeddings"
            )
        scores = _sampled(experiment, graph, task, model.to(world.device), groups, embeddings, world)
        maker = TableMaker(graph, task, keys, logits=request.logits)
        written = _write(scores, maker, task, groups, request, world)
        summary = {
            "format": FORMAT,
            "run": {"name": experiment.name, "directory": str(request.run_directory)},
            "checkpoint": _describe(chosen, request),
            "node_type": task.node_type,
            **written,
            "classes": list(maker.names) or None,
            "method": "sampled",
            "settings": {
                "seed": experiment.seed, "precision": experiment.train.precision, "sampling": plain(experiment.sampling)
            },
            "data": {"fingerprint": graph.fingerprint, "as_in_training": same_data},
            "world": {"ranks": world.size, "machines": world.num_machines},
            "seconds": time.perf_counter() - started,
            "versions": {name: version(name) for name in ("torch", "torch_geometric", "numpy", "pyarrow")},
        }  # fmt: skip
        world.lead(lambda: write_summary(request.output, summary), "writing the summary")
    return summary


def _rows(request: Request, keys: NodeKeys, graph: Graph, task: Any, world: World) -> np.ndarray | None:
    if request.ids is None:
        return None
    path = request.ids
    return world.lead(
        lambda: rows_of_ids(path, keys, graph.num_nodes(task.node_type), task.node_type), "looking up the ids"
    )


def _describe(chosen: Chosen, request: Request) -> dict[str, Any]:
    return {"name": chosen.name, "asked_for": request.checkpoint, "step": chosen.step, "epoch": chosen.state["epoch"]}


def _sampled(
    experiment: Experiment,
    graph: Graph,
    task: Any,
    model: nn.Module,
    groups: dict[str, Seeds],
    embeddings: bool,
    world: World,
) -> Generator[Scores, None, None]:
    """Scores of all groups, one after the other; each has the batches that evaluation makes of it."""
    precision = Precision(experiment.train.precision, world.device)
    keep_fp32(model, experiment.train.fp32_layers, world.device)
    model.eval()
    wants: Wants = model.wants | task.wants | Wants(nodes={task.node_type: tuple(task.splits.values())})  # pyright: ignore
    for seeds in groups.values():
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
        )
        transfer = Transfer(world.device, PhaseClock(world.device))
        yield from sampled_scores(model, task, loader, transfer, precision, embeddings=embeddings)


def _write(
    scores: Generator[Scores, None, None],
    maker: TableMaker,
    task: Any,
    groups: dict[str, Seeds],
    request: Request,
    world: World,
) -> dict[str, Any]:
    """Write all scores, make sure that each node was written once, and put the files in place."""
    expected = {name: len(seeds) for name, seeds in groups.items()}
    part = PartFile(request.output, world.rank, world.size)
    tally = Tally(task)
    try:
        with closing(scores), Progress(world.is_lead, sum(expected.values())) as progress:
            for step, batch in enumerate(scores):
                scored = maker.scored(batch)
                part.add(maker.table(scored))
                tally.add(scored)
                if (step + 1) % _STEPS_BETWEEN_CHECKS == 0:
                    state = torch.tensor([part.error is not None, part.rows])
                    failed, rows = world.sum(state, "predicting").tolist()
                    progress.steps(rows)
                    if failed:
                        break
        world.together(part.finish, "writing the predictions")
        found = tally.over_all_ranks(world)
        assert found.rows == sum(expected.values()), f"{found.rows} rows were written, expected {expected}"
        checksum = np.bitwise_xor.reduce([_checksum(seeds) for seeds in groups.values()])
        assert found.checksum == int(checksum), "some nodes were written twice, and some not at all"
        world.lead(lambda: clear(request.output), "clearing the output", per_machine=True)
        world.barrier("clearing the output")
        entry = world.together(part.land, "putting the predictions in place")
    except BaseException:
        part.discard()
        raise
    files = world.gather({**entry, "host": world.host}, "listing the predictions")
    schema = maker.schema
    assert schema is not None
    return {
        "rows": found.rows,
        "asked_for": expected,
        "splits": found.splits,
        "metrics": found.metrics,
        "checksum": f"{found.checksum:016x}",
        "keys": list(maker.keys.names),
        "columns": {field.name: str(field.type) for field in schema},
        "files": files,
    }


def _checksum(seeds: Seeds) -> np.uint64:
    return Tally.checksum_of(seeds.original)
