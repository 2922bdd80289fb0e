"""Times: of edges, of the nodes they come from, and of seeds; and which edges are not later than a seed.

All times are turned into int64 keys that sort as they do, so that everything after that knows one kind. A time that is
missing (NaN, or the smallest int64, which pandas and NumPy write for NaT) becomes `NEVER`: later than every seed.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from ..config import EdgeType
from ..graph.graph import Graph
from ..machine_code import compiled
from .owners import numbers_of
from .route import Route

NEVER = np.iinfo(np.int64).max
NOT_A_TIME = np.iinfo(np.int64).min


def time_keys(times: np.ndarray) -> np.ndarray:
    """int64 [n] keys of whole or floating times [n] or [n, 1]: `a <= b` of times is `a <= b` of their keys.

    Whole numbers are their own keys, and floating ones those of their bits: the two do not compare, see `as_floating`.
    """
    times = np.asarray(times).reshape(-1)
    if times.dtype.kind != "f":
        keys = times.astype(np.int64)
        keys[keys == NOT_A_TIME] = NEVER
        return keys
    times = times.astype(np.float64) + 0.0  # which makes -0.0 a 0.0
    bits = times.view(np.int64)
    keys = np.where(bits >= 0, bits, ~(bits & NEVER))
    keys[np.isnan(times)] = NEVER
    return keys


def comparable(times: np.ndarray, floating: bool) -> np.ndarray:
    """The times as float64 where others that they are compared with are floating, and as int64 where those are whole
    (a whole time is not later than 2.5 if it is not later than 2)."""
    times = np.asarray(times).reshape(-1)
    if floating == (times.dtype.kind == "f"):
        return times
    if floating:
        return np.where(times == NOT_A_TIME, np.nan, times.astype(np.float64))
    whole = np.floor(times.astype(np.float64))
    beyond = np.where(whole > 0, NEVER - 1, NOT_A_TIME + 1)
    inside = np.abs(whole) < 2.0**63
    found = np.where(inside, np.where(inside, whole, 0.0).astype(np.int64), beyond)
    found[np.isnan(whole)] = NOT_A_TIME
    return found


def edge_times(graph: Graph, route: Route, edge_type: EdgeType, time_attr: str, floating: bool) -> np.ndarray | None:
    """int64 keys of all edges that this machine draws from, in the order of the CSC; None where nothing has a time.

    Of an edge with a time that comes from a node with a time, it is the later one. A collective: times of nodes that
    other machines own are asked for.

    Cost: a pass over the edges; 9 bytes a node of the source type meanwhile.
    """
    src, _, dst = edge_type
    low, high = graph.topology_books[dst].range_of(graph.machine)
    csc = graph.csc(edge_type)
    first, last = int(csc.colptr[low]), int(csc.colptr[high])
    keys = None
    if time_attr in graph.schema.edges[edge_type].attributes:
        keys = time_keys(comparable(graph.edge_attribute(edge_type, time_attr)[first:last], floating))
    if time_attr in graph.schema.nodes[src].attributes:
        rows = csc.row[first:last]
        needed = np.zeros(graph.num_nodes(src), np.bool_)
        needed[rows] = True
        ids = np.flatnonzero(needed)
        of_nodes = np.empty(len(needed), np.int64)
        of_nodes[ids] = node_times(graph, route, src, ids, time_attr, floating)
        keys = of_nodes[rows] if keys is None else np.maximum(keys, of_nodes[rows])
    return keys


def node_times(
    graph: Graph, route: Route, node_type: str, ids: np.ndarray, time_attr: str, floating: bool
) -> np.ndarray:
    """int64 keys of nodes, whoever owns them. A collective. Cost: a pass over all own ones."""
    own = own_times(graph, node_type, time_attr, floating)
    return numbers_of(ids, graph.node_books[node_type].bounds, own, route, f"fetching {time_attr} of {node_type}")


def own_times(graph: Graph, node_type: str, time_attr: str, floating: bool) -> np.ndarray:
    """int64 keys of this machine's own nodes."""
    low, high = graph.node_books[node_type].range_of(graph.machine)
    return time_keys(comparable(graph.node_attribute(node_type, time_attr)[low:high], floating))


@compiled
def sort_by_time(colptr, times):
    """int64 [num_edges]: places such that the edges of each destination follow one another in time, equal ones in the
    order they have. `colptr` begins at 0."""
    order = np.arange(len(times))
    for v in range(len(colptr) - 1):
        begin, end = colptr[v], colptr[v + 1]
        for p in range(begin + 1, end):
            if times[p] < times[p - 1]:
                order[begin:end] = begin + np.argsort(times[begin:end], kind="mergesort")
                break
    return order


@njit(inline="always")
def num_until(times, begin, degree, limit):
    """How many of the ascending times[begin : begin + degree] are not later than `limit`."""
    left, right = np.int64(0), degree
    while left < right:
        middle = (left + right) // 2
        if times[begin + middle] <= limit:
            left = middle + 1
        else:
            right = middle
    return left
