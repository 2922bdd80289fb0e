"""The collection of an experiment: made once on every machine, then mapped by its ranks."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import nn

from .. import data
from ..collection.collated import collate
from ..collection.files import FORMAT, content_digest, read_manifest, write_collection
from ..collection.graphs import Graphs
from ..collection.loader import GraphLoader, worker_processes
from ..collection.numbered import NumberedGraphs
from ..config import Experiment, ExperimentError, GraphRegression, PygData, SplitByFiles, SplitByFolds, SplitByFunction
from ..config import SplitByRatio as ByRatio
from ..config.counted import counted
from ..data.digest import NOT_DECIDING, OF_RUNS, add_code, add_files, own_transforms
from ..data.folds import split_files, split_rows
from ..data.graphs import read_graphs
from ..data.pyg import files_beside, is_outdated
from ..data.split import MASKS, check_labels, has_label
from ..graph.files import MANIFEST
from ..graph.landing import try_lock
from ..graph.schema import GRAPH
from ..tasks.labels import label_place
from ..world import World
from .conflicts import refuse, world_conflicts
from .held import converted, held
from .trained_on import TrainedOn, labelled_for
from .transformed import transformed

_SECONDS_BETWEEN_TRIES = 0.2
_SECONDS_BETWEEN_TOUCHES = 1.0


class _Place(NamedTuple):
    """Where a machine has the collection."""

    directory: str
    fingerprint: str


def prepare_collection(experiment: Experiment, world: World, trained_on: TrainedOn | None = None) -> Graphs:
    """Open the collection on every rank; the first rank of each machine makes it where that has not been done.

    Args:
        trained_on: what the model has learnt from that shall predict these graphs.

    Raises:
        ExperimentError: on every rank: the data is refused, a directory is damaged, machines have different data.
        PeerError: a rank failed in making it, or fell silent.
    """
    world.together(lambda: refuse(world_conflicts(experiment, world)), "comparing experiment and world")
    place = world.lead(lambda: _make(experiment), "making the collection", per_machine=True)
    places = world.gather(place.fingerprint, "comparing the collections")
    different = [rank for rank, fingerprint in enumerate(places) if fingerprint != places[0]]
    if different:
        machines = sorted({rank // world.local_size for rank in different})
        raise ExperimentError(
            f"machine {', '.join(map(str, machines))} (from 0) has another collection than machine 0: its data differ; "
            "give every machine the same files"
        )

    if experiment.data.storage == "ondisk":
        world.lead(lambda: _convert(experiment, place), "converting the collection", per_machine=True)

    def opened() -> Graphs:
        directory = Path(place.directory)
        manifest = read_manifest(directory)
        collated, access = held(experiment, world, directory, manifest)
        whole = {**manifest, "parts": 1, "method": "none", "fingerprint": _of_run(experiment, place.fingerprint)}
        return Graphs(
            collated,
            whole,
            machine=world.machine,
            num_machines=world.num_machines,
            access=access,
            sharded=experiment.data.shard,
        )

    graphs = transformed(world.together(opened, "opening the collection"), experiment, world)

    if isinstance(experiment.data.split, SplitByFunction) and (trained_on is None or trained_on.knows(graphs)):
        # What a function of the user's own says may differ from call to call: one rank asks it.
        masks = world.lead(lambda: divided(graphs, experiment).masks, "dividing the graphs")
        manifest = {**graphs.manifest, "split": _digest(masks)}
        return replace(graphs, masks=masks, manifest=manifest, known=trained_on.schema if trained_on else None)
    return world.together(
        lambda: divided(graphs, experiment) if trained_on is None else to_predict(graphs, experiment, trained_on),
        "dividing the graphs",
    )


def divided(graphs: Graphs, experiment: Experiment) -> Graphs:
    """The collection with the masks of `data.split` over the graphs that have a label.

    Raises:
        ExperimentError: there is no such label or it cannot be learnt, or nothing is left to train on.
    """
    task, split = experiment.task, experiment.data.split
    where = label_place(GRAPH, task.label)
    of_graphs = graphs.schema.nodes[GRAPH].attributes
    if task.label not in of_graphs:
        raise ExperimentError(f"{where}: {_why_no_label(graphs, task.label)}")
    labels = np.asarray(graphs.node_attribute(GRAPH, task.label))
    numbers = isinstance(task, GraphRegression)
    labelled = has_label(labels, numbers)
    check_labels(labels[labelled], where, numbers)
    assert isinstance(split, (ByRatio, SplitByFolds, SplitByFiles, SplitByFunction))
    masks: dict[str, np.ndarray] = {}
    given = {"num_graphs": len(labelled), "graphs": NumberedGraphs(graphs.stored, len(labelled))}
    for name, mask in zip(MASKS, split_rows(_flat(labels), labelled, split, given)):
        masks[name] = mask & labelled
    if not masks["train_mask"].any():
        raise ExperimentError(
            f"data.split: no graph is left to train on ({int(labelled.sum())} of {len(labelled)} have a label); look "
            "at the split and the label"
        )
    return replace(graphs, masks=masks)


def to_predict(graphs: Graphs, experiment: Experiment, trained_on: TrainedOn) -> Graphs:
    """The collection with the splits of the training where it is the same one. Graphs that were not there are in no
    split, unless files list them, and need no label.

    Raises:
        ExperimentError: they are not what the model has been trained on.
    """
    if trained_on.schema is None or trained_on.knows(graphs):
        return replace(divided(graphs, experiment), known=trained_on.schema)
    graphs = labelled_for(graphs, experiment.task, trained_on.schema)
    split, labels = experiment.data.split, np.asarray(graphs.node_attribute(GRAPH, experiment.task.label))
    nothing = np.zeros(len(labels), bool)
    by_files = split_rows(_flat(labels), ~nothing, split) if isinstance(split, SplitByFiles) else (nothing,) * 3
    return replace(graphs, masks={**graphs.masks, **dict(zip(MASKS, by_files))})


def build_graph_loaders(
    experiment: Experiment, world: World, graphs: Graphs, task: Any, model: nn.Module
) -> dict[str, GraphLoader]:
    """The loaders of a run; see `build_loaders`."""
    wants = model.wants | task.wants  # pyright: ignore[reportOperatorIssue, reportUnknownVariableType]
    processes = worker_processes(world, graphs, experiment.sampling)

    def loader(split: str) -> GraphLoader:
        return GraphLoader(
            world, graphs, task.splits[split], sampling=experiment.sampling, run_seed=experiment.seed, wants=wants,
            training=split == "train", processes=processes,
        )  # fmt: skip

    return {split: loader(split) for split in ("train", "val", "test")}


def collection_plan(experiment: Experiment) -> list[str]:
    """What a run would do to have its collection; nothing is downloaded, called or written to find out."""
    source = experiment.data
    if isinstance(source, PygData) and not data.is_there(source):
        return [f"data: {source.dataset} will be downloaded or made, in {source.root}"]
    if isinstance(source, PygData) and (place := _place_of_files(source)) is not None:
        there = (Path(place.directory) / MANIFEST).exists()
        return [f"collection: {'is' if there else 'will be made'} in {place.directory}"]
    return [f"collection: will be made, in a folder of {_folder(source)} that its content names"]


def _make(experiment: Experiment) -> _Place:
    source, folder = experiment.data, _folder(experiment.data)
    with _alone(folder, experiment.train.timeout):
        place = _place_of_files(source) if isinstance(source, PygData) else None
        if place is not None and (Path(place.directory) / MANIFEST).exists():
            return place
        _say(f"reading the graphs (source: {source.source})")
        with _processing(source, folder) as anew:
            collated = collate(read_graphs(source, anew), _origin(source))
        for line in collated.left_out:
            _say(f"left out: {line}")
        if place is None:
            place = _place(source, content_digest(collated))
        directory = Path(place.directory)
        if not (directory / MANIFEST).exists():
            write_collection(collated, directory, place.fingerprint, "data.store")
            _say(f"{counted(len(collated), 'graph')} in {directory}")
    return place


def _convert(experiment: Experiment, place: _Place) -> None:
    directory = Path(place.directory)
    with _alone(_folder(experiment.data), experiment.train.timeout):
        converted(experiment, directory, read_manifest(directory))


@contextmanager
def _processing(source: Any, folder: Path) -> Iterator[bool]:
    """Around what PyG processes; whether it has to be done anew, since what lies there is older than the raw files, or
    was left by a process that did not come to the end: PyG takes any file for a whole one."""
    name = source.dataset if isinstance(source, PygData) else source.function
    root = os.path.abspath(source.root) if isinstance(source, PygData) else ""
    settings = json.dumps([name, root, source.args], sort_keys=True)
    mark = folder / f".processing-{hashlib.blake2b(settings.encode(), digest_size=6).hexdigest()}"
    anew = mark.exists() or (isinstance(source, PygData) and is_outdated(source))
    mark.touch()
    yield anew
    mark.unlink()


def _place_of_files(source: PygData) -> _Place | None:
    """By settings and raw files; None of a data set that has none, which is known by what it makes."""
    files = files_beside(source)
    if not files:
        return None
    digest = hashlib.blake2b(digest_size=16)
    settings = source.model_dump(mode="json", exclude={*NOT_DECIDING, *OF_RUNS})
    digest.update(json.dumps([FORMAT, settings], sort_keys=True).encode())
    add_code(digest, source, but=OF_RUNS)
    add_files(digest, files)
    return _place(source, digest.hexdigest())


def _place(source: Any, fingerprint: str) -> _Place:
    name = source.dataset if isinstance(source, PygData) else source.function.rpartition(":")[2]
    return _Place(str(_folder(source) / f"{name}-{fingerprint[:12]}"), fingerprint)


def _folder(source: Any) -> Path:
    if source.store is not None:
        return Path(source.store)
    return Path(source.root) / "collections" if isinstance(source, PygData) else Path("collections")


def _origin(source: Any) -> str:
    return f"data.dataset {source.dataset}" if isinstance(source, PygData) else f"data.function {source.function}"


@contextmanager
def _alone(folder: Path, timeout: float) -> Iterator[None]:
    """One process of a machine at a time downloads, processes and writes here: PyG's classes do not see to that. The
    lock goes with its process, which touches it each second: others wait for as long as they see that.

    Raises:
        ExperimentError: the folder cannot be made, or who holds the lock has been silent for `timeout` seconds.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / ".lock", os.O_CREAT | os.O_RDWR, 0o666)
    except OSError as error:
        raise ExperimentError(
            f"collection directory {folder} cannot be made: {error}; name another, data.store"
        ) from error
    over = threading.Event()
    beat = threading.Thread(target=_touch_until, args=(lock, over), name="beat for other jobs", daemon=True)
    try:
        _await(lock, folder, timeout)
        beat.start()
        yield
    finally:
        over.set()
        if beat.ident is not None:
            beat.join()
        os.close(lock)


def _await(lock: int, folder: Path, timeout: float) -> None:
    seen, heard = 0, 0.0
    while not try_lock(lock):
        touched = os.fstat(lock).st_mtime_ns
        if not heard:
            _say(f"another process is making a collection in {folder}; waiting for it")
        if touched != seen or not heard:
            seen, heard = touched, time.monotonic()
        if time.monotonic() - heard > timeout:
            raise ExperimentError(
                f"another process holds {folder / '.lock'}, and has shown no sign of life for {timeout:g} s "
                "(train.timeout): end it, or name another directory, data.store"
            )
        time.sleep(_SECONDS_BETWEEN_TRIES)


def _touch_until(lock: int, over: threading.Event) -> None:
    while not over.wait(_SECONDS_BETWEEN_TOUCHES):
        with suppress(OSError):
            os.utime(lock)


def _say(text: str) -> None:
    print(f"[collection] {text}", flush=True)


def _of_run(experiment: Experiment, fingerprint: str) -> str:
    """A run is another one when the files that divide the graphs are, or its own transforms at each access."""
    files, source = split_files(experiment.data.split), experiment.data
    if not files and not own_transforms(source, but=("pre_filter", "pre_transforms")):
        return fingerprint
    digest = hashlib.blake2b(fingerprint.encode(), digest_size=16)
    add_files(digest, files)
    add_code(digest, source, but=("pre_filter", "pre_transforms"))
    return digest.hexdigest()


def _digest(masks: dict[str, np.ndarray]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for name, mask in masks.items():
        digest.update(name.encode() + np.packbits(mask).tobytes())
    return digest.hexdigest()


def _flat(labels: np.ndarray) -> np.ndarray:
    return labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels


def _why_no_label(graphs: Graphs, label: str) -> str:
    for key, store in graphs.collated.stores.items():
        if label in store.columns:
            return (
                f"the graphs have it{'' if key is None else f' in {key}'}, but not one row for each; give it the shape "
                "[1], or [1, K] for several numbers (PyG puts the rows of all graphs end to end)"
            )
    there = [name for name in graphs.schema.nodes[GRAPH].attributes if not name.endswith("_mask")]
    return f"the graphs have no such attribute; with a row for each graph there are: {', '.join(there) or 'none'}"
