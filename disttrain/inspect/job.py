"""From an experiment to a report: open or load the graph, look at all of it in pieces, draw some batches, advise."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .. import data
from ..config import Experiment, ExperimentError, GraphTask, Launch, Partition
from ..graph.files import MANIFEST, read_manifest
from ..graph.graph import Graph
from ..graph.partitioner import partition
from ..train.job import build, graph_conflicts, partition_directory
from ..world import World
from .advice import advice
from .batches import drawn_batches, evaluation_cost
from .collection import inspect_collection
from .labels import label_facts
from .memory import memory_facts
from .nodes import node_facts
from .relations import relation_facts

_MOST_PARTS = 64
"""Partition directories made for up to so many machines are looked for."""


def inspect(experiment: Experiment, world: World, num_machines: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Look at the graph of an experiment, or its collection of graphs, in one process.

    Args:
        num_machines: that the memory is estimated for.
        say: gets a line now and then.

    Returns:
        JSON, see docs/inspect.md.

    Raises:
        ExperimentError: several ranks were started, or what a run of the experiment would be refused for.

    Cost: a pass over edges, labels and masks, a few megabytes at a time; without partitions also loading the data, and
    room for a copy of it in the folder for temporary files.
    """
    if world.size > 1:
        raise ExperimentError("inspect runs in one process: start it without torchrun (--machines N says for how many)")
    ranks = experiment.launch.procs_per_node or 1
    experiment = experiment.model_copy(update={"launch": Launch()})
    if isinstance(experiment.task, GraphTask):
        return inspect_collection(experiment, world, ranks, say)
    with _opened(experiment, num_machines, say) as (graph, where):
        say("looking at nodes and edges")
        task, model = build(experiment, graph, world)
        facts: dict[str, Any] = {
            "name": experiment.name,
            "partitions": {
                "directory": where,
                "parts": graph.parts if where else None,
                "method": graph.manifest["method"] if where else None,
                "edge_cut": graph.manifest["edge_cut"]["total"] if where else None,
            },
            "target": task.node_type,
            "nodes": node_facts(graph, task.node_type, experiment.model.layers),
            "relations": relation_facts(graph, task.node_type, experiment),
            "labels": label_facts(graph, task),
            "left_out": data.left_out_lines(graph.schema.info),
        }
        say("drawing batches")
        facts["batches"] = drawn_batches(experiment, world, graph, task, model)
        facts["evaluation"] = evaluation_cost(experiment, graph, task.node_type, facts["batches"]["evaluate"])
        facts["memory"] = memory_facts(experiment, graph, task.node_type, model, facts["batches"], num_machines)
        facts["advice"] = advice(experiment, facts)
    return facts


@contextmanager
def _opened(
    experiment: Experiment, num_machines: int, say: Callable[[str], None]
) -> Iterator[tuple[Graph, str | None]]:
    """The partitions that a run would use, wherever they were made for; else the data, cut for this once."""
    source = data.Source(experiment.data, experiment.task)
    counts = dict.fromkeys([num_machines, *range(1, _MOST_PARTS + 1)])
    for directory in dict.fromkeys(partition_directory(experiment, source.fingerprint, count) for count in counts):
        if (directory / MANIFEST).exists() and read_manifest(directory)["fingerprint"] == source.fingerprint:
            yield Graph.open(directory), str(directory)
            return
    say(f"there are no partitions yet: loading the data (source: {experiment.data.source})")
    with tempfile.TemporaryDirectory(prefix="disttrain-inspect-") as scratch:
        source.scratch = scratch
        loaded = source.load()
        if refusals := graph_conflicts(experiment, loaded.data.edge_types):
            raise ExperimentError("\n".join(refusals))
        whole = Partition(parts=1, method="random")
        place = Path(scratch) / "graph"
        partition(loaded.data, loaded.keys, loaded.info, whole, 1, place, source.fingerprint, lambda line: None)
        yield Graph.open(place), None
