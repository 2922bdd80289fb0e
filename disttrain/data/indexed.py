"""PyG's sets of typed edges (`Entities`): labels and splits come by index, relations as a number per edge."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

_SPLITS = ("train", "val", "test")


def by_relation(graph: Any) -> Any:
    """A `Data` whose edges have an `edge_type` becomes a `HeteroData` with a relation `node,<number>,node` for each.

    Anything else comes back as it is. `edge_type` has to be whole numbers from 0 on, one per edge.
    """
    if not isinstance(graph, Data) or "edge_type" not in graph or "edge_index" not in graph:
        return graph
    kind = graph.edge_type
    whole = isinstance(kind, Tensor) and kind.dim() == 1 and not kind.is_floating_point() and kind.dtype != torch.bool
    if not whole or kind.numel() != graph.num_edges or (kind.numel() and int(kind.min()) < 0):
        return graph
    found = HeteroData()
    num_nodes, num_edges = graph.num_nodes, graph.num_edges
    found["node"].num_nodes = num_nodes
    of_edges = {}
    for name, value in graph.to_dict().items():
        if name in ("num_nodes", "edge_type"):
            continue
        if name == "edge_index" or (isinstance(value, Tensor) and graph.is_edge_attr(name)):
            of_edges[name] = value
        else:
            found["node"][name] = value
    order = torch.argsort(kind, stable=True)
    counts = torch.bincount(kind, minlength=1).tolist()
    assert sum(counts) == num_edges
    for number, places in enumerate(order.split(counts)):
        for name, value in of_edges.items():
            found["node", str(number), "node"][name] = value[..., places] if name == "edge_index" else value[places]
    return found


def with_labels(graph: Any) -> Any:
    """A `HeteroData` with `train_idx`, `train_y` and the like gets `y` and masks; anything else comes back as it is.

    Nodes without a label have -1 (NaN where labels are floating). What is there already is left.
    """
    if not isinstance(graph, HeteroData):
        return graph
    graph = copy.copy(graph)
    if len(graph.node_types) == 1:  # then what is said of the graph is said of its nodes
        alone = graph[graph.node_types[0]]
        for name in [f"{split}_{what}" for split in _SPLITS for what in ("idx", "y")]:
            if name in graph._global_store and name not in alone:
                alone[name] = graph._global_store[name]
                del graph._global_store[name]
    for node_type in graph.node_types:
        store = graph[node_type]
        pairs = {
            split: (store[f"{split}_idx"], store[f"{split}_y"])
            for split in _SPLITS
            if f"{split}_idx" in store and f"{split}_y" in store
        }
        if not pairs or "y" in store:
            continue
        first = next(iter(pairs.values()))[1]
        none = float("nan") if first.is_floating_point() else -1
        labels = torch.full((int(store.num_nodes or 0), *first.shape[1:]), none, dtype=first.dtype)
        for split, (index, values) in pairs.items():
            labels[index] = values
            del store[f"{split}_y"], store[f"{split}_idx"]
            mask = torch.zeros(len(labels), dtype=torch.bool)
            mask[index] = True
            if f"{split}_mask" not in store:
                store[f"{split}_mask"] = mask
        store.y = labels
    return graph
