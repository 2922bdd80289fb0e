"""From a run to files: checkpoint -> graph -> model -> nodes -> scores -> Parquet, each node once over all ranks.

Of a run about a collection of graphs, the graphs stand for the nodes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing
from importlib.metadata import version
from typing import Any

import numpy as np
import torch

from ..collection.graphs import Graphs
from ..config import Experiment, ExperimentError, GraphTask
from ..config.file import plain
from ..graph.graph import Graph
from ..train.collections import prepare_collection
from ..train.job import build, prepare_graph
from ..train.layerwise import check_layered
from ..train.scores import Scores
from ..train.trained_on import TrainedOn
from ..world import World
from .graph_keys import GraphKeys
from .ids import rows_of_ids
from .keys import Keys, NodeKeys
from .output import PartFile, clear, prepare, take, write_summary
from .progress import Progress
from .request import Request
from .run import Chosen, choose_checkpoint, fit_to_world, load_weights, refuse_other_meaning
from .scoring import scores_of
from .selection import Choice, choices
from .tables import TableMaker
from .tally import Tally

FORMAT = 1
_STEPS_BETWEEN_CHECKS = 8


def predict(experiment: Experiment, request: Request, world: World) -> dict[str, Any]:
    """Predict the nodes or graphs that are asked for; every rank calls it.

    Args:
        experiment: the run's, with the user's overrides.

    Returns:
        What `_predictions.json` holds.

    Raises:
        ExperimentError: on every rank: no whole checkpoint, weights that do not fit, ids that there are not, an output
            that is there already, a full disk. Nothing is left in the output folder then.
    """
    about_graphs = isinstance(experiment.task, GraphTask)
    if request.key and not about_graphs:
        raise ExperimentError(
            f"--key names attributes of the graphs of a collection, and task.kind is {experiment.task.kind}: nodes "
            "come under the keys of their tables, or as rows; leave it out"
        )
    started = time.perf_counter()
    with ExitStack() as stack:

        def take_it() -> None:
            stack.enter_context(closing(take(request.output)))

        world.lead(take_it, "taking the output")
        _on_each_machine(world, lambda: prepare(request.output, request.overwrite), "preparing the output")
        chosen = choose_checkpoint(world, request.run_directory, request.checkpoint)
        experiment = fit_to_world(experiment, chosen, world)
        graph: Any
        if about_graphs:
            graph = prepare_collection(experiment, world, TrainedOn.of(chosen.state))
        else:
            graph = prepare_graph(experiment, world)
        same_data = chosen.state["run"]["data"]["fingerprint"] == graph.fingerprint
        refuse_other_meaning(chosen.state["run"]["data"], graph)
        task, model = build(experiment, graph, world)
        task = task.as_trained(chosen.state["labels"])
        load_weights(model, chosen, world)
        keys = world.together(lambda: _keys(request, graph, task), "reading the keys")
        rows = _rows(request, keys, world)
        groups = choices(graph, task, request.splits, rows)
        expected, checksum = _expected(groups, graph, task, world)
        if not sum(expected.values()):
            raise ExperimentError(f"--split: there is no {keys.what} in {', '.join(groups)}")
        embeddings = callable(getattr(model, "embed", None)) if request.embeddings is None else request.embeddings
        if embeddings and not callable(getattr(model, "embed", None)):
            raise ExperimentError(
                "--embeddings: this model has no `embed(batch)`; give it one (see disttrain/models/__init__.py), or "
                "leave them out with --no-embeddings"
            )
        if experiment.evaluate.method == "layerwise":
            check_layered(model)
        scores = scores_of(experiment, world, graph, task, model, groups, embeddings=embeddings)
        maker = TableMaker(graph, task, keys, logits=request.logits)
        written = _write(scores, maker, task, sum(expected.values()), checksum, request, world)
        summary = {
            "format": FORMAT,
            "run": {"name": experiment.name, "directory": str(request.run_directory)},
            "checkpoint": _describe(chosen, request),
            "node_type": task.node_type,
            "asked_for": expected,
            **written,
            "classes": list(maker.names) or None,
            "method": experiment.evaluate.method,
            "settings": {
                "seed": experiment.seed,
                "precision": experiment.train.precision,
                "evaluate": plain(experiment.evaluate),
                "sampling": plain(experiment.sampling),
            },
            "data": {"fingerprint": graph.fingerprint, "as_in_training": same_data},
            "world": {"ranks": world.size, "machines": world.num_machines},
            "seconds": time.perf_counter() - started,
            "versions": {name: version(name) for name in ("torch", "torch_geometric", "numpy", "pyarrow")},
        }  # fmt: skip
        world.lead(lambda: write_summary(request.output, summary), "writing the summary")
    return summary


def _on_each_machine(world: World, work: Callable[[], None], what: str) -> None:
    """The first rank of each machine does it; it succeeds on all of them or fails on all."""
    world.together(lambda: work() if world.leads_machine else None, what)


def _keys(request: Request, graph: Graph | Graphs, task: Any) -> Keys:
    return GraphKeys.of(graph, request.key) if isinstance(graph, Graphs) else NodeKeys.of(graph, task.node_type)


def _rows(request: Request, keys: Keys, world: World) -> np.ndarray | None:
    if request.ids is None:
        return None
    path = request.ids
    return world.lead(lambda: rows_of_ids(path, keys), "looking up the ids")


def _describe(chosen: Chosen, request: Request) -> dict[str, Any]:
    return {"name": chosen.name, "asked_for": request.checkpoint, "step": chosen.step, "epoch": chosen.state["epoch"]}


def _expected(groups: dict[str, Choice], graph: Graph | Graphs, task: Any, world: World) -> tuple[dict[str, int], int]:
    """How many nodes each group has over all machines, and the checksum of all (see `Tally`)."""
    counts, checksum = dict.fromkeys(groups, 0), np.uint64(0)
    if world.leads_machine:
        low, high = graph.node_books[task.node_type].range_of(graph.machine)
        original = graph.original_ids(task.node_type)
        for name, chosen in groups.items():
            ids = low + chosen(low, high)
            counts[name] = len(ids)
            checksum ^= Tally.checksum_of(np.asarray(original[ids], dtype=np.int64))
    found = world.gather((counts, int(checksum)), "counting the nodes")
    return (
        {name: sum(there[name] for there, _ in found) for name in groups},
        int(np.bitwise_xor.reduce(np.array([there for _, there in found], np.uint64))),
    )


def _write(
    scores: Generator[Scores, None, None],
    maker: TableMaker,
    task: Any,
    num_rows: int,
    checksum: int,
    request: Request,
    world: World,
) -> dict[str, Any]:
    """Write all scores, make sure that each node was written once, and put the files in place.

    Args:
        num_rows, checksum: of the nodes that are asked for.
    """
    part = PartFile(request.output, world.rank, world.size)
    tally = Tally(task)
    try:
        with closing(scores), Progress(world.is_lead, num_rows, maker.keys.what.split()[0]) as progress:
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
        assert found.rows == num_rows, f"{found.rows} rows were written, expected {num_rows}"
        assert found.checksum == checksum, "some nodes were written twice, and some not at all"
        _on_each_machine(world, lambda: clear(request.output), "clearing the output")
        entry = world.together(part.land, "putting the predictions in place")
    except BaseException:
        part.discard()
        raise
    files = world.gather({**entry, "host": world.host}, "listing the predictions")
    schema = maker.schema
    assert schema is not None
    return {
        "rows": found.rows,
        "splits": found.splits,
        "metrics": found.metrics,
        "checksum": f"{found.checksum:016x}",
        "keys": list(maker.keys.names),
        "columns": {field.name: str(field.type) for field in schema},
        "files": files,
    }
