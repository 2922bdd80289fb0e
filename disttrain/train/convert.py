"""`disttrain convert`: the collection of an experiment as a data set of PyG's."""

from __future__ import annotations

import time
from pathlib import Path

from ..collection.pyg_dataset import write_dataset
from ..config import Experiment, ExperimentError, GraphTask
from ..config.counted import counted
from ..world import World
from .collections import prepare_collection

_SECONDS_BETWEEN_LINES = 10.0


def convert_collection(experiment: Experiment, world: World, directory: Path) -> None:
    """Write the graphs as they are stored, before `data.transforms`; every rank calls it, the first one writes.

    Raises:
        ExperimentError: the task is not about graphs, or the folder cannot be written.
    """
    if not isinstance(experiment.task, GraphTask):
        raise ExperimentError(
            f"task.kind is {experiment.task.kind}: one graph is no collection that could be converted; expected "
            "graph_classification or graph_regression"
        )
    # How a run would hold it makes no difference here.
    mapped = experiment.model_copy(update={"data": experiment.data.model_copy(update={"storage": "mmap"})})
    collated = prepare_collection(mapped, world).collated
    said = time.monotonic()

    def say(how_far: str) -> None:
        nonlocal said
        if time.monotonic() - said > _SECONDS_BETWEEN_LINES:
            said = time.monotonic()
            print(f"[convert] {how_far}", flush=True)

    world.lead(lambda: write_dataset(collated, directory, say), "writing the graphs")
    if world.is_lead:
        print(
            f"{counted(len(collated), 'graph')} in {directory}: torch_geometric.data.OnDiskDataset({str(directory)!r})"
        )
