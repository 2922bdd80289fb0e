"""Node types: how many nodes, which of them no edge reaches, and what their features are like."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..collection.graphs import Graphs
from ..graph.graph import Graph
from ..graph.schema import Attribute, Nodes
from ..models.blocks import needed_types

_TALL, _UNEVEN = 10.0, 100.0
"""Features are unscaled if a column's mean or deviation is beyond the one, or the deviations differ by the other."""


def node_facts(graph: Graph, target: str, layers: int) -> dict[str, Any]:
    """Node type -> its facts. Cost: a pass over the degrees; what is said of values the partitioner has found."""
    needed = needed_types(graph.schema.edges, target, layers)
    found = {}
    for node_type, nodes in graph.schema.nodes.items():
        reached = np.zeros(nodes.count, bool)
        for edge_type in graph.schema.edges:
            if edge_type[2] == node_type:
                reached |= np.diff(graph.csc(edge_type).colptr) > 0
        found[node_type] = {
            "nodes": nodes.count,
            "takes_part": node_type in needed[0],
            "without_neighbours": float(1 - reached.mean()) if nodes.count else 0.0,
            "attributes": described_attributes(nodes),
            "features": feature_facts(graph, node_type),
        }
    return found


def described_attributes(nodes: Nodes) -> dict[str, dict[str, Any]]:
    return {name: _attribute(attribute) for name, attribute in nodes.attributes.items()}


def _attribute(attribute: Attribute) -> dict[str, Any]:
    return {
        "dtype": attribute.dtype,
        "shape": list(attribute.shape),
        "low": attribute.low,
        "high": attribute.high,
        "missing": attribute.missing,
    }


def feature_facts(graph: Graph | Graphs, node_type: str) -> dict[str, Any] | None:
    """Of `x`, over its columns; None where there is none."""
    x = graph.schema.nodes[node_type].attributes.get("x")
    statistics = graph.statistics(node_type, "x") if x is not None else None
    if x is None or statistics is None or not graph.schema.nodes[node_type].count:
        return None
    mean, std = (np.asarray(values, dtype=np.float64).reshape(-1) for values in statistics)
    finite = np.isfinite(mean) & np.isfinite(std)
    varying = finite & (std > 0)
    scales = std[varying]
    largest = float(np.max(np.abs(mean[finite]), initial=0.0))
    uneven = bool(len(scales)) and scales.max() / scales.min() > _UNEVEN
    return {
        "columns": len(mean),
        "constant_columns": int((finite & (std == 0)).sum()),
        "not_finite_columns": int((~finite).sum()),
        "missing": x.missing,
        "largest_mean": largest,
        "smallest_std": float(scales.min()) if len(scales) else 0.0,
        "largest_std": float(scales.max()) if len(scales) else 0.0,
        "unscaled": bool(largest > _TALL or (len(scales) and scales.max() > _TALL) or uneven),
    }
