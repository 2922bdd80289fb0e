"""The partitions of an experiment: made where the data are, and brought to every machine."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any, NamedTuple

from .. import data
from ..config import (
    EdgeType,
    Experiment,
    ExperimentError,
    FileData,
    GraphTask,
    OgbData,
    PygData,
    PythonData,
    TablesData,
)
from ..config.file import differences, plain
from ..data.digest import NOT_DECIDING, own_transforms
from ..graph import fingerprint
from ..graph.files import MANIFEST, read_manifest
from ..graph.graph import Graph
from ..graph.holds import HOLDS, Holds, Ranges, manifest_digest, refuse_part
from ..graph.needed import needed_rows
from ..graph.partitioner import partition
from ..graph.sending import ranges_of_rows, receive, send
from ..roster import laid_out_for
from ..world import World
from .conflicts import graph_conflicts, missing_in, refuse, world_conflicts
from .lost_parts import part_of, refuse_lost

_SECONDS_TO_SHOW_UP = 1.0
"""A shared disk may show a new directory to other machines a moment later."""


class _Place(NamedTuple):
    """Where the partitions are, or are to be made."""

    machine: int
    directory: str
    fingerprint: str
    """Of the data."""


class _Made(NamedTuple):
    """What every machine hears of them."""

    manifest: bytes
    needed: dict[int, Ranges]
    """Of each other machine."""


def prepare_graph(experiment: Experiment, world: World) -> Graph:
    """Open the partitioned graph on every rank; one machine partitions it first where that has not been done.

    That is the first rank's machine, or where it has not the data, the first that has. A machine that does not see the
    directory is sent what it needs of it, see `partition.distribute`.

    Raises:
        ExperimentError: on every rank: the data is refused, the directory was made from other data or settings, a
            machine has other partitions there, or may not be sent any.
    """
    refuse_collection(experiment)
    world.together(lambda: refuse(world_conflicts(experiment, world)), "comparing experiment and world")
    source = data.Source(experiment.data, experiment.task)
    place = _find(experiment, world, source)
    made = _make_at(place, experiment, world, source)
    directory = Path(place.directory)
    if world.num_machines > 1:
        _distribute(experiment, world, place, made)

    def opened() -> Graph:
        return Graph.open(directory, world.machine, world.num_machines, experiment.partition.topology, part=True)

    return world.together(opened, "opening the partitions")


def refuse_collection(experiment: Experiment) -> None:
    """Raises:
    ExperimentError: the task is about the graphs of a collection, which is not cut into partitions.
    """
    if isinstance(experiment.task, GraphTask):
        raise ExperimentError(
            f"task.kind is {experiment.task.kind}: a collection of graphs has no partitions"
            "; partition is for the nodes of one graph"
        )


def _find(experiment: Experiment, world: World, source: data.Source) -> _Place:
    """Find the data, and with it the directory; and the machine that has the partitions, or else the data."""

    def find(machine: int) -> _Place:
        found = source.fingerprint
        return _Place(machine, str(partition_directory(experiment, found, world.num_machines)), found)

    try:
        place = world.lead(lambda: find(0), "reading the data")
    except ExperimentError as error:
        # Ranks are numbered anew when a job is restarted: the machine that has the data may be another one now.
        if world.num_machines == 1 or experiment.partition.distribute == "shared":
            _refuse_lost(experiment, world, error)
            raise

        def find_here() -> _Place | None:
            try:
                return find(world.machine) if world.machine else None
            except ExperimentError:
                return None

        elsewhere = world.gather(
            world.lead(find_here, "looking for the data on the other machines", per_machine=True), "finding the data"
        )
        place = next((found for found in elsewhere if found is not None), None)
        if place is None:
            _refuse_lost(experiment, world, error)
            raise
    whole = world.gather(_has_whole(Path(place.directory)), "looking for partitions")
    if not whole[place.machine * world.local_size] and any(whole):
        place = place._replace(machine=whole.index(True) // world.local_size)
    return place


def _refuse_lost(experiment: Experiment, world: World, error: ExperimentError) -> None:
    """Nobody has the data: if machines have parts of the partitions, it is said which are missing.

    Raises:
        ExperimentError: on every rank.
    """
    named = experiment.partition.dir
    if named is None or (world.num_machines == 1 and not (Path(named) / HOLDS).exists()):
        return
    found = world.gather(world.together(lambda: part_of(Path(named)), "looking for partitions"), "finding the data")
    parts = [part for part in found if part is not None]
    if parts and not any(world.gather(_has_whole(Path(named)), "looking for partitions")):
        raise ExperimentError(f"{refuse_lost(named, parts)}. The data: {error}")


def _has_whole(directory: Path) -> bool:
    return (directory / MANIFEST).exists() and not (directory / HOLDS).exists()


def _make_at(place: _Place, experiment: Experiment, world: World, source: data.Source) -> _Made:
    directory = Path(place.directory)

    def make() -> _Made:
        _make(experiment, source, directory, place.fingerprint, world.num_machines)
        if world.num_machines == 1:
            return _Made(b"", {})
        graph = Graph.open(directory, place.machine, world.num_machines, experiment.partition.topology)
        draws_by = _decisive(experiment, graph)
        needed = {
            machine: ranges_of_rows(graph, needed_rows(graph.seen_by(machine, world.num_machines), draws_by))
            for machine in range(world.num_machines)
            if machine != place.machine
        }
        return _Made((directory / MANIFEST).read_bytes(), needed)

    if place.machine == 0:
        return world.lead(make, "partitioning")
    there = world.machine == place.machine
    made = world.lead(lambda: make() if there else None, "partitioning", per_machine=True)
    made = world.broadcast(made, "partitioning", place.machine * world.local_size)
    assert made is not None
    return made


def _decisive(experiment: Experiment, graph: Graph) -> dict[str | EdgeType, list[str]]:
    """The attributes by which neighbours are drawn."""
    named = [name for name in (experiment.sampling.weight_attr, experiment.sampling.time_attr) if name is not None]
    return {**dict.fromkeys(graph.schema.nodes, named), **dict.fromkeys(graph.schema.edges, named)}


def _distribute(experiment: Experiment, world: World, place: _Place, made: _Made) -> None:
    """Send each machine what it lacks."""
    distribute, directory = experiment.partition.distribute, Path(place.directory)
    source_host = world.gather(world.host, "looking for partitions")[place.machine * world.local_size]
    manifest, digest = json.loads(made.manifest), hashlib.blake2b(made.manifest, digest_size=16).hexdigest()
    wanted = made.needed.get(world.machine)

    def lacking_here() -> tuple[Holds, Ranges] | None:
        if wanted is None or not world.leads_machine:
            return None
        return _lacking(directory, digest, manifest["files"], wanted, source_host, wait=distribute == "auto")

    mine = world.together(lacking_here, "looking for partitions")
    ranges = {
        rank // world.local_size: there
        for rank, there in enumerate(world.gather(None if mine is None else mine[1], "looking for partitions"))
        if there is not None
    }
    if not ranges:
        return
    if distribute == "shared":
        blind = [f"machine {machine}" for machine in ranges]
        raise ExperimentError(
            f"partition.distribute is shared, but {', '.join(blind)} of {world.num_machines} (from 0) "
            f"{'does' if len(blind) == 1 else 'do'} not see all of {directory}, which machine {place.machine} has; "
            "name a directory on a shared disk (partition.dir), or set partition.distribute=auto or send"
        )
    what = "sending the partitions"

    def transfer() -> str | None:
        try:
            if world.machine == place.machine:
                send(world, group, directory, list(manifest["files"]), ranges, _say)
            elif mine is not None:
                receive(world, group, place.machine, directory, (made.manifest, manifest), *mine, _say)
        except ExperimentError as error:
            return str(error)  # not raised here: the other machines go on, and hear of it below
        return None

    with world.exchange_groups(1) as (group,):
        refusal = world.lead(transfer, what, per_machine=True)
    refusals = [text for text in dict.fromkeys(world.gather(refusal, what)) if text is not None]
    refuse(refusals)


def _lacking(
    directory: Path, digest: str, files: dict[str, Any], wanted: Ranges, source: str, wait: bool
) -> tuple[Holds, Ranges] | None:
    """What this machine has of the partitions, and what it lacks; None if it lacks nothing.

    Args:
        digest, files: of the manifest.
        source: the host that has everything.

    Raises:
        ExperimentError: it has something else there.
    """
    if wait and not directory.exists() and directory.parent.is_dir():
        # Reading a folder makes a network file system look again.
        os.listdir(directory.parent)
        time.sleep(_SECONDS_TO_SHOW_UP)
    there, holds = manifest_digest(directory), Holds.read(directory)
    if there not in (None, digest) or (holds is not None and holds.manifest != digest):
        raise ExperimentError(
            f"{directory} holds other partitions here than on the machine that has made them; remove it here, and this "
            "machine is sent its share; or give every machine the same (a shared disk, or copies)"
        )
    if holds is None:
        if there is not None:
            return None
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise ExperimentError(
                f"partition directory {directory} exists and is no partition (it has no {MANIFEST}); remove it, or "
                "name another, partition.dir"
            )
        holds = Holds(digest)
    holds = holds.without_lost_files(directory, files)
    holds.source = source
    lacking = holds.missing(wanted)
    return None if not lacking and there is not None else (holds, lacking)


def partition_directory(experiment: Experiment, data_fingerprint: str, num_machines: int) -> Path:
    """Where the partitions are: `partition.dir`, else beside the data in a folder that its content names."""
    settings, source = experiment.partition, experiment.data
    if settings.dir is not None:
        return Path(settings.dir)
    beside, name = Path(), source.source
    if isinstance(source, (PygData, OgbData)):
        beside, name = Path(source.root), source.dataset
    elif isinstance(source, FileData):
        beside, name = Path(source.path).parent, Path(source.path).stem
    elif isinstance(source, TablesData):
        if source.root.startswith("package:"):
            name = source.root.removeprefix("package:").partition("/")[0]
        else:
            beside, name = Path(source.root), Path(source.root).name
    identity = fingerprint.fingerprint(data_fingerprint, settings, num_parts(experiment, num_machines))
    return Path(fingerprint.partition_directory(beside / "partitions", name, identity))


def num_parts(experiment: Experiment, num_machines: int) -> int:
    parts = experiment.partition.parts
    return laid_out_for(experiment, num_machines) if parts == "auto" else parts


def _make(
    experiment: Experiment, source: data.Source, directory: Path, data_fingerprint: str, num_machines: int
) -> None:
    """Partition where that has not been done."""
    if (directory / MANIFEST).exists():
        checked_manifest(experiment, directory, data_fingerprint)
        if (holds := Holds.read(directory)) is None:
            return
        if experiment.launch.min_nodes is None:
            raise refuse_part(directory, holds)
        # No machine that is there has all of it, and this one has the data. What was sent is no loss.
        _say(f"{directory} holds only what this machine was sent, and nobody has the rest: partitioning again")
        shutil.rmtree(directory)
    _say(f"loading the data (source: {experiment.data.source})")
    source.scratch = directory.parent  # where there is room for the graph
    loaded = source.load()
    for line in data.left_out_lines(loaded.info):
        _say(line)
    # Before the work rather than after it.
    refuse([*graph_conflicts(experiment, loaded.data.edge_types), *missing_in(loaded.data, experiment)])
    partition(
        loaded.data,
        loaded.keys,
        {**loaded.info, "made_from": _made_from(experiment)},
        experiment.partition,
        num_parts(experiment, num_machines),
        directory,
        data_fingerprint,
        _say,
    )


def _say(text: str) -> None:
    print(f"[partition] {text}", flush=True)


def _made_from(experiment: Experiment) -> dict[str, Any]:
    """The settings that decide the graph; where its files lie does not."""
    settings = plain(experiment.data)
    return {
        "data": {key: value for key, value in settings.items() if key not in NOT_DECIDING},
        "task": {key: getattr(experiment.task, key) for key in ("kind", "node_type", "label")},
    }


def checked_manifest(experiment: Experiment, directory: Path, data_fingerprint: str) -> dict[str, Any]:
    """The manifest of a directory that is there.

    Raises:
        ExperimentError: if it was made from other data or settings; the message says what differs.
    """
    manifest = read_manifest(directory)
    try:
        fingerprint.check_matches(manifest, data_fingerprint, experiment.partition, directory)
    except ExperimentError as error:
        made_from = manifest["info"].get("made_from")
        changed = differences(made_from, _made_from(experiment), ("there", "now")) if made_from else []
        if isinstance(experiment.data, PythonData) and not changed:
            changed = [
                f"if {experiment.data.function} draws at random, it has to do so under a seed: it is called again"
            ]
        elif own_transforms(experiment.data) and not changed:
            changed = [f"if no file of the data has changed, that of {', '.join(own_transforms(experiment.data))} has"]
        raise ExperimentError("\n  ".join([str(error), *changed])) from None
    return manifest
