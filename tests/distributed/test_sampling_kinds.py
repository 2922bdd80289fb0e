"""Draws by weight, by time, in trees of their own and by share of the degree: equal to brute force, and to each other
bit for bit however the graph is cut."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import HeteroData

from disttrain.config import Sampling, Share
from disttrain.graph.graph import Graph
from disttrain.graph.schema import Wants
from disttrain.sampling import NeighborSampler, NodeLoader, Route, split_seeds
from disttrain.sampling.fanout import fanout_rules
from disttrain.sampling.kind import kind_of, seed_time_attribute
from disttrain.sampling.one_hop import sample_one_hop
from disttrain.sampling.temporal import time_keys
from disttrain.world import World
from tests.graphs import dated_zoo, write_parts
from tests.ranks import run_ranks

WANTS = Wants(
    nodes={"paper": ("x", "at"), "venue": ("flag",)},
    edges={("paper", "cites", "paper"): ("at", "w"), ("author", "writes", "paper"): ("kind",)},
)
SHARE = Share(ratio=0.5, min=2, max=4)
KINDS: dict[str, dict[str, Any]] = {
    "share": dict(fanout=(SHARE, Share(ratio=0.3))),
    "share again": dict(fanout={"default": (SHARE, 2), "paper,cites,paper": (3, Share(ratio=1.0))}, replace=True),
    "weights": dict(fanout=(4, 3), weight_attr="w"),
    "weights again": dict(fanout=(4, SHARE), weight_attr="w", replace=True),
    "weights all": dict(fanout=(-1, 3), weight_attr="w"),
    "trees": dict(fanout=(4, 3), disjoint=True),
    "trees of one hop": dict(fanout=(4, 0), disjoint=True),
    "trees by share": dict(fanout=(SHARE, SHARE), disjoint=True, replace=True),
    "times": dict(fanout=(4, 3), time_attr="at"),
    "times all": dict(fanout=(-1, -1), time_attr="at"),
    "times again": dict(fanout=(SHARE, 3), time_attr="at", replace=True),
    "last": dict(fanout=(4, 3), time_attr="at", temporal_strategy="last"),
    "last by share": dict(fanout=(SHARE, 3), time_attr="at", temporal_strategy="last", replace=True),
    "times and weights": dict(fanout=(4, 3), time_attr="at", weight_attr="w"),
    "last and weights": dict(fanout=(4, SHARE), time_attr="at", weight_attr="w", temporal_strategy="last"),
}


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dated")
    return {n: str(write_parts(dated_zoo(), folder / str(n), n)) for n in (1, 2, 3, 8)}


def _loader(world: World, directory: str, topology: Any = "partitioned", **options) -> NodeLoader:
    graph = Graph.open(directory, world.machine, world.num_machines, topology)
    settings: dict[str, Any] = dict(batch_size=24 // world.size, locality=False, workers=1) | options
    sampling = Sampling(**settings)
    seeds = split_seeds(world, graph, "paper", "train_mask", seed_time_attribute(sampling))
    return NodeLoader(world, graph, "paper", seeds, sampling=sampling, run_seed=5, wants=WANTS, training=True)


def _content(batch: HeteroData) -> dict:
    return {
        (key, name): value.tolist() if torch.is_tensor(value) else value
        for key, store in [*batch.node_items(), *batch.edge_items()]
        for name, value in store.items()
    }


def _times_of_edges(raw: HeteroData, edge_type) -> np.ndarray | None:
    """The later of the edge's and its source's; NaN where one is missing."""
    found = []
    if "at" in raw[edge_type]:
        found.append(raw[edge_type].at.double().numpy())
    if "at" in raw[edge_type[0]]:
        found.append(raw[edge_type[0]].at.double().numpy()[raw[edge_type].edge_index[0].numpy()])
    return np.maximum.reduce(found) if found else None


def _check(batch: HeteroData, raw: HeteroData, options: dict[str, Any]) -> None:
    """Every node that came before the last hop is expanded by the rule, from all edges that may be drawn."""
    sampling = Sampling(**options)
    trees = sampling.disjoint or sampling.time_attr is not None
    rules = fanout_rules(sampling.fanout, batch.edge_types)
    paper = batch["paper"]
    for store in batch.node_stores:
        keys = list(zip(store.batch.tolist(), store.n_id.tolist(), strict=True)) if trees else store.n_id.tolist()
        assert len(set(keys)) == len(keys) == sum(store.num_sampled_nodes)
    if trees:
        assert paper.batch[: paper.batch_size].tolist() == list(range(paper.batch_size))
    if sampling.time_attr:
        assert torch.equal(paper.seed_time, raw["paper"].at[paper.n_id[: paper.batch_size]])
    for number, (edge_type, store) in enumerate(batch.edge_items()):
        src, _, dst = edge_type
        row, col = store.edge_index
        ends = raw[edge_type].edge_index[:, store.e_id]
        assert torch.equal(batch[src].n_id[row], ends[0]) and torch.equal(batch[dst].n_id[col], ends[1])
        for name in WANTS.edges.get(edge_type, ()):
            assert torch.equal(store[name], raw[edge_type][name][store.e_id])
        if trees:
            assert torch.equal(batch[src].batch[row], batch[dst].batch[col])
        times = _times_of_edges(raw, edge_type) if sampling.time_attr else None
        weights = raw[edge_type].w.numpy() if sampling.weight_attr and "w" in raw[edge_type] else None
        last = times is not None and sampling.temporal_strategy == "last"
        all_dst, begin = raw[edge_type].edge_index[1].numpy(), 0
        for hop, hop_rules in enumerate(rules):
            rule = hop_rules[number]
            for at in range(begin, begin + batch[dst].num_sampled_nodes[hop]):
                may = all_dst == int(batch[dst].n_id[at])
                if weights is not None:
                    may &= weights > 0
                if times is not None:
                    may &= times <= float(paper.seed_time[batch[dst].batch[at]])
                allowed = np.flatnonzero(may)
                drawn = store.e_id[col == at].tolist()
                count = len(allowed) if rule.most < 0 else rule.most
                if rule.ratio:
                    count = max(rule.least, math.ceil(round(rule.ratio * len(allowed), 9)))
                    count = min(count, rule.most) if rule.most >= 0 else count
                everything = rule.most < 0 and not rule.ratio
                again = sampling.replace and not last and not everything
                assert set(drawn) <= set(allowed.tolist()), (edge_type, hop)
                assert len(drawn) == (count if again and len(allowed) else min(count, len(allowed)))
                assert again or len(set(drawn)) == len(drawn)
                if last:
                    assert times is not None
                    by_time = times.tolist()
                    latest = sorted(allowed.tolist(), key=lambda e: (by_time[e], e))[len(allowed) - len(drawn) :]
                    assert drawn == latest
            begin += batch[dst].num_sampled_nodes[hop]
        assert not (col >= begin).any()


@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_what_brute_force_allows_however_the_graph_is_cut(parts, kind):
    raw = dated_zoo()
    with World.start(device="cpu", timeout=30) as world:
        straight = list(_loader(world, parts[1], **KINDS[kind]).batches(0))
        for batch in straight:
            _check(batch, raw, KINDS[kind])
        for number in (2, 3, 8):
            again = _loader(world, parts[number], **KINDS[kind]).batches(0)
            assert [_content(b) for b in again] == [_content(b) for b in straight]


def _draw_all(world: World, directory: str, topology: Any, seeds_of: int = -1) -> dict:
    """Every rank draws the same batches in every way, of seeds that `seeds_of` of the machines owns (-1: all)."""
    graph = Graph.open(directory, world.machine, world.num_machines, topology)
    original = np.asarray(graph.original_ids("paper"))
    place, seeds, bounds = np.argsort(original), np.arange(len(original)), graph.node_books["paper"].bounds
    if seeds_of >= 0:
        seeds = seeds[(place >= bounds[seeds_of]) & (place < bounds[seeds_of + 1])]
    at = time_keys(dated_zoo()["paper"].at.double().numpy())
    found = {}
    with world.exchange_groups(1) as groups:
        route = Route(world, groups[0] if groups else None)
        for name, options in KINDS.items():
            sampling = Sampling(**options)
            kind = kind_of(sampling, graph.schema, "paper")
            sampler = NeighborSampler(
                graph, sampling.fanout, route, replace=sampling.replace, run_seed=5, disjoint=sampling.disjoint,
                kind=kind, places_of=[("paper", "cites", "paper")],
            )  # fmt: skip
            for step in range(2):
                chosen = seeds[step * 20 : step * 20 + 20]
                times = at[chosen] if kind.time_attr else None
                drawn = sampler.sample(
                    "paper", place[chosen], epoch=1, step=step, times=times, original=chosen if step else None
                )
                found[name, step] = (
                    {t: graph.original_ids(t)[ids].tolist() for t, ids in drawn.nodes.items()}
                    | {("index", e): index.tolist() for e, index in drawn.edge_index.items()}
                    | {("id", e): ids.tolist() for e, ids in drawn.edge_id.items()}
                    | {("tree", t): trees.tolist() for t, trees in drawn.tree.items()}
                    | {"counts": (drawn.num_nodes, drawn.num_edges), "seeds": chosen.tolist()}
                )
    return found


@pytest.fixture(scope="module")
def alone(parts):
    with World.start(device="cpu", timeout=30) as world:
        return _draw_all(world, parts[1], "partitioned")


@pytest.mark.parametrize(
    ("num_parts", "machines", "topology"),
    [(2, 2, "partitioned"), (3, 3, "partitioned"), (8, 2, "partitioned"), (2, 2, "replicated")],
)
def test_machines_draw_together_what_one_draws_alone(parts, alone, num_parts, machines, topology):
    ranks = run_ranks(_draw_twice, machines, parts[num_parts], topology, machines=machines, timeout=120)
    for found, of_one in ranks:
        assert found == alone
        assert of_one == ranks[0][1] and all(drawn["seeds"] for drawn in of_one.values())


def _draw_twice(world: World, directory: str, topology: Any) -> tuple[dict, dict]:
    """Of all seeds, and of seeds that one machine owns: the others take part."""
    return _draw_all(world, directory, topology), _draw_all(world, directory, topology, 1)


def _shares_of_trees(world: World, directory: str) -> dict[str, list[list[set]]]:
    found = {}
    for kind in ("trees", "times"):
        loader = _loader(world, directory, **KINDS[kind])
        found[kind] = [_grown(batch) for batch in loader.batches(0)]
        assert loader.traffic.exchanges == (len(found[kind]) * (2 * 2 + 2) if world.num_machines > 1 else 0)
    return found


def test_a_tree_depends_on_its_seed_only(parts):
    """Not on the batch, its size, the rank that takes it, nor the cut."""
    ranks = run_ranks(_shares_of_trees, 2, parts[2])
    with World.start(device="cpu", timeout=30) as world:
        whole = _shares_of_trees(world, parts[1])
        for kind, batches in whole.items():
            small = [_grown(batch) for batch in _loader(world, parts[3], batch_size=7, **KINDS[kind]).batches(0)]
            assert [tree for trees in small for tree in trees] == [tree for trees in batches for tree in trees]
            for step, trees in enumerate(batches):
                assert [tree for rank in ranks for tree in rank[kind][step]] == trees


def _grown(batch: HeteroData) -> list[set]:
    """What each tree of a batch holds: its nodes and edges, by original ids."""
    content = _content(batch)
    grown = [set() for _ in range(content["paper", "batch_size"])]
    for (key, name), value in content.items():
        if name == "n_id":
            for node, tree in zip(value, content[key, "batch"], strict=True):
                grown[tree].add((key, node))
        if name == "e_id":
            for edge, end in zip(value, content[key, "edge_index"][1], strict=True):
                grown[content[key[2], "batch"][end]].add((key, edge))
    return grown


@pytest.mark.parametrize("kind", KINDS)
def test_the_one_hop_interface_draws_the_same(parts, kind):
    """What pyg-lib's function has to fit into, with this package's own in its place."""
    options = dict(KINDS[kind])
    if any(isinstance(entry, Share) for entry in _entries(options["fanout"])):
        options["fanout"] = (4, 3)  # a number is all that the interface takes
    both = [name in options for name in ("weight_attr", "time_attr")]
    if all(both):
        del options["weight_attr"]
    with World.start(device="cpu", timeout=30) as world:
        graph = Graph.open(parts[3], world.machine, world.num_machines)
        sampling = Sampling(**options)
        drawn = []
        for one_hop in (None, sample_one_hop):
            sampler = NeighborSampler(
                graph, sampling.fanout, Route(world), replace=sampling.replace, run_seed=5, disjoint=sampling.disjoint,
                kind=kind_of(sampling, graph.schema, "paper"), one_hop=one_hop,
            )  # fmt: skip
            seeds = np.arange(60, 100)
            times = time_keys(np.asarray(graph.node_attribute("paper", "at")[seeds]).astype(np.float64))
            drawn.append(sampler.sample("paper", seeds, epoch=0, step=3, times=times if sampling.time_attr else None))
    one, other = drawn
    assert all(np.array_equal(one.nodes[t], other.nodes[t]) for t in one.nodes)
    assert all(np.array_equal(one.edge_id[e], other.edge_id[e]) for e in one.edge_id)
    assert one.num_edges == other.num_edges and sum(map(len, one.edge_id.values())) > 100


def _entries(fanout: Any) -> list:
    return [entry for hops in (fanout.values() if isinstance(fanout, dict) else [fanout]) for entry in hops]
