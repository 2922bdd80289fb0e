"""Cuts for graphs that METIS cannot hold: nodes are dealt to parts one after another, edges are read from the disk.

`ldg` is linear deterministic greedy (Stanton and Kliot, "Streaming graph partitioning for large distributed graphs",
KDD 2012): a node goes where most of its neighbours are, times the room that is left there. `fennel` (Tsourakakis and
others, "FENNEL: streaming graph partitioning for massive scale graphs", WSDM 2014) subtracts a cost that grows with the
part instead. Both are streamed several times over the same nodes, each time with the parts empty again and the
neighbours where they were last (Nishimura and Ugander, "Restreaming graph partitioning", KDD 2013), which is what makes
them good.

The stream begins with the nodes of most neighbours. Compared on mag-like and the HGB graphs with random order, the
user's order, and types in turns, it cuts least or nearly so, and needs the fewest passes. Nodes of the same degree keep
the user's order, which on rings and grids (whose ids lie near each other) cuts a tenth of what a random one does.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from ..config import Partition
from ..config.counted import counted
from ..machine_code import compiled
from .arrays import GraphArrays
from .blocks import id_blocks
from .external_order import ROWS_AT_ONCE, Column, ExternalOrder, bucket_bounds
from .metis import relation_weights
from .order import add_counts, group_by_key, starts_of

DISK_BYTES_PER_EDGE = 28
_SLACK = 0.02
"""By how much a part may exceed its share of a group: METIS's one per cent, of two bisections."""
_GAMMA = 1.5
"""FENNEL's exponent gamma, as in its paper: its powers are square roots."""
_FEW_MOVED = 0.001
"""The passes end when fewer nodes than this share changed their part."""
_EDGES_AT_ONCE = 1 << 24


class Stream(NamedTuple):
    """The undirected weighted graph, in the order of the stream. Vertices are numbered through the types."""

    vertex: np.ndarray
    """int32 or int64 [N]: who comes first, second, ..."""
    starts: np.ndarray
    """int64 [N + 1]: the neighbours of the i-th vertex are at `starts[i]` to `starts[i + 1] - 1`."""
    neighbour: np.ndarray
    """[2 E], vertices, memory-mapped where they are many; both ends of each edge, multi-edges and self loops too"""
    weight: np.ndarray
    """uint8 [2 E], that of the relation"""
    group: np.ndarray
    """int32 [N], by vertex, see `groups_of`"""


def streamed_parts(
    graph: GraphArrays,
    parts: int,
    seed: int,
    method: Literal["ldg", "fennel"] = "ldg",
    passes: int = Partition.model_fields["passes"].default,
    folder: Path | None = None,
    progress: Callable[[str], None] = lambda line: None,
    rows_at_once: int | None = None,
) -> dict[str, np.ndarray]:
    """The part of each node, int32 [N] per type, with few edges between parts.

    All relations count, by the weights that METIS gets. Balanced are the nodes of each type that are training seeds,
    and those that are not, each to two per cent (rounded up to a node).

    Args:
        passes: at most; they end earlier when hardly a node moves.
        folder: for the edges by node, while the method runs; by default a temporary one.
        rows_at_once: how many edges are sorted in memory, by default 4 million; changes nothing in the result.

    Cost: memory about 40 bytes a node and none per edge; disk 28 bytes an edge; 0.2 us an edge to sort them, and for
    each pass 15 ns an edge at each end.
    """
    counts = {node_type: nodes.count for node_type, nodes in graph.nodes.items()}
    if parts == 1 or not graph.num_nodes:
        return {node_type: np.zeros(count, dtype=np.int32) for node_type, count in counts.items()}
    with tempfile.TemporaryDirectory(prefix="stream-", dir=folder) as place, Columns() as columns:
        stream = _stream(graph, Path(place), columns, rows_at_once or ROWS_AT_ONCE, progress)
        part = _deal(graph, stream, parts, seed, method, passes, progress)
    ends = np.cumsum(list(counts.values()))
    return dict(zip(counts, np.split(part.astype(np.int32), ends[:-1])))


class Columns(list[Column]):
    """Columns that are closed together."""

    def __enter__(self) -> Columns:
        return self

    def __exit__(self, *failure: object) -> None:
        for column in self:
            column.close()


def groups_of(graph: GraphArrays) -> tuple[np.ndarray, np.ndarray]:
    """The nodes of a type that are training seeds are a group to be balanced, its other nodes are another one.

    So the types are balanced and the seeds are, and any part that has room in the group of a node may take it.

    Returns:
        int32 [N], by vertex, and the sizes of the groups, int64 [2 * types].
    """
    group = np.concatenate(
        [np.add(nodes.is_train_seed, 2 * number, dtype=np.int32) for number, nodes in enumerate(graph.nodes.values())]
    )
    return group, np.bincount(group, minlength=2 * len(graph.nodes))


def _stream(
    graph: GraphArrays,
    folder: Path,
    columns: Columns,
    rows_at_once: int,
    progress: Callable[[str], None],
) -> Stream:
    num_vertices = graph.num_nodes
    index = np.dtype(np.int32 if num_vertices < 2**31 else np.int64)
    degree = np.zeros(num_vertices, dtype=np.int64)
    for ends, _, _ in _entries(graph):
        add_counts(ends, degree)
    progress(f"sorting {counted(graph.num_edges, 'edge')} by node, on the disk")
    # Stable: nodes of the same degree keep the user's order, in which neighbours are often near each other.
    most = int(degree.max())
    vertex = group_by_key(most - degree, most + 1)[1].astype(index)
    starts = starts_of(degree[vertex])
    del degree
    position = np.empty(num_vertices, dtype=index)
    position[vertex] = np.arange(num_vertices, dtype=index)
    order = ExternalOrder(starts, (position[ends] for ends, _, _ in _entries(graph)), folder, rows_at_once)
    try:
        neighbour = _sorted(order, "neighbours", index, (others.astype(index) for _, others, _ in _entries(graph)))
        columns.append(neighbour)
        weights = (np.full(len(ends), weight, dtype=np.uint8) for ends, _, weight in _entries(graph))
        weight = _sorted(order, "weights", np.dtype(np.uint8), weights)
        columns.append(weight)
    finally:
        order.close()
    group, _ = groups_of(graph)
    return Stream(vertex, starts, neighbour.array, weight.array, group)


def _sorted(order: ExternalOrder, name: str, dtype: np.dtype, blocks: Iterator[np.ndarray]) -> Column:
    column = order.column(name, dtype)
    try:
        for block in order.apply(blocks, dtype):
            column.append(block)
    except BaseException:
        column.close()
        raise
    return column


def _entries(graph: GraphArrays) -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
    """Both ends of each edge, in blocks: vertices, the vertices at the other ends, the weight of the relation."""
    offset, num_vertices = {}, 0
    for node_type, nodes in graph.nodes.items():
        offset[node_type] = num_vertices
        num_vertices += nodes.count
    weights = relation_weights(graph)
    for edge_type, edges in graph.edges.items():
        for src, dst in zip(id_blocks(edges.src), id_blocks(edges.dst)):
            src, dst = src + offset[edge_type[0]], dst + offset[edge_type[2]]
            yield src, dst, weights[edge_type]
            yield dst, src, weights[edge_type]


def capacities(group_sizes: np.ndarray, parts: int) -> np.ndarray:
    """How many nodes of each group a part may take."""
    return np.ceil(group_sizes * ((1 + _SLACK) / parts)).astype(np.int64)


def _deal(
    graph: GraphArrays,
    stream: Stream,
    parts: int,
    seed: int,
    method: str,
    passes: int,
    progress: Callable[[str], None],
) -> np.ndarray:
    group_sizes = np.bincount(stream.group, minlength=2 * len(graph.nodes))
    capacity = capacities(group_sizes, parts)
    alpha = _fennel_alpha(graph, stream.group, group_sizes, parts) if method == "fennel" else np.zeros(0)
    part = np.full(len(stream.vertex), -1, dtype=np.int16 if parts < 2**15 else np.int32)
    # So that the foreign call ends now and then, and Ctrl-C is heard.
    chunks = bucket_bounds(stream.starts, _EDGES_AT_ONCE)
    for number in range(1, passes + 1):
        size = np.zeros((len(group_sizes), parts), dtype=np.int64)
        moved = 0
        for first, end in zip(chunks[:-1], chunks[1:]):
            moved += _place(*stream, first, end, capacity, alpha, seed % 2**31, size, part)
        if number > 1:
            progress(f"pass {number} of at most {passes}: {moved / len(part):.1%} of the nodes moved")
            if moved < _FEW_MOVED * len(part):
                break
    return part


def _fennel_alpha(graph: GraphArrays, group: np.ndarray, group_sizes: np.ndarray, parts: int) -> np.ndarray:
    """FENNEL's `m * k ** (gamma - 1) / n ** gamma`, where m is the weight of the edges (half of it at each end) and n
    the number of nodes, of each group."""
    weight = np.zeros(len(group_sizes))
    for ends, _, of_relation in _entries(graph):
        weight += np.bincount(group[ends], minlength=len(weight)) * (of_relation / 2)
    # By square roots, which unlike powers are the same to the last bit on every machine.
    return weight * np.sqrt(parts) / (np.maximum(group_sizes, 1) * np.sqrt(np.maximum(group_sizes, 1)))


@compiled
def _drawn(seed: int, vertex: int) -> np.uint64:
    """64 bits, by splitmix64 (Steele and others, "Fast splittable pseudorandom number generators", OOPSLA 2014)."""
    word = np.uint64(vertex) + np.uint64(seed) * np.uint64(0x9E3779B97F4A7C15)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


@compiled
def _place(
    vertex: np.ndarray,
    starts: np.ndarray,
    neighbour: np.ndarray,
    weight: np.ndarray,
    group: np.ndarray,
    first: int,
    end: int,
    capacity: np.ndarray,
    alpha: np.ndarray,
    seed: int,
    size: np.ndarray,
    part: np.ndarray,
) -> int:
    """Place the vertices at positions `first` to `end - 1`; returns how many changed their part.

    Args:
        alpha: of each group, for FENNEL; empty for LDG.
        size: [groups, parts], of what has been placed in this pass; counted up.
        part: of each vertex, -1 where it has none yet; changed.
    """
    parts = size.shape[1]
    score = np.zeros(parts, dtype=np.float64)
    moved = 0
    for position in range(first, end):
        v = vertex[position]
        mine = group[v]
        score[:] = 0.0
        for entry in range(starts[position], starts[position + 1]):
            u = neighbour[entry]
            if part[u] >= 0 and u != v:
                score[part[u]] += weight[entry]
        best, best_value = -1, 0.0
        # Of equals the emptiest, then the first from a part on that the seed draws for each node.
        begin = np.int64(_drawn(seed, v) % np.uint64(parts))
        for step in range(parts):
            p = begin + step if begin + step < parts else begin + step - parts
            taken = size[mine, p]
            if taken >= capacity[mine]:
                continue
            if len(alpha):
                value = score[p] - _GAMMA * alpha[mine] * np.sqrt(np.float64(taken))
            else:
                value = score[p] * (1.0 - taken / capacity[mine])
            if best < 0 or value > best_value or (value == best_value and taken < size[mine, best]):
                best, best_value = p, value
        moved += part[v] != best
        part[v] = best
        size[mine, best] += 1
    return moved
