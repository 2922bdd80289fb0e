"""No neighbour is later than its seed: random graphs against brute force, and the order of times of any kind."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch_geometric.data import HeteroData
from torch_geometric.sampler import NodeSamplerInput

from disttrain.config import Sampling, Share
from disttrain.graph.schema import Attribute, Nodes, Schema
from disttrain.sampling import NeighborSampler, Route
from disttrain.sampling.fanout import fanout_rules
from disttrain.sampling.kind import kind_conflicts, kind_of
from disttrain.sampling.temporal import NEVER, comparable, time_keys
from tests.graphs import open_parts, write_parts

RELATIONS = [("a", "to", "a"), ("b", "to", "a"), ("a", "to", "b")]


def dated_graph(seed: int, floating: bool, num_nodes: int, num_edges: int, dated: frozenset) -> HeteroData:
    """Two node types and three relations with self loops and multi-edges; few different times, so that many tie; of
    floating ones some are missing."""
    rng = np.random.default_rng(seed)

    def times(count: int) -> torch.Tensor:
        values = rng.integers(-4, 5, count)
        if not floating:
            return torch.from_numpy(values)
        return torch.from_numpy(np.where(rng.random(count) < 0.15, np.nan, values / 2))

    data = HeteroData()
    for node_type in "ab":
        data[node_type].num_nodes = num_nodes
        if node_type in dated:
            data[node_type].t = times(num_nodes)
    data["a"].born = torch.from_numpy(rng.integers(-3, 4, num_nodes))
    for relation in RELATIONS:
        data[relation].edge_index = torch.from_numpy(
            rng.integers(0, max(num_nodes, 1), (2, num_edges if num_nodes else 0))
        )
        if relation in dated:
            data[relation].t = times(data[relation].edge_index.size(1))
    return data


def may_be_drawn(
    data: HeteroData, relation: tuple[str, str, str], node: int, seed_time: float
) -> list[tuple[float, int]]:
    """(time, edge id) of the allowed edges of a destination, oldest first; time 0 where the relation has none."""
    found = []
    for edge, (source, target) in enumerate(data[relation].edge_index.t().tolist()):
        times = [data[relation].t[edge].item()] if "t" in data[relation] else []
        times += [data[relation[0]].t[source].item()] if "t" in data[relation[0]] else []
        if target == node and all(time <= seed_time for time in times):
            found.append((max(times, default=0.0), edge))
    return sorted(found)


graphs = st.builds(
    dated_graph,
    st.integers(0, 2**32),
    st.booleans(),
    st.integers(1, 12),
    st.integers(0, 60),
    st.frozensets(st.sampled_from(["a", "b", *RELATIONS]), min_size=1),
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    data=graphs,
    parts=st.integers(1, 3),
    strategy=st.sampled_from(["uniform", "last"]),
    fanout=st.sampled_from([2, -1, Share(ratio=0.5, min=2), Share(ratio=0.3, max=2)]),
    replace=st.booleans(),
)
def test_no_neighbour_is_later_than_its_seed(tmp_path_factory, data, parts, strategy, fanout, replace):
    sampling = Sampling(
        fanout=(fanout, 3), time_attr="t", seed_time="born", temporal_strategy=strategy, replace=replace
    )
    graph = open_parts(write_parts(data, tmp_path_factory.mktemp("graph") / "parts", parts))
    assert kind_conflicts(sampling, graph.schema, "a") == []
    kind = kind_of(sampling, graph.schema, "a")
    sampler = NeighborSampler(graph, sampling.fanout, Route(), replace=replace, kind=kind)
    seeds = np.arange(data["a"].num_nodes)
    born = data["a"].born.numpy()[np.asarray(graph.original_ids("a"))]
    drawn = sampler.sample("a", seeds, epoch=0, step=0, times=time_keys(comparable(born, kind.floating)))
    rules = fanout_rules(sampling.fanout, RELATIONS)
    for number, relation in enumerate(RELATIONS):
        (row, col), dst = drawn.edge_index[relation], relation[2]
        timed = "t" in data[relation] or "t" in data[relation[0]]
        begin = 0
        for hop in range(2):
            for at in range(begin, begin + drawn.num_nodes[dst][hop]):
                tree = drawn.tree[dst][at]
                node = int(graph.original_ids(dst)[drawn.nodes[dst][at]])
                allowed = may_be_drawn(data, relation, node, born[tree])
                found = drawn.edge_id[relation][col == at].tolist()
                rule, count = rules[hop][number], len(allowed)
                if rule.ratio:
                    count = max(rule.least, math.ceil(round(rule.ratio * len(allowed), 9)))
                if rule.most >= 0:
                    count = min(count, rule.most) if rule.ratio else rule.most
                again = replace and not (timed and strategy == "last") and (rule.most >= 0 or rule.ratio > 0)
                assert set(found) <= {edge for _, edge in allowed}
                assert len(found) == (count if again and allowed else min(count, len(allowed)))
                assert again or len(set(found)) == len(found)
                if timed and strategy == "last":
                    assert found == [edge for _, edge in allowed[len(allowed) - len(found) :]]
            begin += drawn.num_nodes[dst][hop]
        assert (drawn.tree[relation[0]][row] == drawn.tree[dst][col]).all()


def test_uniform_is_uniform_over_those_that_are_not_too_late(tmp_path):
    """Node 0 has ten neighbours at times 0 to 9; its seed lives at time 5, so two of six are drawn."""
    data = HeteroData()
    data["a"].num_nodes = 11
    data["a"].born = torch.full((11,), 5)
    order = torch.randperm(10, generator=torch.Generator().manual_seed(0))
    data["a", "to", "a"].edge_index = torch.stack([order + 1, torch.zeros(10, dtype=torch.long)])
    data["a", "to", "a"].t = order
    sampling = Sampling(fanout=(2,), time_attr="t", seed_time="born")
    graph = open_parts(write_parts(data, tmp_path / "parts", 2))
    kind = kind_of(sampling, graph.schema, "a")
    sampler = NeighborSampler(graph, (2,), Route(), kind=kind)
    seed = np.flatnonzero(np.asarray(graph.original_ids("a")) == 0)
    pairs: Counter[tuple[int, ...]] = Counter()
    for epoch in range(6000):
        drawn = sampler.sample("a", seed, epoch=epoch, step=0, times=np.array([5]))
        pairs[tuple(sorted(order[drawn.edge_id["a", "to", "a"]].tolist()))] += 1
    assert set(pairs) == {(a, b) for a in range(6) for b in range(a + 1, 6)}
    assert chisquare(list(pairs.values())).pvalue > 1e-3


def test_a_seed_that_comes_twice_grows_two_trees(tmp_path):
    """At two times, with different neighbours; at one time, with draws of its own."""
    data = HeteroData()
    data["a"].num_nodes = 41
    data["a", "to", "a"].edge_index = torch.stack([torch.arange(1, 41), torch.zeros(40, dtype=torch.long)])
    data["a", "to", "a"].t = torch.arange(40)
    data["a"].t = torch.zeros(41)
    graph = open_parts(write_parts(data, tmp_path / "parts", 1))
    kind = kind_of(Sampling(fanout=(2,), time_attr="t"), graph.schema, "a")
    sampler = NeighborSampler(graph, (5,), Route(), kind=kind)
    times = time_keys(np.array([9.0, 39.0, 39.0, 9.0]))
    drawn = sampler.sample("a", np.zeros(4, np.int64), epoch=0, step=0, times=times)
    assert drawn.num_nodes["a"] == [4, 20] and drawn.tree["a"][:4].tolist() == [0, 1, 2, 3]
    trees = [set(drawn.nodes["a"][4:][drawn.tree["a"][4:] == tree].tolist()) for tree in range(4)]
    assert all(len(tree) == 5 for tree in trees) and max(trees[0] | trees[3]) <= 10
    assert len({frozenset(tree) for tree in trees}) == 4
    again = sampler.sample("a", np.zeros(1, np.int64), epoch=0, step=3, times=times[1:2])
    assert set(again.nodes["a"][1:].tolist()) == trees[1]


@given(st.lists(st.floats(allow_nan=True), min_size=2))
def test_keys_sort_as_floating_times_do(times):
    times = np.array(times)
    keys = time_keys(times)
    for a, key in zip(times, keys, strict=True):
        assert (key == NEVER) == np.isnan(a)
        for b, other in zip(times, keys, strict=True):
            assert np.isnan(a) or np.isnan(b) or (a <= b) == (key <= other)


def test_keys_of_whole_times_are_themselves_and_a_missing_date_is_never():
    dates = np.array(["1969-07-20", "NaT", "2013-01-01"], "datetime64[ns]").view(np.int64)
    assert time_keys(dates).tolist() == [dates[0], NEVER, dates[2]]
    assert time_keys(np.array([3, 250], np.uint8)).tolist() == [3, 250]
    assert time_keys(np.array([[0.0], [-0.0]], np.float16)).tolist() == [0, 0]
    assert np.isnan(comparable(dates, True)).tolist() == [False, True, False]


def test_whole_times_beside_floating_ones_must_be_held_exactly_by_them():
    def said(low: float, high: float) -> list[str]:
        nodes = Nodes(4, {"t": Attribute("int64", (), low, high), "born": Attribute("float64", (), 0, 1)})
        return kind_conflicts(Sampling(fanout=(2,), time_attr="t", seed_time="born"), Schema({"a": nodes}, {}, {}), "a")

    assert said(-5, 2**53) == said(-(2**63), 5) == []  # the smallest int64 is a date that is missing
    for low, high in ((0, 2**53 + 1), (-(2**53) - 1, 0)):
        (line,) = said(low, high)
        assert "whole numbers above 2**53" in line


def test_floating_times_of_seeds_are_compared_with_whole_ones(tmp_path):
    """PyG's loaders take them as `input_time`."""
    times = np.array([2.5, -0.5, np.nan, np.inf, -np.inf, 1e30, 3.0], np.float32)
    most = 2**63 - 2
    assert comparable(times, False).tolist() == [2, -1, -(2**63), most, -(2**63) + 1, most, 3]
    data = HeteroData()
    data["a"].t = torch.arange(10)
    data["a", "to", "a"].edge_index = torch.stack([torch.arange(10), torch.full((10,), 9)])
    graph = open_parts(write_parts(data, tmp_path / "parts", 1))
    sampler = NeighborSampler(graph, (-1,), Route(), kind=kind_of(Sampling(time_attr="t"), graph.schema, "a"))
    seeds = NodeSamplerInput(None, torch.tensor([9, 9, 9]), torch.tensor([4.5, -1.0, 1e9]), "a")
    assert sampler.sample_from_nodes(seeds).num_sampled_edges == {("a", "to", "a"): [5 + 0 + 10]}
    with pytest.raises(ValueError, match="seed 9 of a .* has no time"):
        sampler.sample_from_nodes(NodeSamplerInput(None, torch.tensor([9]), torch.tensor([np.nan]), "a"))


@pytest.mark.parametrize("count", [0, 1, 40])
def test_types_without_nodes_or_edges_are_drawn_from(tmp_path, count):
    data = dated_graph(0, False, 3, count, frozenset(["b", RELATIONS[0]]))
    data["b"].num_nodes, data["b"].t = 0, torch.empty(0, dtype=torch.long)
    for relation in RELATIONS[1:]:
        data[relation].edge_index = torch.empty(2, 0, dtype=torch.long)
    sampling = Sampling(fanout=(2, 2), time_attr="t", seed_time="born")
    graph = open_parts(write_parts(data, tmp_path / "parts", 2))
    sampler = NeighborSampler(graph, (2, 2), Route(), kind=kind_of(sampling, graph.schema, "a"))
    drawn = sampler.sample("a", np.arange(3), epoch=0, step=0, times=np.array([9, 9, 9]))
    assert len(drawn.nodes["b"]) == 0 and len(drawn.edge_id[RELATIONS[1]]) == 0
    nothing = sampler.sample("a", np.empty(0, np.int64), epoch=0, step=0, times=np.empty(0, np.int64))
    assert all(len(ids) == 0 for ids in nothing.nodes.values())
