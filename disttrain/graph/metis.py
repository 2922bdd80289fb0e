"""METIS on a heterogeneous graph: one weighted graph over all node types, several balance constraints at once.

METIS is the multilevel recursive bisection of Karypis and Kumar ("Multilevel algorithms for multi-constraint graph
partitioning", 1998), in the library that the `pymetis` wheels carry. Its C function is called directly, as pymetis's
Python function has one constraint only and holds the GIL until it is done, which would stop the heartbeats by which
other ranks know that the partitioning is alive.
"""

from __future__ import annotations

import ctypes
import signal
from collections import Counter
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import pymetis

from .. import guard
from ..config import EdgeType, ExperimentError
from ..config.counted import counted
from ..machine_code import compiled
from ..memory import available_memory
from ..stop import StopRequest
from .arrays import GraphArrays
from .random_cut import random_parts

_EDGE_WEIGHT_SCALE = 4
_MAX_EDGE_WEIGHT = 64
_MAX_TYPE_CONSTRAINTS = 6
_MIN_PER_PART = 20
"""A constraint over fewer nodes per part could not be met within METIS's one per cent, and would spoil the cut."""
_NUM_OPTIONS = 40
_OK, _ERROR = 1, -4
_REASONS = {
    -2: "refused its input",
    -3: "ran out of memory",
    _ERROR: "failed, or was ended by SIGTERM, which it catches",
}


def metis_parts(graph: GraphArrays, parts: int, seed: int) -> dict[str, np.ndarray]:
    """The part of each node, int32 [N] per type, with few edges between parts.

    Balanced are the nodes of each type (types beyond the six largest, and small ones, together) and the training
    seeds. An edge of a rare relation weighs more than one of a frequent relation, by the square root of the ratio,
    so that rare ones are not cut for free. Multi-edges and reverse relations add up; self loops do not count.
    A graph without edges, or too small for METIS, is cut at random.

    Raises:
        ExperimentError: METIS is not reachable, needs more memory than there is (said before it begins), or failed.

    The same on machines of one C library (METIS draws by its `rand`).

    Cost on 3M different edges: 1.5 s for 2 parts, 3.5 s for 8; memory see `memory_estimate`.
    """
    if parts == 1:
        return {node_type: np.zeros(nodes.count, dtype=np.int32) for node_type, nodes in graph.nodes.items()}
    needed, available = memory_estimate(graph), available_memory()
    if needed > available:
        raise ExperimentError(
            f"partition.method: METIS needs about {needed / 1e9:,.1f} GB of memory for this graph of "
            f"{counted(graph.num_nodes, 'node')} and {counted(graph.num_edges, 'edge')}, {available / 1e9:,.1f} GB "
            "are available; use partition.method=ldg (or fennel), which need memory for the nodes only"
        )
    starts, neighbours, weights = adjacency(graph)
    if graph.num_nodes < 4 * parts or len(neighbours) == 0:
        return random_parts(graph, parts, seed)
    part = _metis(starts, neighbours, weights, vertex_weights(graph, parts), parts, seed)
    ends = np.cumsum([nodes.count for nodes in graph.nodes.values()])
    return dict(zip(graph.nodes, np.split(part.astype(np.int32), ends[:-1])))


def memory_estimate(graph: GraphArrays) -> int:
    """Bytes that METIS and its input take, as measured on 1 to 10 million different edges.

    A relation whose edges are as many as those of a relation back is taken for its reverse, which adds nothing to the
    graph but the memory to see that.
    """
    relations = Counter((src, dst, edges.count) for (src, _, dst), edges in graph.edges.items())
    repeated = sum(
        count * (number // 2 if src == dst else min(number, relations[dst, src, count]))
        for (src, dst, count), number in relations.items()
        if src <= dst
    )
    return 250 * (graph.num_edges - repeated) + 16 * repeated + 100 * graph.num_nodes


def relation_weights(graph: GraphArrays) -> dict[EdgeType, int]:
    """What one edge of each relation weighs: 4 in the most frequent relation, up to 64 in rare ones."""
    most = max((edges.count for edges in graph.edges.values()), default=0)
    return {
        edge_type: min(round(_EDGE_WEIGHT_SCALE * (most / max(edges.count, 1)) ** 0.5), _MAX_EDGE_WEIGHT)
        for edge_type, edges in graph.edges.items()
    }


def vertex_weights(graph: GraphArrays, parts: int) -> np.ndarray:
    """int64 [num_nodes of all types, constraints]: each column is to be balanced over the parts."""
    counts = {node_type: nodes.count for node_type, nodes in graph.nodes.items()}
    largest = sorted(counts, key=lambda node_type: -counts[node_type])[:_MAX_TYPE_CONSTRAINTS]
    alone = [node_type for node_type in largest if counts[node_type] >= _MIN_PER_PART * parts]
    groups = [[node_type] for node_type in alone]
    together = [node_type for node_type in counts if node_type not in alone]
    if groups and sum(counts[node_type] for node_type in together) < _MIN_PER_PART * parts:
        # Too few even together: they go with the smallest type that has a constraint.
        groups[-1] += together
    else:
        groups.append(together)
    columns = [
        np.concatenate([np.full(count, node_type in group) for node_type, count in counts.items()]) for group in groups
    ]
    seeds = np.concatenate([nodes.is_train_seed for nodes in graph.nodes.values()])
    if np.count_nonzero(seeds) >= _MIN_PER_PART * parts:
        columns.append(seeds)
    return np.stack(columns, axis=1).astype(np.int64)


@compiled
def _count_ends(src: np.ndarray, dst: np.ndarray, src_offset: int, dst_offset: int, starts: np.ndarray) -> None:
    for edge in range(len(src)):
        u, v = src[edge] + src_offset, dst[edge] + dst_offset
        if u != v:
            starts[u + 1] += 1
            starts[v + 1] += 1


@compiled
def _place_ends(
    src: np.ndarray,
    dst: np.ndarray,
    src_offset: int,
    dst_offset: int,
    weight: int,
    next_place: np.ndarray,
    neighbours: np.ndarray,
    weights: np.ndarray,
) -> None:
    for edge in range(len(src)):
        u, v = src[edge] + src_offset, dst[edge] + dst_offset
        if u != v:
            neighbours[next_place[u]] = v
            weights[next_place[u]] = weight
            next_place[u] += 1
            neighbours[next_place[v]] = u
            weights[next_place[v]] = weight
            next_place[v] += 1


@compiled
def _merge_parallel(starts: np.ndarray, neighbours: np.ndarray, weights: np.ndarray) -> int:
    """Add up the weights of edges to the same neighbour, in place; returns how many entries are left."""
    num_vertices = len(starts) - 1
    place_of = np.full(num_vertices, -1, dtype=np.int64)
    end, begin = 0, starts[0]
    for vertex in range(num_vertices):
        first = end
        for entry in range(begin, starts[vertex + 1]):
            neighbour = neighbours[entry]
            if place_of[neighbour] >= first:
                weights[place_of[neighbour]] += weights[entry]
            else:
                place_of[neighbour] = end
                neighbours[end] = neighbour
                weights[end] = weights[entry]
                end += 1
        begin = starts[vertex + 1]
        starts[vertex + 1] = end
    return end


def adjacency(graph: GraphArrays) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The undirected weighted graph over all types, as METIS wants it.

    Returns:
        `starts` int64 [N + 1], `neighbours` and `weights` [sum of degrees]: vertex v has the neighbours
        `neighbours[starts[v]:starts[v + 1]]`, each once. Vertices are numbered through the types.
    """
    offsets, num_vertices = {}, 0
    for node_type, nodes in graph.nodes.items():
        offsets[node_type] = num_vertices
        num_vertices += nodes.count
    relations = [
        (np.ascontiguousarray(edges.src), np.ascontiguousarray(edges.dst), offsets[edge_type[0]], offsets[edge_type[2]])
        for edge_type, edges in graph.edges.items()
    ]
    starts = np.zeros(num_vertices + 1, dtype=np.int64)
    for relation in relations:
        _count_ends(*relation, starts)
    np.cumsum(starts, out=starts)
    neighbours = np.empty(starts[-1], dtype=np.int32 if num_vertices < 2**31 else np.int64)
    weights = np.empty(starts[-1], dtype=np.int32)
    next_place = starts[:-1].copy()
    for relation, weight in zip(relations, relation_weights(graph).values()):
        _place_ends(*relation, weight, next_place, neighbours, weights)
    end = _merge_parallel(starts, neighbours, weights)
    return starts, neighbours[:end], weights[:end]


@cache
def _library() -> Any:
    try:
        return ctypes.CDLL(import_module("pymetis._internal").__file__).METIS_PartGraphRecursive
    except (AttributeError, OSError) as error:
        raise ExperimentError(
            f"partition.method: metis is not reachable in this build of pymetis ({error}); install the wheel from PyPI "
            "(pip install pymetis), or use partition.method=ldg"
        ) from error


def _metis(
    starts: np.ndarray, neighbours: np.ndarray, weights: np.ndarray, balance: np.ndarray, parts: int, seed: int
) -> np.ndarray:
    index = pymetis.zero_copy_dtype()
    if index.itemsize == 4 and max(len(neighbours), int(weights.sum(dtype=np.int64))) >= 2**31:
        raise ExperimentError(
            f"partition.method: this build of METIS counts in 32 bits, the graph has {len(neighbours) // 2} different "
            "edges; install the pymetis wheel from PyPI (64 bits), or use partition.method=ldg"
        )
    c_index = ctypes.c_int64 if index.itemsize == 8 else ctypes.c_int32
    # srand(0) and srand(1) are the same; -1 would be METIS's own seed.
    options = pymetis.Options(seed=seed % (2**31 - 1) + 1, numbering=0)
    settings = np.array([options._get(place) for place in range(_NUM_OPTIONS)], dtype=index)
    arrays = [np.ascontiguousarray(array, dtype=index) for array in (starts, neighbours, balance, weights)]
    part = np.empty(len(starts) - 1, dtype=index)
    cut = c_index()

    def number(value: int) -> Any:
        return ctypes.byref(c_index(value))

    def pointer(array: np.ndarray) -> ctypes.c_void_p:
        return array.ctypes.data_as(ctypes.c_void_p)

    adj_starts, adjacent, vertex_weight, edge_weight = map(pointer, arrays)
    # ctypes lets go of the GIL for the call.
    code = _library()(
        number(len(part)), number(balance.shape[1]), adj_starts, adjacent, vertex_weight, None, edge_weight,
        number(parts), None, None, pointer(settings), ctypes.byref(cut), pointer(part),
    )  # fmt: skip
    if code == _OK:
        return part
    if code == _ERROR:
        # METIS jumps out of its handler of the signal, which so stays blocked.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        if guard.told_to_end() or StopRequest.asked():
            signal.raise_signal(signal.SIGTERM)  # which METIS has caught
    reason = _REASONS.get(code, f"failed with code {code}")
    raise ExperimentError(
        f"partition.method: METIS {reason}, on {len(part)} nodes and {len(neighbours) // 2} different edges, {parts} "
        "parts; start again, give it more memory, or use partition.method=ldg"
    )
