"""From an experiment to a trained model: data -> partitions -> graph -> task -> model -> trainer."""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch_geometric.data import HeteroData

from .. import data
from ..config import (
    EdgeType,
    Experiment,
    ExperimentError,
    FileData,
    HeteroConvModel,
    PygData,
    PythonData,
    TablesData,
    edge_type_name,
)
from ..config.check import nearest
from ..config.file import differences, plain
from ..config.yaml import path_text
from ..data.digest import NOT_DECIDING
from ..graph import fingerprint
from ..graph.files import MANIFEST, read_manifest
from ..graph.graph import Graph
from ..graph.partitioner import partition
from ..models import build_model
from ..sampling.kind import kind_conflicts, missing_attributes
from ..tasks import Task, build_task
from ..world import World
from .halves import halves_conflicts
from .trainer import Trainer


def run(experiment: Experiment, world: World, fresh: bool = False) -> dict[str, Any]:
    """Train and evaluate; every rank calls it. Partitions the graph first where that has not been done.

    Args:
        fresh: begin anew in a run directory that an earlier run has used, instead of going on from its checkpoints.

    Returns:
        What `summary.json` holds.

    Raises:
        ExperimentError: on every rank, before anything is trained: the experiment does not fit the world or the graph.
    """
    started = time.perf_counter()
    graph = prepare_graph(experiment, world)
    partitioned = time.perf_counter()
    task, model = build(experiment, graph, world)
    seconds = {"partition": partitioned - started, "load": time.perf_counter() - partitioned}
    return Trainer(experiment, world, graph, task, model, fresh=fresh, seconds=seconds).train()


def prepare_graph(experiment: Experiment, world: World) -> Graph:
    """Open the partitioned graph on every rank; rank 0 partitions it first where that has not been done.

    A machine that does not see the directory (no shared disk) makes it for itself from its own copy of the data; that
    all have the same graph is checked.

    Raises:
        ExperimentError: on every rank: the data is refused, the directory was made from other data or settings, or
            machines have different graphs.
    """
    world.together(lambda: _refuse(_world_conflicts(experiment, world)), "comparing experiment and world")
    make = partial(_ensure_partitions, experiment, world.num_machines)
    made = world.lead(make, "partitioning")

    def made_here() -> tuple[str, str]:
        return made if world.is_lead else make()

    directory, data_fingerprint = world.lead(made_here, "partitioning on each machine", per_machine=True)

    def opened() -> Graph:
        return Graph.open(directory, world.machine, world.num_machines, experiment.partition.topology)

    graph = world.together(opened, "opening the partitions")
    graphs = world.gather((world.host, data_fingerprint, graph.manifest["files"]), "comparing the graphs")
    others = [f"rank {rank} on {host}" for rank, (host, *same) in enumerate(graphs) if same != list(graphs[0][1:])]
    if others:
        raise ExperimentError(
            f"{', '.join(others)} opened another graph in {directory} than rank 0 on {graphs[0][0]}; give every "
            "machine the same data and the same partitions (a shared disk, or copies)"
        )
    return graph


def build(experiment: Experiment, graph: Graph, world: World) -> tuple[Task, nn.Module]:
    """Task and model for this graph, with the same first weights on every rank; every rank calls it.

    Raises:
        ExperimentError: one message with everything in which the experiment does not fit the graph.
    """
    task = world.together(lambda: _build_task(experiment, graph), "building the task").settled(world, graph)

    def made() -> nn.Module:
        torch.manual_seed(experiment.seed)
        model = build_model(
            experiment.model, graph.schema, task.node_type, task.out_channels, statistics=graph.statistics
        )
        _refuse(halves_conflicts(experiment, graph.schema, task, model))
        return model

    return task, world.together(made, "building the model")


def _build_task(experiment: Experiment, graph: Graph) -> Task:
    refusals, task = graph_conflicts(experiment, graph.schema.edges), None
    try:
        task = build_task(experiment.task, graph.schema)
    except ExperimentError as error:
        refusals.append(str(error))
    if task is not None:
        refusals += kind_conflicts(experiment.sampling, graph.schema, task.node_type)
    _refuse(refusals)
    assert task is not None
    return task


def partition_directory(experiment: Experiment, data_fingerprint: str, num_machines: int) -> Path:
    """Where the partitions are: `partition.dir`, else beside the data in a folder that its content names."""
    settings, source = experiment.partition, experiment.data
    if settings.dir is not None:
        return Path(settings.dir)
    beside, name = Path(), source.source
    if isinstance(source, PygData):
        beside, name = Path(source.root), source.dataset
    elif isinstance(source, FileData):
        beside, name = Path(source.path).parent, Path(source.path).stem
    elif isinstance(source, TablesData):
        if source.root.startswith("package:"):
            name = source.root.removeprefix("package:").partition("/")[0]
        else:
            beside, name = Path(source.root), Path(source.root).name
    identity = fingerprint.fingerprint(data_fingerprint, settings, _parts(experiment, num_machines))
    return Path(fingerprint.partition_directory(beside / "partitions", name, identity))


def describe_partition(graph: Graph) -> list[str]:
    """What `disttrain partition` prints: sizes, edge cut and balance."""
    manifest = graph.manifest
    size = sum(entry["bytes"] for entry in manifest["files"].values())
    cut, balance = manifest["edge_cut"], manifest["balance"]
    lines = [
        f"{graph.directory}: {graph.parts} partitions by {manifest['method']}, {size / 2**20:,.1f} MiB",
        f"edges between partitions: {cut['total']:.1%}",
    ]
    lines += [
        f"  {edge_type_name(edge_type)}: {edges.count:,} edges, "
        f"{cut['per_relation'].get(edge_type_name(edge_type), 0.0):.1%} between partitions"
        for edge_type, edges in graph.schema.edges.items()
    ]
    lines.append("largest share of a partition, 1 is perfect balance:")
    lines += [
        f"  {node_type}: {nodes.count:,} nodes, {_balance(balance['per_type'].get(node_type))}"
        for node_type, nodes in graph.schema.nodes.items()
    ]
    seeds = balance["train_seeds"]
    share = f" ({max(seeds) * len(seeds) / sum(seeds):.3f})" if sum(seeds) else ""
    lines.append(f"training seeds per partition: {', '.join(f'{number:,}' for number in seeds)}{share}")
    return lines


def _balance(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, (int, float)) else "-"


def plan(experiment: Experiment, world: World) -> list[str]:
    """What a run would do, found without downloading, partitioning or writing anything.

    Raises:
        ExperimentError: what can be refused without that.
    """
    refusals = _world_conflicts(experiment, world)
    lines = [
        f"ranks: {world.size}, machines: {world.num_machines}, device: {world.device.type}",
        f"run directory: {experiment.directory}" + (" (used before)" if Path(experiment.directory).exists() else ""),
    ]
    if isinstance(experiment.data, PygData):
        from ..data.pyg import is_there

        if not is_there(experiment.data):
            lines.append(f"data: {experiment.data.dataset} will be downloaded or made, in {experiment.data.root}")
            _refuse(refusals)
            return lines
    data_fingerprint = data.fingerprint(experiment.data, experiment.task)
    directory = partition_directory(experiment, data_fingerprint, world.num_machines)
    if (directory / MANIFEST).exists():
        manifest = _checked_manifest(experiment, directory, data_fingerprint)
        lines.append(f"partitions: {manifest['parts']} by {manifest['method']}, in {directory}")
        refusals += graph_conflicts(experiment, Graph.open(directory).schema.edges)
    else:
        parts = _parts(experiment, world.num_machines)
        lines.append(f"partitions: {parts} by {experiment.partition.method} will be made in {directory}")
    _refuse(refusals)
    return lines


def _refuse(refusals: list[str]) -> None:
    if refusals:
        raise ExperimentError("\n".join(refusals))


def _world_conflicts(experiment: Experiment, world: World) -> list[str]:
    """Where the experiment does not fit the ranks and devices that were started."""
    launch, parts = experiment.launch, experiment.partition.parts
    found = []
    if launch.nodes not in (None, world.num_machines):
        found.append(
            f"launch.nodes is {launch.nodes}, but {world.num_machines} machines were started; "
            f"start as many (--nnodes {launch.nodes}), or set launch.nodes={world.num_machines}"
        )
    if launch.procs_per_node not in (None, world.local_size):
        found.append(
            f"launch.procs_per_node is {launch.procs_per_node}, but each machine runs {world.local_size} ranks; "
            f"start as many (--nproc-per-node {launch.procs_per_node}), or set launch.procs_per_node={world.local_size}"
        )
    if isinstance(parts, int) and parts < world.num_machines:
        found.append(
            f"partition.parts is {parts}, fewer than the {world.num_machines} machines of this job; "
            f"set partition.parts={world.num_machines} or more, or auto"
        )
    found += _backend_conflicts(experiment.sampling.backend)
    found += _precision_conflicts(experiment.train.precision, world.device)
    return found


def _precision_conflicts(precision: str, device: torch.device) -> list[str]:
    if device.type != "cuda":
        return []
    able = {
        "fp32": True,
        "fp16": torch.cuda.get_device_capability(device) >= (5, 3),
        "bf16": torch.cuda.is_bf16_supported(including_emulation=False),
    }
    if able[precision]:
        return []
    name = torch.cuda.get_device_name(device)
    others = " or ".join(f"train.precision={other}" for other, can in able.items() if can)
    return [f"train.precision is {precision}, which {name} cannot do; set {others}"]


def graph_conflicts(experiment: Experiment, edge_types: Iterable[EdgeType]) -> list[str]:
    """Relations that the experiment names and the graph does not have."""
    found, known = [], [edge_type_name(edge_type) for edge_type in edge_types]
    if isinstance(experiment.model, HeteroConvModel):
        found += _unknown_relations(("model", "relations"), experiment.model.relations, known)
    for key in ("fanout", "eval_fanout"):
        fanout = getattr(experiment.sampling, key)
        if isinstance(fanout, dict):
            found += _unknown_relations(("sampling", key), (name for name in fanout if name != "default"), known)
    return found


def _missing_attributes(experiment: Experiment, graph: HeteroData) -> list[str]:
    return missing_attributes(
        experiment.sampling,
        {node_type: set(graph[node_type].keys()) for node_type in graph.node_types},
        {edge_type: set(graph[edge_type].keys()) for edge_type in graph.edge_types},
        experiment.task.node_type,
    )


def _backend_conflicts(backend: str) -> list[str]:
    if backend != "pyg-lib" or find_spec("pyg_lib") is not None:
        return []
    return ["sampling.backend is pyg-lib, which is not installed; install it for this version of torch, or set auto"]


def _unknown_relations(where: tuple[str, ...], named: Iterable[str], known: list[str]) -> list[str]:
    found = []
    for name in named:
        if name not in known:
            close = nearest(name, known)
            hint = f"did you mean `{close}`?" if close else f"it has {'; '.join(known)}"
            found.append(f"{path_text((*where, name))}: the graph has no such relation; {hint}")
    return found


def _parts(experiment: Experiment, num_machines: int) -> int:
    return num_machines if experiment.partition.parts == "auto" else experiment.partition.parts


def _ensure_partitions(experiment: Experiment, num_machines: int) -> tuple[str, str]:
    """Partition where that has not been done; returns the directory and the fingerprint of the data."""
    source = data.Source(experiment.data, experiment.task)
    data_fingerprint = source.fingerprint
    directory = partition_directory(experiment, data_fingerprint, num_machines)
    if (directory / MANIFEST).exists():
        _checked_manifest(experiment, directory, data_fingerprint)
        return str(directory), data_fingerprint
    _say(f"loading the data (source: {experiment.data.source})")
    source.scratch = directory.parent  # where there is room for the graph
    loaded = source.load()
    for line in data.left_out_lines(loaded.info):
        _say(line)
    # Before the work rather than after it.
    _refuse([*graph_conflicts(experiment, loaded.data.edge_types), *_missing_attributes(experiment, loaded.data)])
    partition(
        loaded.data,
        loaded.keys,
        {**loaded.info, "made_from": _made_from(experiment)},
        experiment.partition,
        _parts(experiment, num_machines),
        directory,
        data_fingerprint,
        _say,
    )
    return str(directory), data_fingerprint


def _say(text: str) -> None:
    print(f"[partition] {text}", flush=True)


def _made_from(experiment: Experiment) -> dict[str, Any]:
    """The settings that decide the graph; where its files lie does not."""
    settings = plain(experiment.data)
    return {
        "data": {key: value for key, value in settings.items() if key not in NOT_DECIDING},
        "task": {key: getattr(experiment.task, key) for key in ("kind", "node_type", "label")},
    }


def _checked_manifest(experiment: Experiment, directory: Path, data_fingerprint: str) -> dict[str, Any]:
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
        raise ExperimentError("\n  ".join([str(error), *changed])) from None
    return manifest
