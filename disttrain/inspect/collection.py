"""What a collection of graphs is like, and what each way of keeping it costs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from ..config import Experiment
from ..graph.schema import GRAPH
from ..train.collections import find_collection, open_collection_at
from ..train.job import build
from ..world import World
from .advice import collection_advice
from .batches import graph_batches
from .labels import label_facts
from .list_form import list_facts
from .nodes import described_attributes, feature_facts
from .sizes import size_facts, sizes
from .storages import auto_choice, storage_facts


def inspect_collection(experiment: Experiment, world: World, ranks: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Look at the collection of an experiment, in one process. It is made where a run would make it, and stays.

    Args:
        ranks: that a machine shall have.

    Returns:
        JSON, see docs/inspect.md.
    """
    place = find_collection(experiment, world)
    mapped = experiment.model_copy(update={"data": experiment.data.model_copy(update={"storage": "mmap"})})
    graphs: Any = open_collection_at(place, mapped, world)
    task, model = build(experiment, graphs, world)
    wants = model.wants | task.wants  # pyright: ignore[reportOperatorIssue]
    say("looking at the graphs")
    nodes, edges = graphs.sizes
    facts: dict[str, Any] = {
        "name": experiment.name,
        "collection": {"directory": place.directory, "graphs": len(graphs.collated)},
        "target": GRAPH,
        "sizes": {"nodes": sizes(nodes), "edges": sizes(edges), "types": size_facts(graphs.collated)},
        "empty": {"without_nodes": int((nodes == 0).sum()), "without_edges": int((edges == 0).sum())},
        "nodes": {
            name: {
                "nodes": found.count,
                "takes_part": True,
                "attributes": described_attributes(found),
                "features": feature_facts(graphs, name),
            }
            for name, found in graphs.schema.nodes.items()
        },
        "labels": label_facts(graphs, task),
        "left_out": list(graphs.collated.left_out),
        "batches": graph_batches(experiment, world, graphs, task, wants),
    }
    say("making some graphs as a list of Data")
    files = Path(place.directory)
    collated = sum(file.stat().st_size for file in files.rglob("*.npy"))
    facts["bytes"] = {"list": list_facts(graphs.collated, nodes + edges), "collated": collated}
    facts["auto"] = auto_choice(experiment, graphs, ranks)
    facts["storages"] = storage_facts(experiment, world, place, wants, collated, say)
    facts["machine"] = {"memory": psutil.virtual_memory().total, "available": psutil.virtual_memory().available}
    facts["advice"] = collection_advice(experiment, facts)
    return facts
