"""Relations: how many edges, how they are spread over both ends, and the odd ones among them."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..config import Experiment, edge_type_name
from ..graph.graph import Graph
from ..models.blocks import needed_types
from ..sampling.fanout import Rule, fanout_rules
from .spread import spread

_EDGES_AT_ONCE = 1 << 22


def relation_facts(graph: Graph, target: str, experiment: Experiment) -> dict[str, Any]:
    """Relation -> its facts. Cost: two passes over the edges, some megabytes at a time, and 8 bytes a node."""
    edge_types = list(graph.schema.edges)
    needed = needed_types(edge_types, target, experiment.model.layers)
    rules = fanout_rules(experiment.sampling.fanout, edge_types)
    found = {}
    for number, edge_type in enumerate(edge_types):
        in_degrees = np.diff(graph.csc(edge_type).colptr)
        degrees = spread(in_degrees)
        self_loops, repeated = _odd_edges(graph, edge_type)
        found[edge_type_name(edge_type)] = {
            "edges": graph.schema.edges[edge_type].count,
            "attributes": list(graph.schema.edges[edge_type].attributes),
            "takes_part": edge_type[2] in needed[1],
            "destination_degrees": degrees,
            "source_degrees": spread(np.asarray(graph.source_degrees(edge_type))),
            "self_loops": self_loops,
            "repeated_edges": repeated,
            "fanout": [hop[number].written() for hop in rules],
            "most_drawn": [int(hop[number].counts(np.array([degrees["max"]]))[0]) for hop in rules],
            "drawn_share": [_drawn_share(in_degrees, hop[number]) for hop in rules],
        }
    return found


def _drawn_share(degrees: np.ndarray, rule: Rule) -> float:
    """Of all edges, how many are drawn if every destination draws once."""
    total = int(degrees.sum())
    if total == 0:
        return 1.0
    return float(rule.counts(degrees).sum() / total)


def _odd_edges(graph: Graph, edge_type: tuple[str, str, str]) -> tuple[int, int]:
    """How many edges lead from a node to itself, and how many repeat another edge between the same two nodes."""
    colptr, row, _ = graph.csc(edge_type)
    num_src = max(1, graph.num_nodes(edge_type[0]))
    self_loops = repeated = first = 0
    num_dst = len(colptr) - 1
    while first < num_dst:
        last = int(np.searchsorted(colptr, colptr[first] + _EDGES_AT_ONCE, side="right")) - 1
        last = min(max(last, first + 1), num_dst)
        sources = np.asarray(row[colptr[first] : colptr[last]], dtype=np.int64)
        destinations = np.repeat(np.arange(last - first, dtype=np.int64), np.diff(colptr[first : last + 1]))
        if edge_type[0] == edge_type[2]:
            self_loops += int((sources == destinations + first).sum())
        pairs = np.sort(destinations * num_src + sources)
        repeated += int((pairs[1:] == pairs[:-1]).sum())
        first = last
    return self_loops, repeated
