"""Some batches of an epoch, drawn for real: how large they are, and how much of the graph each touches."""

from __future__ import annotations

import itertools
from contextlib import closing
from typing import Any

from torch import Tensor, nn

from ..collection.graphs import Graphs
from ..collection.loader import GraphLoader
from ..config import Experiment, edge_type_name
from ..graph.graph import Graph
from ..graph.schema import GRAPH, Schema, Wants
from ..models.blocks import needed_types
from ..sampling import NodeLoader, split_seeds
from ..sampling.kind import seed_time_attribute
from ..world import World

_DRAWN = 4


def drawn_batches(
    experiment: Experiment, world: World, graph: Graph, task: Any, model: nn.Module
) -> dict[str, dict[str, Any]]:
    """`train` and `evaluate` -> the mean batch of the first few: seeds, nodes, edges, bytes, and steps an epoch.

    Evaluation's are of the validation split, or of the test split where that is empty.
    """
    splits = {"train": "train", "evaluate": "val"}
    found = {}
    for name, split in splits.items():
        for other in (split, "test"):
            seeds = split_seeds(
                world, graph, task.node_type, task.splits[other], seed_time_attribute(experiment.sampling)
            )
            if len(seeds) or name == "train":
                break
        loader = NodeLoader(
            world,
            graph,
            task.node_type,
            seeds,
            sampling=experiment.sampling.model_copy(update={"workers": 0}),
            run_seed=experiment.seed,
            wants=model.wants | task.wants,  # pyright: ignore
            training=name == "train",
        )
        found[name] = _mean_batch(loader, graph.schema, len(seeds), task.node_type)
    return found


def graph_batches(
    experiment: Experiment, world: World, graphs: Graphs, task: Any, wants: Wants
) -> dict[str, dict[str, Any]]:
    """The same of a collection of graphs."""
    found = {}
    for name, split in (("train", "train"), ("evaluate", "val")):
        for other in (split, "test"):
            loader = GraphLoader(
                world,
                graphs,
                task.splits[other],
                sampling=experiment.sampling.model_copy(update={"workers": 0}),
                run_seed=experiment.seed,
                wants=wants,
                training=name == "train",
            )
            if len(loader.seeds) or name == "train":
                break
        found[name] = _mean_batch(loader, graphs.schema, len(loader.seeds), task.node_type)
        del found[name]["nodes"][GRAPH]
    return found


def evaluation_cost(experiment: Experiment, graph: Graph, target: str, batch: dict[str, Any]) -> dict[str, int]:
    """Edges that one evaluation of the validation split computes, sampled (estimated) and layer-wise (counted)."""
    needed = needed_types(graph.schema.edges, target, experiment.model.layers)
    layerwise = sum(edges.count for types in needed[1:] for e, edges in graph.schema.edges.items() if e[2] in types)
    return {"sampled_edges": int(batch["steps"] * sum(batch["edges"].values())), "layerwise_edges": layerwise}


def _mean_batch(loader: NodeLoader | GraphLoader, schema: Schema, num_seeds: int, node_type: str) -> dict[str, Any]:
    nodes: dict[str, float] = dict.fromkeys(schema.nodes, 0.0)
    edges: dict[str, float] = {edge_type_name(e): 0.0 for e in schema.edges}
    num_bytes = drawn = seeds = 0
    with closing(loader.batches(0)) as batches:
        for batch in itertools.islice(batches, _DRAWN):
            drawn += 1
            seeds += batch[node_type].batch_size
            for name in batch.node_types:
                nodes[name] += batch[name].num_nodes
            for edge_type in batch.edge_types:
                edges[edge_type_name(edge_type)] += batch[edge_type].edge_index.size(1)
            num_bytes += sum(
                value.nbytes for store in batch.stores for value in store.values() if isinstance(value, Tensor)
            )
    drawn = max(drawn, 1)
    return {
        "split_seeds": num_seeds,
        "steps": loader.num_steps,
        "seeds": seeds / drawn,
        "nodes": {name: count / drawn for name, count in nodes.items()},
        "edges": {name: count / drawn for name, count in edges.items()},
        "bytes": num_bytes // drawn,
    }
