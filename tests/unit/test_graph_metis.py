"""Assignments: METIS's input by arithmetic, cuts of graphs whose best cut is known, balance, and awkward graphs."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from scipy import sparse
from torch_geometric.data import HeteroData

from disttrain import memory
from disttrain.config import ExperimentError, GeneratedData
from disttrain.data.generated import generate
from disttrain.graph import metis
from disttrain.graph.arrays import GraphArrays, graph_arrays
from disttrain.graph.metis import adjacency, metis_parts, relation_weights, vertex_weights
from disttrain.graph.random_cut import random_parts
from disttrain.stop import Stopped, StopRequest
from tests.graphs import ring, zoo

METHODS = {"metis": metis_parts, "random": random_parts}


def communities(parts_of_train: float = 0.5) -> GraphArrays:
    section = GeneratedData(
        source="generated",
        nodes={"paper": {"num_nodes": 4000}, "author": {"num_nodes": 2000}, "venue": {"num_nodes": 400}},  # type: ignore
        edges={
            "author,writes,paper": {"num_edges": 12_000},
            "paper,cites,paper": {"num_edges": 16_000},
            "paper,in,venue": {"num_edges": 4_000},
        },  # type: ignore
        num_communities=24,
        homophily=0.8,
    )
    data = generate(section)
    data["paper"].train_mask = torch.arange(4000) < 4000 * parts_of_train
    return graph_arrays(data)


def cut(graph: GraphArrays, part_of: dict[str, np.ndarray]) -> float:
    crossing = sum(
        np.count_nonzero(part_of[src][edges.src] != part_of[dst][edges.dst])
        for (src, _, dst), edges in graph.edges.items()
    )
    return float(crossing / graph.num_edges)


def test_adjacency_is_the_symmetric_weighted_sum():
    graph = graph_arrays(zoo())
    weights = relation_weights(graph)
    offset, total = {}, 0
    for node_type, nodes in graph.nodes.items():
        offset[node_type] = total
        total += nodes.count
    expected = sparse.coo_matrix((total, total), dtype=np.int64).tocsr()
    for edge_type, edges in graph.edges.items():
        entries = np.full(edges.count, weights[edge_type])
        ends = (edges.src + offset[edge_type[0]], edges.dst + offset[edge_type[2]])
        matrix = sparse.coo_matrix((entries, ends), shape=(total, total))
        expected = expected + matrix + matrix.T
    expected.setdiag(0)
    expected.eliminate_zeros()
    starts, neighbours, entries = adjacency(graph)
    found = sparse.csr_matrix((entries, neighbours, starts), shape=(total, total))
    assert len(neighbours) == expected.nnz
    assert np.array_equal(found.toarray(), expected.toarray())


def test_rare_relations_weigh_more():
    graph = graph_arrays(zoo())
    weights = relation_weights(graph)
    assert weights["paper", "cites", "paper"] == 4
    assert weights["venue", "publishes", "paper"] == round(4 * (1500 / 230) ** 0.5) == 10
    assert weights["author", "knows", "author"] == 64


def test_vertex_weights_balance_each_type_and_the_seeds():
    graph = graph_arrays(zoo())
    # paper and author are large enough for two parts; venue and lonely are not, even together, and go with author.
    weights = vertex_weights(graph, parts=2)
    assert weights.sum(axis=0).tolist() == [211, 97 + 5 + 3, 100]
    assert weights[:211, 0].all()
    assert weights[:, 2].nonzero()[0].tolist() == graph.nodes["paper"].attributes["train_mask"].nonzero()[0].tolist()
    # For five parts author is too small, and the three together are not; the seeds are just enough.
    assert vertex_weights(graph, parts=5).sum(axis=0).tolist() == [211, 97 + 5 + 3, 100]
    # For eight only paper is large enough, and the seeds are too few.
    assert vertex_weights(graph, parts=8).sum(axis=0).tolist() == [211 + 97 + 5 + 3]
    assert vertex_weights(graph, parts=100).sum(axis=0).tolist() == [211 + 97 + 5 + 3]


def test_many_types_share_constraints():
    data = HeteroData()
    for number in range(40):
        data[f"t{number:02}"].num_nodes = 100 + number
    weights = vertex_weights(graph_arrays(data), parts=2)
    assert weights.sum(axis=0).tolist() == [*range(139, 133, -1), sum(range(100, 134))]


@pytest.mark.parametrize("parts", [2, 3, 8])
def test_metis_cuts_a_ring_into_arcs(parts: int):
    graph = graph_arrays(ring(480))
    part = metis_parts(graph, parts, seed=0)["node"]
    # An arc's border is crossed by three edges: v-1 -> v, v-2 -> v, v-1 -> v+1. Best: one border per part.
    assert cut(graph, {"node": part}) * graph.num_edges <= 3 * parts * 1.5
    assert np.bincount(part, minlength=parts).max() <= 480 / parts * 1.05


@pytest.mark.parametrize("parts", [2, 3, 8])
def test_metis_finds_communities_and_balances(parts: int):
    graph = communities()
    part_of = metis_parts(graph, parts, seed=0)
    # A fifth of the edges leave their community; at random 1 - 1/parts of all would cross.
    assert cut(graph, part_of) < 0.2 * (1 - 1 / parts) + 0.08
    assert cut(graph, random_parts(graph, parts, seed=0)) > 0.9 * (1 - 1 / parts)
    for node_type, part in part_of.items():
        assert np.bincount(part, minlength=parts).max() <= graph.nodes[node_type].count / parts * 1.12, node_type
    seeds = np.bincount(part_of["paper"][graph.nodes["paper"].is_train_seed], minlength=parts)
    assert seeds.max() <= 2000 / parts * 1.12


@pytest.mark.parametrize("method", METHODS)
def test_seeded(method: str):
    graph = communities()
    first, again, other = (METHODS[method](graph, 2, seed) for seed in (5, 5, 6))
    assert all(np.array_equal(first[t], again[t]) for t in first)
    assert any(not np.array_equal(first[t], other[t]) for t in first)


def test_random_balances_types_and_seeds_to_one_node():
    graph = graph_arrays(zoo())
    for parts in (2, 3, 8):
        part_of = random_parts(graph, parts, seed=1)
        for node_type, part in part_of.items():
            counts = np.bincount(part, minlength=parts)
            assert counts.max() - counts.min() <= 1, node_type
        seeds = np.bincount(part_of["paper"][graph.nodes["paper"].is_train_seed], minlength=parts)
        assert seeds.max() - seeds.min() <= 1


def awkward(kind: str) -> HeteroData:
    data = HeteroData()
    if kind == "no edges":
        data["a"].num_nodes, data["b"].num_nodes = 50, 0
    elif kind == "one node":
        data["a"].num_nodes = 1
        data["a", "to", "a"].edge_index = torch.zeros(2, 3, dtype=torch.long)
    elif kind == "empty":
        data["a"].num_nodes = 0
        data["a", "to", "a"].edge_index = torch.zeros(2, 0, dtype=torch.long)
    elif kind == "mostly isolated":
        data["a"].num_nodes = 2000
        data["a", "to", "a"].edge_index = torch.randint(0, 60, (2, 300))
    elif kind == "star":
        data["hub"].num_nodes, data["leaf"].num_nodes = 1, 500
        data["leaf", "to", "hub"].edge_index = torch.stack([torch.arange(500), torch.zeros(500, dtype=torch.long)])
    elif kind == "complete":
        data["a"].num_nodes = 40
        data["a", "to", "a"].edge_index = torch.cartesian_prod(torch.arange(40), torch.arange(40)).T
    elif kind == "many types":
        for number in range(60):
            data[f"t{number}"].num_nodes = number
            if number > 1:
                ends = torch.stack([torch.arange(number) % (number - 1), torch.arange(number)])
                data[f"t{number - 1}", "to", f"t{number}"].edge_index = ends
    return data


KINDS = ["no edges", "one node", "empty", "mostly isolated", "star", "complete", "many types"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", KINDS)
def test_awkward_graphs(kind: str, method: str, capfd: pytest.CaptureFixture[str]):
    graph = graph_arrays(awkward(kind))
    for parts in (1, 2, 3, 8, 100):
        part_of = METHODS[method](graph, parts, 0)
        assert list(part_of) == list(graph.nodes)
        for node_type, nodes in graph.nodes.items():
            part = part_of[node_type]
            assert part.dtype == np.int32
            assert part.shape == (nodes.count,)
            assert not len(part) or (part.min() >= 0 and part.max() < parts)
    assert capfd.readouterr().out == ""


def test_isolated_nodes_are_spread():
    graph = graph_arrays(awkward("mostly isolated"))
    for parts in (2, 3, 8):
        counts = np.bincount(metis_parts(graph, parts, 0)["a"], minlength=parts)
        assert counts.max() <= 2000 / parts * 1.1


def test_other_threads_run_while_metis_works(monkeypatch: pytest.MonkeyPatch):
    """Heartbeats come from a thread: the foreign call may not hold the GIL."""
    graph = communities()
    library, beats, inside = metis._library(), [0], threading.Event()

    def watched(*arguments: object) -> int:
        inside.set()
        before = beats[0]
        code = library(*arguments)
        during.append(beats[0] - before)
        return code

    def beat() -> None:
        inside.wait(60)
        while not stop.is_set():
            beats[0] += 1
            stop.wait(0.0005)

    during: list[int] = []
    stop = threading.Event()
    thread = threading.Thread(target=beat)
    thread.start()
    monkeypatch.setattr(metis, "_library", lambda: watched)
    metis_parts(graph, 8, 0)
    stop.set()
    thread.join(60)
    assert during[0] > 2


def test_a_request_to_stop_that_metis_catches_is_heard(monkeypatch: pytest.MonkeyPatch):
    """It has a handler of its own for the signal, and says that it has failed. The file `STOP` comes as one too."""
    graph, library = graph_arrays(ring(300_000)), metis._library()

    def asked_meanwhile(*arguments: object) -> int:
        thread = threading.Timer(0.05, StopRequest.ask, ["runs/x/STOP"])
        thread.start()
        try:
            return library(*arguments)
        finally:
            thread.join(60)

    monkeypatch.setattr(metis, "_library", lambda: asked_meanwhile)
    with pytest.raises(Stopped, match="stopped by runs/x/STOP in "), StopRequest(at_once=True):
        metis_parts(graph, 8, 0)


def test_failures_are_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(metis, "_library", lambda: lambda *arguments: -3)
    with pytest.raises(ExperimentError, match=r"METIS ran out of memory.*method=ldg"):
        metis_parts(communities(), 2, 0)


def test_more_memory_than_there_is_is_refused_beforehand(monkeypatch: pytest.MonkeyPatch):
    graph = communities()
    needed = metis.memory_estimate(graph)
    # 32,000 edges, their reverses, and 6,400 nodes.
    assert needed == 250 * 32_000 + 16 * 32_000 + 100 * 6_400
    monkeypatch.setattr(metis, "available_memory", lambda: needed - 1)
    monkeypatch.setattr(metis, "adjacency", None)
    with pytest.raises(
        ExperimentError,
        match=r"METIS needs about 0\.0 GB of memory for this graph of 6,400 nodes and 64,000 edges.*method=ldg",
    ):
        metis_parts(graph, 2, 0)


def test_reverse_relations_are_not_counted_twice():
    data = zoo()
    one = metis.memory_estimate(graph_arrays(data))
    ends = data["author", "writes", "paper"].edge_index
    data["paper", "written_by", "author"].edge_index = ends.flip(0)
    assert metis.memory_estimate(graph_arrays(data)) == one + 16 * 700


def test_available_memory_heeds_a_limit_of_the_control_group(tmp_path: Path):
    free = memory.available_memory()
    assert 0 < free <= memory.total_memory() <= psutil.virtual_memory().total
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("900\n")
    (tmp_path / "memory.stat").write_text("anon 200\nfile 700\nshmem 50\n")
    group = tmp_path, memory._V2
    assert memory._left(*group) == 1000 - 900 + 700 - 50 and memory._limit(*group) == 1000
    (tmp_path / "memory.max").write_text("max\n")
    assert memory._left(*group) > 2**59 and memory._limit(*group) > 2**59
