"""From an experiment to a trained model: data -> partitions -> graph -> task -> model -> trainer."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from .. import data
from ..config import EdgeType, Experiment, ExperimentError, GraphTask, OfGraphs, OgbData, PygData, edge_type_name
from ..config.counted import counted
from ..environment import may_restart
from ..graph.files import MANIFEST
from ..graph.graph import Graph
from ..models import build_model
from ..models.templates import own_templates
from ..sampling.columns import taken_names
from ..sampling.kind import kind_conflicts
from ..tasks import Task, build_task
from ..world import World
from .batch_norms import share_batch_norms
from .collections import collection_plan, prepare_collection
from .conflicts import graph_conflicts, refuse, world_conflicts
from .halves import halves_conflicts
from .idle_types import tell_idle
from .label_counts import tell_labels
from .missing_values import tell_missing
from .partitions import checked_manifest, num_parts, partition_directory, prepare_graph
from .trainer import Trainer

logger = logging.getLogger(__name__)

__all__ = ["build", "describe_partition", "plan", "prepare_graph", "run"]


def run(experiment: Experiment, world: World, fresh: bool = False) -> dict[str, Any]:
    """Train and evaluate; every rank calls it. Partitions the graph first, or makes the collection of graphs, where
    that has not been done.

    Args:
        fresh: begin anew in a run directory that an earlier run has used, instead of going on from its checkpoints.

    Returns:
        What `summary.json` holds.

    Raises:
        ExperimentError: on every rank, before anything is trained: the experiment does not fit the world or the graph.
    """
    if world.is_lead and experiment.launch.min_nodes is not None and world.num_machines > 1 and not may_restart():
        logger.warning("launch.min_nodes: a machine that is lost ends the job, since torchrun has no --max-restarts")
    started = time.perf_counter()
    about_graphs = isinstance(experiment.task, GraphTask)
    graph: Any = (prepare_collection if about_graphs else prepare_graph)(experiment, world)
    partitioned = time.perf_counter()
    task, model = build(experiment, graph, world)
    tell_labels(experiment, world, graph, task)
    if world.is_lead:
        tell_missing(experiment, graph.schema, model)
        if not about_graphs:
            tell_idle(experiment, graph.schema, task.node_type)
    seconds = {"partition": partitioned - started, "load": time.perf_counter() - partitioned}
    return Trainer(experiment, world, graph, task, model, fresh=fresh, seconds=seconds).train()


def build(experiment: Experiment, graph: Graph, world: World) -> tuple[Task, nn.Module]:
    """Task and model for this graph, with the same first weights on every rank; every rank calls it.

    Raises:
        ExperimentError: one message with everything in which the experiment does not fit the graph.
    """
    task = world.together(lambda: _build_task(experiment, graph), "building the task").settled(world, graph)
    degrees = _degrees(experiment, graph, world) if isinstance(experiment.task, GraphTask) else None

    def made() -> nn.Module:
        torch.manual_seed(experiment.seed)
        model = build_model(
            experiment.model, graph.schema, task.node_type, task.out_channels, graph.statistics, degrees
        )
        own_templates()
        wants = model.wants | task.wants  # pyright: ignore[reportOperatorIssue]
        if isinstance(experiment.task, GraphTask):
            share_batch_norms(model, world)
            return model
        refuse([*taken_names(wants), *halves_conflicts(experiment, graph.schema, task, model)])
        return model

    return task, world.together(made, "building the model")


def _degrees(experiment: Experiment, graph: Any, world: World) -> Callable[[EdgeType], np.ndarray]:
    """What a model of a collection may ask of the degrees in the training graphs: counted once, by one rank for all."""
    model = experiment.model
    counted: dict[EdgeType, np.ndarray] = {}
    if isinstance(model, OfGraphs) and model.convolution.conv == "pna":
        edge_types = list(graph.schema.edges)
        counted = world.lead(lambda: {e: graph.training_degrees(e) for e in edge_types}, "counting degrees")
    return counted.__getitem__


def _build_task(experiment: Experiment, graph: Graph) -> Task:
    if isinstance(experiment.task, GraphTask):
        return build_task(experiment.task, graph.schema)
    refusals, task = graph_conflicts(experiment, graph.schema.edges), None
    try:
        task = build_task(experiment.task, graph.schema)
    except ExperimentError as error:
        refusals.append(str(error))
    if task is not None:
        refusals += kind_conflicts(experiment.sampling, graph.schema, task.node_type)
    refuse(refusals)
    assert task is not None
    return task


def describe_partition(graph: Graph) -> list[str]:
    """What `disttrain partition` prints: sizes, edge cut and balance."""
    manifest = graph.manifest
    size = sum(entry["bytes"] for entry in manifest["files"].values())
    cut, balance = manifest["edge_cut"], manifest["balance"]
    lines = [
        f"{graph.directory}: {counted(graph.parts, 'partition')} by {manifest['method']}, {size / 2**20:,.1f} MiB",
        f"edges between partitions: {cut['total']:.1%}",
    ]
    lines += [
        f"  {edge_type_name(edge_type)}: {counted(edges.count, 'edge')}, "
        f"{cut['per_relation'].get(edge_type_name(edge_type), 0.0):.1%} between partitions"
        for edge_type, edges in graph.schema.edges.items()
    ]
    lines.append("largest share of a partition, 1 is perfect balance:")
    lines += [
        f"  {node_type}: {counted(nodes.count, 'node')}, {_balance(balance['per_type'].get(node_type))}"
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
    refusals = world_conflicts(experiment, world)
    lines = [
        f"ranks: {world.size}, machines: {world.num_machines}, device: {world.device.type}",
        f"run directory: {experiment.directory}" + (" (used before)" if Path(experiment.directory).exists() else ""),
    ]
    if isinstance(experiment.task, GraphTask):
        refuse(refusals)
        return [*lines, *collection_plan(experiment)]
    if isinstance(experiment.data, (PygData, OgbData)) and not data.is_there(experiment.data):
        lines.append(f"data: {experiment.data.dataset} will be downloaded or made, in {experiment.data.root}")
        refuse(refusals)
        return lines
    data_fingerprint = data.fingerprint(experiment.data, experiment.task)
    directory = partition_directory(experiment, data_fingerprint, world.num_machines)
    if (directory / MANIFEST).exists():
        manifest = checked_manifest(experiment, directory, data_fingerprint)
        lines.append(f"partitions: {manifest['parts']} by {manifest['method']}, in {directory}")
        refusals += graph_conflicts(experiment, Graph.open(directory, part=True).schema.edges)
    else:
        parts = num_parts(experiment, world.num_machines)
        lines.append(f"partitions: {parts} by {experiment.partition.method} will be made in {directory}")
    refuse(refusals)
    return lines
