"""What each way of keeping a collection costs, by trying them: memory, time to load, time to the first batch, speed."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, get_args

from ..collection.graphs import Graphs
from ..collection.loader import GraphLoader
from ..collection.ondisk import ondisk_directory
from ..collection.storage import choose, of_nodes
from ..config import Experiment, ExperimentError
from ..config.data import Data
from ..graph.schema import Wants
from ..train.collection_place import Place
from ..train.collections import open_collection_at
from ..world import World
from .list_form import anonymous_bytes

_MOST_CONVERTED = 256 << 20
_SECONDS = 1.0
"""Batches are made for so long: part of an epoch, or several."""


def storages() -> tuple[str, ...]:
    """All that `data.storage` takes; `auto` is one of the others."""
    return tuple(name for name in get_args(Data.model_fields["storage"].annotation) if name != "auto")


def storage_facts(
    experiment: Experiment,
    world: World,
    place: Place,
    wants: Wants,
    collated: int,
    say: Callable[[str], None],
) -> dict[str, dict[str, Any]]:
    """Storage -> its figures, on one rank with the experiment's workers and batches; one after the other.

    `load_seconds`: from files to what batches are cut from. `first_batch_seconds`: from there to the first batch.
    `graphs_per_second`: over some epochs, with workers that start anew in each, as they do in training.
    `process_bytes`: memory that a process takes for it, a rank, or a worker where these are processes. Instead of
    these, `refused`: why it cannot be had.

    Args:
        collated: bytes of the arrays.

    Cost: some seconds each; for `ondisk` a database, which stays; of a large collection only if the experiment says so.
    """
    found: dict[str, dict[str, Any]] = {}
    database = ondisk_directory(Path(place.directory), experiment.data.ondisk_backend)
    for name in storages():
        if (
            name == "ondisk"
            and not database.exists()
            and collated > _MOST_CONVERTED
            and experiment.data.storage != name
        ):
            found[name] = {"refused": "not tried: there is no database yet, and making one takes long"}
            continue
        say(f"trying data.storage={name}")
        data = experiment.data.model_copy(update={"storage": name})
        try:
            found[name] = _tried(experiment.model_copy(update={"data": data}), world, place, wants)
        except ExperimentError as error:
            found[name] = {"refused": str(error)}
    return found


def auto_choice(experiment: Experiment, graphs: Graphs, ranks: int) -> dict[str, str]:
    """What `auto` is with so many ranks on this machine, and why."""
    processes = bool(experiment.data.transforms) and experiment.sampling.workers > 0
    limit = experiment.data.memory_limit
    return choose(graphs.manifest, of_nodes(graphs), limit=limit, ranks=ranks, processes=processes)._asdict()


def _tried(experiment: Experiment, world: World, place: Place, wants: Wants) -> dict[str, Any]:
    before = anonymous_bytes()
    start = time.perf_counter()
    graphs = open_collection_at(place, experiment, world)
    loaded = time.perf_counter()
    loader = GraphLoader(
        world, graphs, "train_mask", sampling=experiment.sampling, run_seed=experiment.seed, wants=wants, training=True
    )  # fmt: skip
    with closing(loader.batches(0)) as batches:
        next(batches)
        first = time.perf_counter()
    epoch, count, began = 0, 0, time.perf_counter()
    while (seconds := time.perf_counter() - began) < _SECONDS:
        epoch += 1
        with closing(loader.batches(epoch)) as batches:
            for batch in batches:
                count += batch.num_global_seeds
                if time.perf_counter() - began > _SECONDS:
                    break
    after = anonymous_bytes()
    return {
        "load_seconds": loaded - start,
        "first_batch_seconds": first - loaded,
        "graphs_per_second": count / seconds,
        "process_bytes": None if before is None or after is None else max(0, after - before),
    }
