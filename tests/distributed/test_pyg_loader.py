"""PyG's own NodeLoader over the stores of a partitioned graph makes the batches of this package's."""

from __future__ import annotations

import os
import re
from typing import Any, cast

import pytest
import torch
from torch_geometric.data import FeatureStore, GraphStore, HeteroData
from torch_geometric.loader import NodeLoader as PygNodeLoader
from torch_geometric.sampler import BaseSampler, HeteroSamplerOutput, NodeSamplerInput

from disttrain.config import ExperimentError, Sampling, Share
from disttrain.graph.schema import Wants
from disttrain.sampling import NeighborSampler, NodeLoader, Route, split_seeds
from disttrain.sampling.kind import seed_time_attribute
from disttrain.sampling.stores import GraphEdges, GraphFeatures, marked_nodes, pyg_node_loader
from disttrain.world import World
from tests.agents import REPOSITORY
from tests.graphs import dated_zoo, open_parts, write_parts, zoo
from tests.ranks import run_ranks

WANTS = Wants(
    nodes={"paper": ("x", "y", "at", "train_mask"), "venue": ("x", "flag"), "lonely": ("x",)},
    edges={("paper", "cites", "paper"): ("edge_attr", "w"), ("author", "writes", "paper"): ("kind",)},
    degrees=frozenset({("author", "writes", "paper")}),
)
KINDS: dict[str, dict[str, Any]] = {
    "uniform": dict(fanout=(4, 3)),
    "weights": dict(fanout={"default": (3, Share(ratio=0.5)), "paper,cites,paper": (5, 0)}, weight_attr="w"),
    "trees": dict(fanout=(4, -1), disjoint=True, replace=True),
    "times": dict(fanout=(4, 3), time_attr="at", temporal_strategy="last"),
}


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dated")
    return {n: str(write_parts(dated_zoo(), folder / str(n), n)) for n in (1, 3)}


def _tensors(batch: HeteroData) -> dict:
    return {
        (key, name): (value.dtype, value.tolist()) if torch.is_tensor(value) else value
        for key, store in [*batch.node_items(), *batch.edge_items()]
        for name, value in store.items()
        if value is not None
    }


def _both(world: World, directory: str, kind: str, workers: int) -> int:
    graph = open_parts(directory, world.machine, world.num_machines)
    sampling = Sampling(batch_size=16, workers=workers, **KINDS[kind])
    seeds = split_seeds(world, graph, "paper", "train_mask", seed_time_attribute(sampling))
    loader = NodeLoader(
        world, graph, "paper", seeds, sampling=sampling, run_seed=5, wants=WANTS, training=True
    )  # fmt: skip
    compared = 0
    with world.exchange_groups(1) as groups:
        route = Route(world, groups[0] if groups else None)
        for epoch in (0, 2):
            shares = loader._shares(epoch)
            options: dict[str, Any] = {}
            if seeds.times is not None and epoch:  # else the attribute is read
                options["input_time"] = torch.from_numpy(seeds.times)
            theirs = pyg_node_loader(
                graph, "paper", torch.from_numpy(seeds.ids), sampling=sampling, wants=WANTS, run_seed=5, route=route,
                batch_sampler=[shares.of(step, world.rank).tolist() for step in range(len(shares))], **options,
            )  # fmt: skip
            assert type(theirs) is PygNodeLoader
            theirs.node_sampler.set_epoch(epoch)  # pyright: ignore[reportAttributeAccessIssue]
            for ours, other in zip(loader.batches(epoch), theirs, strict=True):
                assert set(other.node_types) == set(ours.node_types) and other.edge_types == ours.edge_types
                expected, found = _tensors(ours), _tensors(other)
                if not options:
                    expected.pop(("paper", "seed_time"), None)
                assert found == expected
                compared += 1
    return compared


def _all_kinds(world: World, directory: str) -> list[int]:
    return [_both(world, directory, kind, 1) for kind in KINDS]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_every_tensor_is_the_same_on_one_machine(parts, kind, workers):
    with World.start(device="cpu", timeout=30) as world:
        assert _both(world, parts[3], kind, workers) == 2 * 7


@pytest.mark.parametrize(("machines", "steps"), [(2, 4), (3, 3)])
def test_every_tensor_is_the_same_on_several_machines(parts, machines, steps):
    assert run_ranks(_all_kinds, machines, parts[3], timeout=120) == [[2 * steps] * len(KINDS)] * machines


def test_sampler_and_stores_are_what_pyg_asks_for(parts):
    graph, raw = open_parts(parts[3]), dated_zoo()
    features, edges = cast(Any, GraphFeatures(graph)), cast(Any, GraphEdges(graph))
    sampler = NeighborSampler(graph, (2, 2), Route(), disjoint=True)
    expected: list[tuple[Any, type]] = [(features, FeatureStore), (edges, GraphStore), (sampler, BaseSampler)]
    assert all(isinstance(thing, interface) for thing, interface in expected)
    out = sampler.sample_from_nodes(NodeSamplerInput(None, torch.tensor([3, 3]), None, "paper"))
    assert isinstance(out, HeteroSamplerOutput) and out.batch is not None
    assert out.batch["paper"][:2].tolist() == [0, 1]
    named = {(attr.group_name, attr.attr_name) for attr in features.get_all_tensor_attrs()}
    assert {("paper", "n_id"), ("lonely", "x"), (("paper", "cites", "paper"), "edge_attr")} <= named
    original = features.get_tensor("paper", "n_id", None)
    assert torch.equal(features["paper", "x", None], raw["paper"].x[original])
    assert torch.equal(
        features.get_tensor("venue", "x", torch.tensor([1])),
        raw["venue"].x[features.get_tensor("venue", "n_id", torch.tensor([1]))],
    )
    assert features.get_tensor("paper", "y", slice(2, 5)).tolist() == raw["paper"].y[original[2:5]].tolist()
    assert features.get_tensor_size("venue", "x") == (5, 2, 5) and features.get_tensor_size("venue", "no") is None
    assert (
        marked_nodes(graph, "paper", "val_mask").tolist() == raw["paper"].val_mask[original].nonzero().view(-1).tolist()
    )
    for edge_type in raw.edge_types:
        row, colptr, _ = (found[edge_type] for found in edges.csc([edge_type]))
        col = torch.repeat_interleave(torch.arange(len(colptr) - 1), colptr.diff())
        source, target = (features.get_tensor(t, "n_id", None) for t in (edge_type[0], edge_type[2]))
        ours = sorted(zip(source[row].tolist(), target[col].tolist(), strict=True))
        assert ours == sorted(map(tuple, raw[edge_type].edge_index.t().tolist()))
    with pytest.raises(NotImplementedError, match="read only"):
        features.put_tensor(torch.zeros(1), "paper", "z", None)


def test_settings_that_do_not_fit_the_graph_are_refused(parts):
    with pytest.raises(ExperimentError, match="no relation has an edge attribute `weight`"):
        pyg_node_loader(
            open_parts(parts[1]), "paper", torch.arange(3), sampling=Sampling(fanout=(2,), weight_attr="weight")
        )


def test_a_seed_without_time_is_refused(parts):
    loader = pyg_node_loader(
        open_parts(parts[1]), "venue", torch.arange(5), sampling=Sampling(fanout=(2,), time_attr="at", batch_size=2)
    )
    with pytest.raises(ValueError, match="seed 2 of venue"):
        list(loader)


def _blocks() -> list[str]:
    page = (REPOSITORY / "docs" / "with_pyg_loaders.md").read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", page, re.DOTALL)


def test_an_attribute_that_is_called_as_one_of_batches_takes_nobodys_place(tmp_path):
    data = zoo()
    data["paper"].n_id = -torch.arange(data["paper"].num_nodes)
    graph, seeds = open_parts(write_parts(data, tmp_path / "parts", 1)), torch.arange(3)
    with pytest.raises(ExperimentError, match='attribute "n_id" of node type "paper" cannot be in mini-batches'):
        pyg_node_loader(graph, "paper", seeds, sampling=Sampling())
    loader = pyg_node_loader(graph, "paper", seeds, sampling=Sampling(), wants=Wants(nodes={"paper": ("x",)}))
    batch = next(iter(loader))
    assert batch["paper"].n_id.min() >= 0 and torch.equal(batch["paper"].x, data["paper"].x[batch["paper"].n_id])


def test_the_code_of_the_page_runs(tmp_path, monkeypatch):
    write_parts(zoo(), tmp_path / "partitions", 2)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in _blocks():
        exec(compile(block, "docs/with_pyg_loaders.md", "exec"), names)
    assert names["batch"]["paper"].batch_size > 0 and names["x"].shape == (3, 3)


def _page_on_a_machine(world: World, directory: str) -> int:
    os.chdir(directory)
    names: dict[str, Any] = {}
    first, *_, last = _blocks()
    body = last.replace('with World.start(device="cpu") as world, world', "with world")
    exec(compile(first.split("graph = ")[0] + "from disttrain.sampling import Route\n", "imports", "exec"), names)
    names["world"] = world
    exec(compile(body.replace("...", "counted = len(batches)"), "docs/with_pyg_loaders.md", "exec"), names)
    return names["counted"]


def test_the_code_of_the_page_runs_on_two_machines(tmp_path):
    write_parts(zoo(), tmp_path / "partitions", 2)
    assert run_ranks(_page_on_a_machine, 2, str(tmp_path)) == [1, 1]


def test_the_edges_of_a_machine_lead_to_its_own_nodes(parts):
    raw, seen = dated_zoo(), []
    for machine in range(3):
        graph = open_parts(parts[3], machine, 3)
        row, colptr = cast(Any, GraphEdges(graph)).get_edge_index(("paper", "cites", "paper"), "csc")
        col = torch.repeat_interleave(torch.arange(len(colptr) - 1), colptr.diff())
        low, high = graph.node_books["paper"].range_of(machine)
        assert len(colptr) == 212 and ((low <= col) & (col < high)).all() and len(col) == len(row)
        original = torch.from_numpy(graph.original_ids("paper").copy())
        seen += zip(original[row].tolist(), original[col].tolist(), strict=True)
    assert sorted(seen) == sorted(map(tuple, raw["paper", "cites", "paper"].edge_index.t().tolist()))
