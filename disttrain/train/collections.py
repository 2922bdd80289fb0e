"""The collection of an experiment: made once on every machine, then mapped by its ranks."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn
from torch_geometric.nn import BatchNorm

from .. import data
from ..collection.collated import named
from ..collection.columns import Objects
from ..collection.files import parse_manifest
from ..collection.graphs import Graphs
from ..collection.loader import GraphLoader, worker_processes
from ..collection.numbered import NumberedGraphs
from ..config import (
    Experiment,
    ExperimentError,
    GraphRegression,
    PygData,
    PythonData,
    SplitByFiles,
    SplitByFolds,
    SplitByFunction,
)
from ..config import SplitByRatio as ByRatio
from ..config.counted import counted
from ..data.digest import add_code, add_files, own_transforms
from ..data.folds import split_files, split_in_turn, split_rows
from ..data.split import MASKS, check_labels, has_label, refuse_signs
from ..graph.files import MANIFEST
from ..graph.schema import GRAPH
from ..roster import Roster
from ..tasks.labels import label_place
from ..world import World
from .alone import alone
from .batch_norms import SharedBatchNorm
from .collection_making import make_collection, state_of
from .collection_place import Place, folder_of, place_by_files
from .conflicts import refuse, world_conflicts
from .held import converted, held
from .trained_on import TrainedOn, labelled_for
from .transformed import transformed


def prepare_collection(experiment: Experiment, world: World, trained_on: TrainedOn | None = None) -> Graphs:
    """Open the collection on every rank; the first rank of each machine makes it where that has not been done.

    Args:
        trained_on: what the model has learnt from that shall predict these graphs.

    Raises:
        ExperimentError: on every rank: the data is refused, a directory is damaged, machines have different data.
        PeerError: a rank failed in making it, or fell silent.
    """
    return open_collection_at(find_collection(experiment, world), experiment, world, trained_on)


def find_collection(experiment: Experiment, world: World) -> Place:
    """Where this machine has the collection, which is made there if need be. See `prepare_collection`."""
    world.together(lambda: refuse(world_conflicts(experiment, world)), "comparing experiment and world")
    place = world.lead(lambda: make_collection(experiment), "making the collection", per_machine=True)
    places = world.gather(place.fingerprint, "comparing the collections")
    different = [rank for rank, fingerprint in enumerate(places) if fingerprint != places[0]]
    if different:
        machines = sorted({rank // world.local_size for rank in different})
        raise ExperimentError(
            f"machine {', '.join(map(str, machines))} (from 0) has another collection than machine 0: its data differ; "
            "give every machine the same files (and the same graphs by `disttrain extend`)"
        )
    return place


def open_collection_at(
    place: Place, experiment: Experiment, world: World, trained_on: TrainedOn | None = None
) -> Graphs:
    """See `prepare_collection`; every rank calls it."""
    if experiment.data.storage == "ondisk":
        world.lead(lambda: _convert(experiment, place), "converting the collection", per_machine=True)

    def opened() -> Graphs:
        directory = Path(place.directory)
        manifest = state_of(directory, place.fingerprint, experiment.data.first)
        collated, access = held(experiment, world, directory, manifest)
        grown = parse_manifest(directory)["history"]
        whole = {
            **manifest, "parts": 1, "method": "none", "fingerprint": _of_run(experiment, manifest["fingerprint"]),
            "sizes": {_of_run(experiment, state["fingerprint"]): state["num_graphs"] for state in grown},
        }  # fmt: skip
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
    if not _is_real(dtype := of_graphs[task.label].dtype):
        raise ExperimentError(
            f"{where} is {dtype}; expected whole numbers, true and false, or float16, float32 or float64: convert it "
            "where the graphs are made"
        )
    labels = np.asarray(graphs.node_attribute(GRAPH, task.label))
    numbers = isinstance(task, GraphRegression)
    labelled = has_label(labels, numbers)
    check_labels(labels[labelled], where, numbers)
    refuse_signs(labels, where, numbers)
    assert isinstance(split, (ByRatio, SplitByFolds, SplitByFiles, SplitByFunction))
    masks: dict[str, np.ndarray] = {}
    given = {"num_graphs": len(labelled), "graphs": NumberedGraphs(graphs.stored, len(labelled))}
    ends = [state["num_graphs"] for state in graphs.manifest["history"]]
    for name, mask in zip(MASKS, split_in_turn(_flat(labels), labelled, split, ends, given)):
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
    # Batch norms are over the rows of a whole step, and cannot wait for those of a second batch.
    joined = any(isinstance(module, (SharedBatchNorm, BatchNorm)) for module in model.modules())

    def loader(split: str) -> GraphLoader:
        return GraphLoader(
            world, graphs, task.splits[split], sampling=experiment.sampling, run_seed=experiment.seed, wants=wants,
            training=split == "train", processes=processes, roster=Roster.of(experiment, world), joined=joined,
        )  # fmt: skip

    return {split: loader(split) for split in ("train", "val", "test")}


def collection_plan(experiment: Experiment) -> list[str]:
    """What a run would do to have its collection; nothing is downloaded, called or written to find out."""
    source = experiment.data
    if isinstance(source, PygData) and not data.is_there(source):
        return [f"data: {source.dataset} will be downloaded or made, in {source.root}"]
    assert isinstance(source, (PygData, PythonData))
    if (place := place_by_files(source, remember=False)) is None:
        return [f"collection: will be made, in a folder of {folder_of(source)} that its content names"]
    if not (Path(place.directory) / MANIFEST).exists():
        return [f"collection: will be made in {place.directory}"]
    count = parse_manifest(Path(place.directory))["num_graphs"]
    return [f"collection: is in {place.directory}, {counted(count, 'graph')}"]


def _convert(experiment: Experiment, place: Place) -> None:
    directory = Path(place.directory)
    with alone(folder_of(experiment.data), experiment.train.timeout):
        converted(experiment, directory, state_of(directory, place.fingerprint, experiment.data.first))


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


def _is_real(dtype: str) -> bool:
    """Whether it is one of NumPy's types of real numbers (bfloat16 is none)."""
    try:
        return np.dtype(dtype).kind in "biuf"
    except TypeError:
        return False


def _why_no_label(graphs: Graphs, label: str) -> str:
    for key, store in graphs.collated.stores.items():
        column = store.columns.get(label)
        if isinstance(column, Objects):
            kinds = "numbers of several types" if column.mixed else "text or other objects"
            return f"expected a number or a tensor in each graph, they have {kinds}; give all a number of one type"
        if column is not None:
            return (
                f"the graphs have it{'' if key is None else f' in {key}'}, but not one row for each; give it the shape "
                "[1], or [1, K] for several numbers (PyG puts the rows of all graphs end to end)"
            )
    begins = f"{named(None, label)}: "
    why = next((line.removeprefix(begins) for line in graphs.manifest["left_out"] if line.startswith(begins)), None)
    if why is not None and " has none, " in why:
        return (
            f"only some of the graphs have it ({why}); give it to all: NaN, or -1 where it is a class, where "
            "there is none; these are in no split then"
        )
    if why is not None:
        return f"the graphs have it, but it was left out: {why}"
    there = [name for name in graphs.schema.nodes[GRAPH].attributes if not name.endswith("_mask")]
    return f"the graphs have no such attribute; with a row for each graph there are: {', '.join(there) or 'none'}"
