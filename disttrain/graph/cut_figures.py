"""How good a cut is: edges between parts, and the balance of node types and training seeds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..config import EdgeType, edge_type_name
from .arrays import GraphArrays
from .blocks import id_blocks
from .order import count_keys


def edge_cut(graph: GraphArrays, part_of: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Shares of the edges whose ends lie in different parts."""
    return shares(
        {
            edge_type: (
                sum(
                    int(np.count_nonzero(part_of[edge_type[0]][src] != part_of[edge_type[2]][dst]))
                    for src, dst in zip(id_blocks(edges.src), id_blocks(edges.dst))
                ),
                edges.count,
            )
            for edge_type, edges in graph.edges.items()
        }
    )


def shares(crossing: Mapping[EdgeType, tuple[int, int]]) -> dict[str, Any]:
    """From the edges between parts, and all edges, of each relation."""
    total = sum(count for _, count in crossing.values())
    return {
        "total": sum(crosses for crosses, _ in crossing.values()) / max(total, 1),
        "per_relation": {
            edge_type_name(edge_type): crosses / max(count, 1) for edge_type, (crosses, count) in crossing.items()
        },
    }


def balance(graph: GraphArrays, part_of: Mapping[str, np.ndarray], parts: int) -> dict[str, Any]:
    """The largest part of each type over its fair share (1 is perfect), and how many training seeds each part has."""
    seeds = np.zeros(parts, dtype=np.int64)
    largest = {}
    for node_type, nodes in graph.nodes.items():
        part = part_of[node_type]
        largest[node_type] = largest_share(count_keys(part, parts))
        seeds += count_keys(part[nodes.is_train_seed], parts)
    return {"per_type": largest, "train_seeds": seeds.tolist()}


def largest_share(counts: np.ndarray) -> float:
    """The largest of some counts over their mean."""
    return float(counts.max() * len(counts) / max(counts.sum(), 1))
