"""The streamed cuts equal a plain reading of their papers, keep their balance, and find communities."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch

from disttrain.graph.arrays import GraphArrays, graph_arrays
from disttrain.graph.metis import metis_parts, relation_weights
from disttrain.graph.random_cut import random_parts
from disttrain.graph.streaming_cut import capacities, groups_of, streamed_parts
from tests.graphs import ring, zoo
from tests.unit.test_graph_metis import KINDS, awkward, communities, cut

METHODS: list[Literal["ldg", "fennel"]] = ["ldg", "fennel"]


def splitmix64(word: int) -> int:
    word %= 2**64
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB % 2**64
    return word ^ (word >> 31)


def plain_reading(graph: GraphArrays, parts: int, seed: int, method: str, passes: int) -> list[int]:
    """Loops over lists, for graphs of some hundred nodes."""
    offset, num_vertices = {}, 0
    for node_type, nodes in graph.nodes.items():
        offset[node_type] = num_vertices
        num_vertices += nodes.count
    edges: list[tuple[int, int, int]] = []
    for edge_type, ends in graph.edges.items():
        weight = relation_weights(graph)[edge_type]
        for src, dst in zip(ends.src.tolist(), ends.dst.tolist()):
            edges.append((src + offset[edge_type[0]], dst + offset[edge_type[2]], weight))
    neighbours: list[list[tuple[int, int]]] = [[] for _ in range(num_vertices)]
    for u, v, weight in edges:
        neighbours[u].append((v, weight))
        neighbours[v].append((u, weight))
    group = [
        2 * number + int(is_seed)
        for number, nodes in enumerate(graph.nodes.values())
        for is_seed in nodes.is_train_seed.tolist()
    ]
    sizes = [group.count(number) for number in range(2 * len(graph.nodes))]
    at_ends = [
        sum(w for v, of in enumerate(neighbours) if group[v] == number for _, w in of) for number in range(len(sizes))
    ]
    alpha = [m / 2 * math.sqrt(parts) / (max(n, 1) * math.sqrt(max(n, 1))) for m, n in zip(at_ends, sizes)]
    room = [math.ceil(n * (1.02 / parts)) for n in sizes]
    part = [-1] * num_vertices
    for number in range(passes):
        taken = [[0] * parts for _ in sizes]
        moved = 0
        for v in sorted(range(num_vertices), key=lambda v: -len(neighbours[v])):
            mine = taken[group[v]]
            first = splitmix64(v + seed * 0x9E3779B97F4A7C15) % parts

            def worth(p: int, v: int = v, mine: list[int] = mine, first: int = first) -> tuple[float, int, int]:
                score = sum(weight for u, weight in neighbours[v] if u != v and part[u] == p)
                if method == "ldg":
                    value = score * (1 - mine[p] / room[group[v]])
                else:
                    value = score - 1.5 * alpha[group[v]] * math.sqrt(mine[p])
                return value, -mine[p], -((p - first) % parts)

            best = max((p for p in range(parts) if mine[p] < room[group[v]]), key=worth)
            moved += part[v] != best
            part[v] = best
            mine[best] += 1
        if number and moved < 0.001 * num_vertices:
            break
    return part


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("parts", [1, 2, 3, 8])
def test_equals_a_plain_reading(parts: int, method: Literal["ldg", "fennel"]):
    graph = graph_arrays(zoo())
    for seed, passes in ((0, 1), (7, 4)):
        found = streamed_parts(graph, parts, seed, method, passes)
        assert [p for part in found.values() for p in part.tolist()] == (
            plain_reading(graph, parts, seed, method, passes) if parts > 1 else [0] * graph.num_nodes
        )


@pytest.mark.parametrize("method", METHODS)
def test_how_much_is_sorted_at_once_changes_nothing_and_nothing_is_left(
    method: Literal["ldg", "fennel"], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    graph = communities()
    in_memory = streamed_parts(graph, 3, 0, method, folder=tmp_path)
    monkeypatch.setattr("disttrain.graph.blocks._BLOCK_BYTES", 1 << 14)
    monkeypatch.setattr("disttrain.graph.streaming_cut._EDGES_AT_ONCE", 1 << 10)
    for rows_at_once in (50, 4000):
        on_disk = streamed_parts(graph, 3, 0, method, folder=tmp_path, rows_at_once=rows_at_once)
        assert all(np.array_equal(in_memory[t], on_disk[t]) for t in graph.nodes)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("parts", [2, 3, 8])
def test_communities_are_found_and_everything_is_balanced(parts: int, method: Literal["ldg", "fennel"]):
    graph = communities()
    part_of = streamed_parts(graph, parts, 0, method)
    found, best = cut(graph, part_of), cut(graph, metis_parts(graph, parts, 0))
    random = cut(graph, random_parts(graph, parts, 0))
    # Most of the way from chance to METIS.
    assert random - found > 0.75 * (random - best)
    group, sizes = groups_of(graph)
    part = np.concatenate(list(part_of.values()))
    for number, room in enumerate(capacities(sizes, parts)):
        assert np.bincount(part[group == number], minlength=parts).max() <= room <= 1.02 * sizes[number] / parts + 1


def test_passes_make_it_better():
    graph = communities()
    one, ten = (cut(graph, streamed_parts(graph, 8, 0, "ldg", passes)) for passes in (1, 10))
    assert ten < 0.8 * one


@pytest.mark.parametrize("method", METHODS)
def test_seeded(method: Literal["ldg", "fennel"]):
    graph = communities()
    first, again, other = (streamed_parts(graph, 2, seed, method) for seed in (5, 5, 6))
    assert all(np.array_equal(first[t], again[t]) for t in first)
    assert any(not np.array_equal(first[t], other[t]) for t in first)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("parts", [2, 3, 8])
def test_a_ring_is_cut_into_arcs(parts: int, method: Literal["ldg", "fennel"]):
    graph = graph_arrays(ring(480))
    part = streamed_parts(graph, parts, 0, method)
    # An arc's border is crossed by three edges. Best: one border per part.
    assert cut(graph, part) * graph.num_edges <= 3 * parts * 2


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", KINDS)
def test_awkward_graphs(kind: str, method: Literal["ldg", "fennel"]):
    graph = graph_arrays(awkward(kind))
    for parts in (1, 2, 3, 8, 100):
        part_of = partial(streamed_parts, method=method)(graph, parts, 0)
        assert list(part_of) == list(graph.nodes)
        for node_type, nodes in graph.nodes.items():
            part = part_of[node_type]
            assert (part.dtype, part.shape) == (np.int32, (nodes.count,))
            assert not nodes.count or (part.min() >= 0 and part.max() < parts)
            assert np.bincount(part, minlength=parts).max() <= math.ceil(1.02 * nodes.count / parts)


def test_seeds_of_several_types_and_masks_of_several_splits_are_balanced():
    data = zoo()
    data["author"].train_mask = torch.arange(97 * 2).view(97, 2) % 5 == 0
    graph = graph_arrays(data)
    part_of = streamed_parts(graph, 3, 0)
    for node_type in ("paper", "author"):
        seeds = np.bincount(part_of[node_type][graph.nodes[node_type].is_train_seed], minlength=3)
        assert seeds.max() <= math.ceil(1.02 * seeds.sum() / 3)
