"""Where an experiment fits neither the ranks that were started nor the graph: a line for each."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec

import torch
from torch_geometric.data import HeteroData

from ..config import EdgeType, Experiment, ExperimentError, HeteroConvModel, Launch, edge_type_name
from ..config.check import nearest
from ..config.counted import counted
from ..config.yaml import path_text
from ..roster import laid_out_for
from ..sampling.kind import missing_attributes
from ..world import World


def refuse(refusals: list[str]) -> None:
    """Raises:
    ExperimentError: with all of them, if there are any.
    """
    if refusals:
        raise ExperimentError("\n".join(refusals))


def world_conflicts(experiment: Experiment, world: World) -> list[str]:
    """Where the experiment does not fit the ranks and devices that were started."""
    launch, parts = experiment.launch, experiment.partition.parts
    found = []
    laid_out = laid_out_for(experiment, world.num_machines)
    found += _number_of_machines(launch, world.num_machines)
    if launch.procs_per_node not in (None, world.local_size):
        found.append(
            f"launch.procs_per_node is {launch.procs_per_node}, but each machine runs "
            f"{counted(world.local_size, 'rank')}; start as many (--nproc-per-node {launch.procs_per_node}), or set "
            f"launch.procs_per_node={world.local_size}"
        )
    if isinstance(parts, int) and parts < laid_out:
        found.append(
            f"partition.parts is {parts}, fewer than the {counted(laid_out, 'machine')} of this job; "
            f"set partition.parts={laid_out} or more, or auto"
        )
    found += _backend_conflicts(experiment.sampling.backend)
    found += _precision_conflicts(experiment.train.precision, world.device)
    return found


def expected_world(launch: Launch) -> str:
    """What is to be started, as far as the experiment says so."""
    machines = [number for number in (launch.min_nodes, launch.nodes) if number is not None]
    found = [" to ".join([*map(str, machines[:-1]), counted(machines[-1], "machine")])] if machines else []
    if launch.procs_per_node is not None:
        found.append(f"{counted(launch.procs_per_node, 'rank')} {'on each' if machines else 'on each machine'}")
    return ", ".join(found)


def _number_of_machines(launch: Launch, started: int) -> list[str]:
    if launch.nodes in (None, started):
        return []
    if launch.min_nodes is None:
        fewer = ", or launch.min_nodes where some may be missing" if started < launch.nodes else ""
        return [
            f"launch.nodes is {launch.nodes}, but {_started(started)}; "
            f"start as many (--nnodes {launch.nodes}), or set launch.nodes={started}{fewer}"
        ]
    if launch.min_nodes <= started <= launch.nodes:
        return []
    return [
        f"launch.nodes is {launch.nodes} and launch.min_nodes {launch.min_nodes}, but {_started(started)}; start "
        f"torchrun with --nnodes {launch.min_nodes}:{launch.nodes}"
    ]


def _started(num_machines: int) -> str:
    return f"{counted(num_machines, 'machine')} {'was' if num_machines == 1 else 'were'} started"


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


def missing_in(graph: HeteroData, experiment: Experiment) -> list[str]:
    """Attributes that the experiment names and the graph does not have."""
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
