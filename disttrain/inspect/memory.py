"""What a run of the experiment needs on each of N machines, part by part."""

from __future__ import annotations

from typing import Any

from torch import nn

from ..config import Experiment, Sampling
from ..graph.graph import Graph
from ..models.blocks import needed_types
from ..sampling.subgraph import DENSE_LIMIT

_STATES = {"adamw": 2, "adam": 2, "sgd": 1}


def memory_facts(
    experiment: Experiment, graph: Graph, target: str, model: nn.Module, batches: dict[str, Any], num_machines: int
) -> dict[str, Any]:
    """Bytes. `mapped` is per machine, shared by its ranks, and can be given back by the system; `rank` is per rank;
    `cache`, of remote rows, is per machine.

    The partition that is largest decides on its machine; where there are no partitions yet, parts are taken as even.
    """
    files, manifest = graph.manifest["files"], graph.manifest
    topology = sum(entry["bytes"] for name, entry in files.items() if name.startswith("edges/") and _is_topology(name))
    wants = model.wants
    features = 0
    for node_type, nodes in graph.schema.nodes.items():
        for name in wants.nodes.get(node_type, ()):  # pyright: ignore
            features += graph.node_attribute(node_type, name)[:1].nbytes * nodes.count
    for edge_type, names in wants.edges.items():  # pyright: ignore
        for name in names:
            array = graph.edge_attribute(edge_type, name)
            features += array[:1].nbytes * graph.schema.edges[edge_type].count
    ids = 8 * sum(nodes.count for nodes in graph.schema.nodes.values())
    uneven = max([1.0, *manifest.get("balance", {}).get("per_type", {}).values()]) if num_machines > 1 else 1.0
    replicated = experiment.partition.topology == "replicated"
    own = uneven / num_machines
    workers = max(1, experiment.sampling.workers)
    parameters = sum(p.numel() for p in model.parameters())
    kept = experiment.sampling.prefetch * workers + 2 if experiment.sampling.workers else 2
    sampling = experiment.sampling
    trees = sampling.disjoint or sampling.temporal
    tables = 0 if trees else 4 * sum(n.count for n in graph.schema.nodes.values() if n.count <= DENSE_LIMIT)
    rank = {
        "model": 4 * parameters * (2 + _STATES[experiment.train.optimizer]),
        "batches": kept * max(batch["bytes"] for batch in batches.values()),
        "sampler": tables * (workers + (1 if batches["evaluate"]["steps"] else 0) * 2 * workers),
        "layout": int(_layout(sampling, graph) * (1.0 if replicated else own)),
        "computation": _computation(experiment, batches["train"]),
    }
    mapped = {
        "topology": int(topology * (1.0 if replicated else own)),
        "features": int(features * own),
        "ids": int(ids * (1.0 if replicated else own)),
    }
    return {
        "machines": num_machines,
        "parameters": parameters,
        "mapped": {**mapped, "total": sum(mapped.values())},
        "rank": {**rank, "total": sum(rank.values())},
        "cache": sampling.cache_bytes if num_machines > 1 else 0,
        "layerwise_scratch": int(_scratch(experiment, graph, target) * own),
    }


def _layout(sampling: Sampling, graph: Graph) -> int:
    """Of all edges that are drawn by weight or time, see `sampling.drawable`."""
    size = 0
    for (src, _, dst), edges in graph.schema.edges.items():
        weighted = sampling.weight_attr in edges.attributes
        timed = sampling.time_attr in edges.attributes or sampling.time_attr in graph.schema.nodes[src].attributes
        if weighted or timed:
            place = 4 if edges.count < 2**31 else 8
            size += edges.count * (place + 8 * timed + 16 * weighted) + 8 * graph.num_nodes(dst)
    return size


def _is_topology(name: str) -> bool:
    return name.rsplit("/", 1)[-1] in ("colptr.npy", "row.npy", "edge_id.npy", "src_degree.npy")


def _width(experiment: Experiment) -> int:
    return getattr(experiment.model, "hidden", 64)


def _computation(experiment: Experiment, batch: dict[str, Any]) -> int:
    """Vectors of a step, forward and backward: of each node of a batch before and after each layer, roughly."""
    size = 4 if experiment.train.precision == "fp32" else 2
    return int(3 * size * _width(experiment) * sum(batch["nodes"].values()) * experiment.model.layers)


def _scratch(experiment: Experiment, graph: Graph, target: str) -> int:
    """The most that layer-wise evaluation has on the disk at once: two layers of all nodes that take part."""
    layers = experiment.model.layers
    needed = needed_types(graph.schema.edges, target, layers)
    rows = [sum(graph.num_nodes(t) for t in types) for types in needed[:-1]]
    size = 4 if experiment.train.precision == "fp32" else 2
    return size * _width(experiment) * max((a + b for a, b in zip(rows, [*rows[1:], 0])), default=0)
