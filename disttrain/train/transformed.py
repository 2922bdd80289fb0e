"""A collection whose graphs go through `data.transforms` each time that they are used."""

from __future__ import annotations

from dataclasses import replace

from ..collection.access import Transformed
from ..collection.graphs import Graphs
from ..collection.look import Look, look_over
from ..config import Experiment
from ..config.counted import counted
from ..world import World


def transformed(graphs: Graphs, experiment: Experiment, world: World) -> Graphs:
    """What batches come from, and what models are told of the graphs; the same where there are no transforms.

    Every rank calls it. The first rank sends some graphs through the transforms, or all where labels come from there.

    Raises:
        ExperimentError: a transform does not exist, or graphs differ after it.
        PeerError: a transform failed on the first rank.
    """
    transforms = experiment.data.transforms
    if not transforms:
        return graphs
    access = Transformed(graphs.access or graphs.collated, transforms, experiment.seed)

    def look() -> Look:
        found = look_over(access, len(graphs.collated), experiment.task.label)
        if found.seen_all:
            count = counted(len(graphs.collated), "graph")
            print(
                f"[collection] data.transforms make labels or codes: all of {count} went through them once", flush=True
            )
        return found

    found = world.lead(look, "looking at graphs after data.transforms")
    access.like = found.collated
    return replace(graphs, access=access, look=found)
