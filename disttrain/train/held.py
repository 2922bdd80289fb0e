"""How a run holds its collection: `data.storage`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..collection.access import Access
from ..collection.collated import Collated
from ..collection.files import parse_manifest
from ..collection.graphs import Graphs
from ..collection.ondisk import OnDisk, convert, ondisk_directory
from ..collection.part import Part, in_memory, part_of
from ..collection.storage import choose, of_nodes, opened, refuse_unknown
from ..config import Experiment
from ..graph.book import first_part
from ..world import World


def held(
    experiment: Experiment, world: World, directory: Path, manifest: dict[str, Any]
) -> tuple[Collated, Access | None]:
    """The collection that lies in a folder, and how batches come by its graphs where that is in another way.

    Raises:
        ExperimentError: an attribute does not exist, or the database cannot be read.
    """
    data, sampling, storage = experiment.data, experiment.sampling, experiment.data.storage
    in_processes = sampling.in_processes(bool(data.transforms))
    mapped = opened(directory, manifest)
    if storage == "auto":
        choice = choose(
            manifest,
            of_nodes(Graphs(mapped, manifest)),
            limit=data.memory_limit,
            ranks=world.local_size,
            processes=in_processes,
        )
        storage = choice.storage
        if world.is_lead:
            print(f"[collection] storage: {storage}, since {choice.why}", flush=True)
    names = None
    if storage == "hybrid":
        names = of_nodes(Graphs(mapped, manifest)) if data.in_memory is None else data.in_memory
    if storage in ("memory", "hybrid"):
        refuse_unknown(manifest, names or ())
        if data.shard:
            first, end = (first_part(m, len(mapped), world.num_machines) for m in (world.machine, world.machine + 1))
            return mapped, Part(in_memory(part_of(mapped, first, end), names), first, mapped)
        # Worker processes that do not have what the rank has get at its memory only where that is shared.
        if in_processes and sampling.start_method != "fork":
            return in_memory(mapped, names), None
        return opened(directory, manifest, in_memory=names), None
    if storage == "ondisk":
        where = ondisk_directory(directory, data.ondisk_backend)
        cache = data.cache // sampling.workers if in_processes else data.cache
        return mapped, OnDisk(where, mapped, manifest["fingerprint"], data.ondisk_backend, cache, _states(directory))
    return mapped, None


def converted(experiment: Experiment, directory: Path, manifest: dict[str, Any]) -> None:
    """Make the database of `data.storage: ondisk` where there is none, or it lacks graphs. One process at a time.

    Raises:
        ExperimentError: it cannot be written.
    """
    backend = experiment.data.ondisk_backend
    where = ondisk_directory(directory, backend)

    def say(how_far: str) -> None:
        print(f"[collection] writing {where}: {how_far}", flush=True)

    convert(opened(directory, manifest), where, manifest["fingerprint"], backend, say, _states(directory))


def _states(directory: Path) -> list[str]:
    """The fingerprints of all states of the collection, also those later than the one that is used."""
    return [state["fingerprint"] for state in parse_manifest(directory)["history"]]
