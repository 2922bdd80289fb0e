"""A collection whose graphs go through `data.transforms` each time that they are used."""

from __future__ import annotations

from dataclasses import replace

from ..collection.access import Transformed
from ..collection.graphs import Graphs
from ..collection.look import Look, look_over
from ..collection.own_class import find
from ..config import Experiment
from ..config.counted import counted
from ..data.digest import own_transforms
from ..world import World


def code_packages(experiment: Experiment) -> set[str]:
    """The packages that the experiment names something of, so that their code runs anyway; and PyG."""
    named = [
        *own_transforms(experiment.data),
        *(getattr(experiment.data, key, "") or "" for key in ("function", "dataset")),
        getattr(experiment.data.split, "function", ""),
        getattr(experiment.model, "module", ""),
    ]
    return {"torch_geometric", *(name.partition(":")[0].partition(".")[0] for name in named if ":" in name)}


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
    name = graphs.manifest.get("own_class")
    packages = code_packages(experiment)
    own_class = world.together(lambda: find(name, packages), "finding the class of the graphs") if name else None
    access = Transformed(graphs.access or graphs.collated, transforms, experiment.seed, own_class)

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
