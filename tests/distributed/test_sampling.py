"""Mini-batches equal the raw graph, and equal each other bit for bit however the graph is cut."""

from __future__ import annotations

import functools
import operator
import threading
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import HeteroData
from torch_geometric.sampler import NodeSamplerInput

from disttrain.config import Sampling
from disttrain.graph.schema import Wants
from disttrain.sampling import NeighborSampler, NodeLoader, Route, split_seeds
from disttrain.sampling import subgraph as subgraph_module
from disttrain.world import World
from tests.graphs import open_parts, ring, write_parts, zoo
from tests.ranks import RankFailed, run_ranks

WANTS = Wants(
    nodes={"paper": ("x", "y", "time", "weight", "train_mask"), "venue": ("x", "flag"), "lonely": ("x",)},
    edges={("paper", "cites", "paper"): ("edge_attr", "time"), ("author", "writes", "paper"): ("kind",)},
    degrees=frozenset({("author", "writes", "paper"), ("paper", "cites", "paper")}),
)
FANOUTS = {
    "lists": (4, 3),
    "all": (-1, -1),
    "by relation": {
        "default": (3, 2),
        "paper,cites,paper": (5, 0),
        "author,writes,paper": (0, -1),
        "paper,in,venue": (40, 40),
    },
}


def _loader(world: World, directory: str, training: bool = True, wants: Wants = WANTS, **sampling) -> NodeLoader:
    graph = open_parts(directory, world.machine, world.num_machines)
    seeds = split_seeds(world, graph, "paper", "train_mask" if training else "val_mask")
    options: dict[str, Any] = dict(batch_size=12, locality=False, workers=2, prefetch=2) | sampling
    return NodeLoader(
        world, graph, "paper", seeds, sampling=Sampling(**options), run_seed=5, wants=wants, training=training
    )


def _epochs(world: World, directory: str, epochs: tuple[int, ...] = (0, 1), **options) -> list[HeteroData]:
    loader = _loader(world, directory, **options)
    return [batch for epoch in epochs for batch in loader.batches(epoch)]


def _content(batch: HeteroData) -> dict:
    return {
        (key, name): value.tolist() if torch.is_tensor(value) else value
        for key, store in [*batch.node_items(), *batch.edge_items()]
        for name, value in store.items()
    } | {"step": batch.step, "epoch": batch.epoch, "seeds": batch.num_global_seeds}


def _contents(world: World, directory: str, **options) -> list[dict]:
    return [_content(batch) for batch in _epochs(world, directory, **options)]


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("zoo")
    return {n: str(write_parts(zoo(), folder / str(n), n)) for n in (1, 2, 3, 8)}


@pytest.fixture(scope="module")
def straight():
    """Whole epochs of one rank on one partition, by fanout and replacement."""
    cache = {}

    def get(directory, **options):
        key = str(options)
        if key not in cache:
            with World.start(device="cpu", timeout=30) as world:
                cache[key] = _contents(world, directory, **options)
        return cache[key]

    return get


def _check_against_raw(batch: HeteroData, raw: HeteroData, fanouts: np.ndarray, replace: bool) -> None:
    for node_type, store in batch.node_items():
        n_id = store.n_id
        assert len(n_id) == store.num_nodes == sum(store.num_sampled_nodes) == len(set(n_id.tolist()))
        for name in WANTS.nodes.get(node_type, ()):
            expected = raw[node_type][name][n_id]
            assert store[name].dtype == expected.dtype and torch.equal(store[name], expected), (node_type, name)
    assert batch["paper"].num_sampled_nodes[0] == batch["paper"].batch_size == len(batch["paper"].input_id)
    train = raw["paper"].train_mask.nonzero().view(-1)
    assert torch.equal(batch["paper"].n_id[: batch["paper"].batch_size], train[batch["paper"].input_id])
    for number, (edge_type, store) in enumerate(batch.edge_items()):
        src, _, dst = edge_type
        row, col = store.edge_index
        ends = raw[edge_type].edge_index[:, store.e_id]
        assert torch.equal(batch[src].n_id[row], ends[0]) and torch.equal(batch[dst].n_id[col], ends[1])
        assert len(store.e_id) == sum(store.num_sampled_edges)
        assert (col.diff() >= 0).all(), "destinations ascend"
        for name in WANTS.edges.get(edge_type, ()):
            assert torch.equal(store[name], raw[edge_type][name][store.e_id])
        if edge_type in WANTS.degrees:
            out = torch.bincount(raw[edge_type].edge_index[0], minlength=raw[src].num_nodes)
            into = torch.bincount(raw[edge_type].edge_index[1], minlength=raw[dst].num_nodes)
            assert torch.equal(store.src_degree, out[batch[src].n_id])
            assert torch.equal(store.dst_degree, into[batch[dst].n_id])
        if not replace:
            assert len(set(store.e_id.tolist())) == len(store.e_id)
        # Each node that arrived before the last hop is expanded once, in the hop after its arrival, by the rule.
        degree = torch.bincount(raw[edge_type].edge_index[1], minlength=raw[dst].num_nodes)[batch[dst].n_id]
        begin, drawn = 0, torch.bincount(col, minlength=batch[dst].num_nodes)
        for hop, fanout in enumerate(fanouts[:, number].tolist()):
            end = begin + batch[dst].num_sampled_nodes[hop]
            full = degree[begin:end]
            if fanout < 0:
                expected = full
            elif replace:
                expected = torch.where(full > 0, fanout, 0)
            else:
                expected = full.clamp(max=fanout)
            assert torch.equal(drawn[begin:end], expected)
            assert store.num_sampled_edges[hop] == int(expected.sum())
            begin = end
        assert drawn[begin:].sum() == 0


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("fanout", FANOUTS)
def test_batches_equal_the_raw_graph(parts, fanout, replace):
    raw, fanout = zoo(), FANOUTS[fanout]
    with World.start(device="cpu", timeout=30) as world:
        loader = _loader(world, parts[3], fanout=fanout, replace=replace)
        table = loader._workers[0].sampler.fanouts
        batches = [batch for epoch in (0, 1) for batch in loader.batches(epoch)]
    assert [batch.num_global_seeds for batch in batches] == [12] * 8 + [4] + [12] * 8 + [4]
    for batch in batches:
        assert set(batch.node_types) == set(raw.node_types) and batch.edge_types == raw.edge_types
        _check_against_raw(batch, raw, table, replace)


@pytest.mark.parametrize("num_parts", [2, 3, 8])
@pytest.mark.parametrize("fanout", FANOUTS)
def test_one_machine_draws_the_same_from_any_number_of_parts(parts, straight, num_parts, fanout):
    options = dict(fanout=FANOUTS[fanout])
    expected = straight(parts[1], **options)
    with World.start(device="cpu", timeout=30) as world:
        assert _contents(world, parts[num_parts], **options) == expected


def _draw_all(world: World, directory: str, seeds_of: int = -1) -> dict:
    """Every rank draws the same batches by every rule, of seeds that `seeds_of` of the machines owns (-1: all)."""
    graph = open_parts(directory, world.machine, world.num_machines)
    original = np.asarray(graph.original_ids("paper"))
    place = np.argsort(original)
    seeds = np.arange(len(original))
    bounds = graph.node_books["paper"].bounds
    if seeds_of >= 0:
        seeds = seeds[(place >= bounds[seeds_of]) & (place < bounds[seeds_of + 1])]
    found = {}
    with world.exchange_groups(1) as groups:
        route = Route(world, groups[0] if groups else None)
        for (rule, fanout), replace in product(FANOUTS.items(), (False, True)):
            places_of = [("paper", "cites", "paper")]
            sampler = NeighborSampler(graph, fanout, route, replace=replace, run_seed=5, places_of=places_of)
            before = route.exchanges
            for step in range(3):
                chosen = seeds[step * 20 : step * 20 + 20]
                drawn = sampler.sample("paper", place[chosen], epoch=1, step=step)
                found[rule, replace, step] = (
                    {t: graph.original_ids(t)[ids].tolist() for t, ids in drawn.nodes.items()}
                    | {("index", e): index.tolist() for e, index in drawn.edge_index.items()}
                    | {("id", e): ids.tolist() for e, ids in drawn.edge_id.items()}
                    | {("counts", e): n for e, n in drawn.num_edges.items()}
                    | {"counts": drawn.num_nodes, "seeds": chosen.tolist()}
                )
            assert route.exchanges - before == (2 * 2 * 3 if world.num_machines > 1 else 0)
    return found


@pytest.mark.parametrize(("num_parts", "machines"), [(2, 2), (3, 3), (8, 2)])
def test_batches_are_bit_identical_however_the_graph_is_cut(parts, num_parts, machines):
    with World.start(device="cpu", timeout=30) as world:
        expected = _draw_all(world, parts[1])
    for found in run_ranks(_draw_all, machines, parts[num_parts]):
        assert found == expected


def test_a_machine_that_owns_no_seed_takes_part(parts):
    found = run_ranks(_draw_all, 3, parts[3], 1)
    assert found[0] == found[1] == found[2] and all(drawn["seeds"] for drawn in found[0].values())


def test_the_hash_table_of_large_types_changes_nothing(parts, monkeypatch):
    with World.start(device="cpu", timeout=30) as world:
        dense = _contents(world, parts[2], fanout=(4, 3))
        monkeypatch.setattr(subgraph_module, "DENSE_LIMIT", 10)
        monkeypatch.setattr(subgraph_module, "_SMALLEST_TABLE", 4)
        assert _contents(world, parts[2], fanout=(4, 3)) == dense


def _loaded(world: World, directory: str) -> list:
    raw = zoo()
    loader = _loader(world, directory, fanout=(4, 3), batch_size=12 // world.size)
    contents = []
    for epoch in (0, 1):
        for batch in loader.batches(epoch):
            _check_against_raw(batch, raw, loader._workers[0].sampler.fanouts, False)
            contents.append(
                (batch.step, batch.num_global_seeds, batch["paper"].n_id[: batch["paper"].batch_size].tolist())
            )
    traffic = loader.traffic
    assert traffic.batches == len(contents)
    assert traffic.exchanges == (len(contents) * (2 * 2 + 2) if world.num_machines > 1 else 0)
    return contents


@pytest.mark.parametrize(("size", "machines", "num_parts"), [(2, 2, 2), (3, 3, 3), (4, 2, 8)])
def test_loaders_of_several_machines(parts, straight, size, machines, num_parts):
    expected = straight(parts[1], fanout=(4, 3))
    ranks = run_ranks(_loaded, size, parts[num_parts], machines=machines)
    for step, contents in enumerate(zip(*ranks, strict=True)):
        seeds = functools.reduce(operator.iadd, (seeds for _, _, seeds in contents), [])
        whole = expected[step]
        assert seeds == whole[("paper", "n_id")][: whole[("paper", "batch_size")]]
        assert {(s, n) for s, n, _ in contents} == {(whole["step"], whole["seeds"])}


def _again_and_again(world: World, directory: str) -> bool:
    before = threading.active_count()
    for _ in range(4):
        loader = _loader(world, directory, fanout=(4, 3), batch_size=3)
        first = [_content(b) for b in loader.batches(0)]
        early = loader.batches(0)
        assert [_content(next(early)) for _ in range(2)] == first[:2]
        early.close()
        assert threading.active_count() == before
        assert [_content(b) for b in loader.batches(0, start=4)] == first[4:]
        evaluation = _loader(world, directory, training=False, fanout=(4, 3))
        assert [_content(b) for b in evaluation.batches(0)] == [
            _content(b) | {"epoch": 0} for b in evaluation.batches(7)
        ]
    assert threading.active_count() == before
    return True


@pytest.mark.parametrize("size", [1, 2])
def test_loaders_are_made_again_left_early_and_resumed(parts, size):
    assert run_ranks(_again_and_again, size, parts[2]) == [True] * size


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_any_number_of_workers_gives_the_same_batches(parts, straight, workers):
    expected = straight(parts[1], fanout=(4, 3))
    with World.start(device="cpu", timeout=30) as world:
        assert _contents(world, parts[2], fanout=(4, 3), workers=workers) == expected


def _fails_in_a_worker(world: World, directory: str) -> None:
    loader = _loader(world, directory, fanout=(4, 3), batch_size=3)
    if world.rank == 1:
        loader.seeds.ids[:] = loader.seeds.ids[0]
    for _ in loader.batches(0):
        pass


def test_an_exception_in_a_worker_reaches_the_trainer(parts):
    with pytest.raises(RankFailed) as failure:
        run_ranks(_fails_in_a_worker, 2, parts[2], timeout=20)
    assert "seeds must be distinct" in failure.value.text or "in the sampling request" in failure.value.text


def test_a_batch_without_seeds_has_everything_empty(parts):
    with World.start(device="cpu", timeout=30) as world:
        graph = open_parts(parts[1])
        sampler = NeighborSampler(graph, (4, 3), Route(world))
        out = sampler.sample_from_nodes(NodeSamplerInput(None, torch.empty(0, dtype=torch.long), None, "paper"))
    assert all(len(ids) == 0 for ids in out.node.values()) and len(out.node) == 4
    assert all(len(row) == 0 for row in out.row.values()) and len(out.row) == 6
    assert out.num_sampled_nodes == {key: [0, 0, 0] for key in out.node}


def test_the_ring_by_arithmetic(tmp_path):
    directory = write_parts(ring(24), tmp_path / "ring", 3)
    with World.start(device="cpu", timeout=30) as world:
        graph = open_parts(directory)
        seeds = split_seeds(world, graph, "node", "train_mask")
        loader = NodeLoader(
            world, graph, "node", seeds, sampling=Sampling(fanout=(-1, -1), batch_size=1),
            run_seed=0, wants=Wants(nodes={"node": ("x",)}), training=False,
        )  # fmt: skip
        for v, batch in enumerate(loader.batches(0)):
            assert batch["node"].n_id.tolist() == [(v - back) % 24 for back in (0, 1, 2, 3, 4)]
            assert batch["node"].x.view(-1).tolist() == batch["node"].n_id.tolist()
            source, destination = batch["node"].n_id[batch["node", "next", "node"].edge_index]
            assert set(((destination - source) % 24).tolist()) == {1, 2}
            assert batch["node"].num_sampled_nodes == [1, 2, 2]
