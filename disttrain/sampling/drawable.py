"""The edges of a relation that may be drawn, laid out for drawing: without those of weight 0, in the order of time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..config import EdgeType
from ..graph.graph import Graph
from ..machine_code import compiled
from .kind import Kind
from .route import Route
from .temporal import edge_times, sort_by_time
from .weighted import running_sums, scale_weights


@dataclass(frozen=True)
class Drawable:
    """Of the destinations that one machine draws for: the edges of destination v are at places colptr[v] to
    colptr[v + 1] - 1 of all arrays."""

    colptr: np.ndarray
    """int64 [destinations + 1], from 0 on."""
    order: np.ndarray | None
    """int32 or int64 [places]: where in the CSC each is; None: at its own place."""
    times: np.ndarray | None = None
    """int64 keys, ascending for each destination; None: no edge has a time."""
    weights: np.ndarray | None = None
    """float64 above 0, scaled for each destination; None: all alike."""
    sums: np.ndarray | None = None
    """float64, running sums of the weights of each destination."""


def lay_out(graph: Graph, route: Route, kind: Kind) -> None:
    """Make the layouts of all relations; a collective, see `drawable_edges`."""
    if kind.weight_attr is not None or kind.time_attr is not None:
        for edge_type in graph.schema.edges:
            drawable_edges(graph, route, edge_type, kind)


def drawable_edges(graph: Graph, route: Route, edge_type: EdgeType, kind: Kind) -> Drawable | None:
    """The layout of one relation, made once a process; None where neither weights nor times are known of it.

    A collective where the source nodes have times: all machines call it for the same relations in the same order.

    Cost: a sort of the edges of each destination; memory per edge that this machine draws from: 4 bytes (8 if there are
    2**31 edges), 8 for times, 16 for weights.
    """
    return graph.derived(("drawable", edge_type, kind), lambda: _make(graph, route, edge_type, kind))


def _make(graph: Graph, route: Route, edge_type: EdgeType, kind: Kind) -> Drawable | None:
    low, high = graph.topology_books[edge_type[2]].range_of(graph.machine)
    colptr = np.asarray(graph.csc(edge_type).colptr[low : high + 1])
    first, last = int(colptr[0]), int(colptr[-1])
    colptr = colptr - first
    weights, times = None, None
    if kind.weight_attr in graph.schema.edges[edge_type].attributes:
        assert kind.weight_attr is not None
        weights = graph.edge_attribute(edge_type, kind.weight_attr)[first:last].reshape(-1).astype(np.float64)
    if kind.time_attr is not None:
        times = edge_times(graph, route, edge_type, kind.time_attr, kind.floating)
    if weights is None and times is None:
        return None
    order = np.arange(last - first)
    if weights is not None and (weights == 0).any():
        colptr, order = _without_zeros(colptr, weights)
        weights = weights[order]
        times = None if times is None else times[order]
    if times is not None:
        by_time = sort_by_time(colptr, times)
        order, times = order[by_time], times[by_time]
        weights = None if weights is None else weights[by_time]
    if weights is not None:
        scale_weights(colptr, weights)
    num_edges = graph.schema.edges[edge_type].count
    return Drawable(
        colptr=colptr,
        order=(order + first).astype(np.int32 if num_edges < 2**31 else np.int64),
        times=times,
        weights=weights,
        sums=None if weights is None else running_sums(colptr, weights),
    )


@compiled
def _without_zeros(colptr, weights):
    kept = np.zeros(len(colptr), np.int64)
    order = np.empty(len(weights), np.int64)
    n = 0
    for v in range(len(colptr) - 1):
        for p in range(colptr[v], colptr[v + 1]):
            if weights[p] != 0.0:
                order[n] = p
                n += 1
        kept[v + 1] = n
    return kept, order[:n].copy()
