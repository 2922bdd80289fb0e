"""hetero_conv: blocks compute what the whole graph would, and every parameter gets a finite gradient on any batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import HeteroData

from disttrain import config
from disttrain.config import ExperimentError
from disttrain.config.aggregation import PLAIN
from disttrain.models import build_model
from disttrain.models.blocks import Block, blocks, needed_types
from disttrain.models.convs import RelationBlock
from disttrain.models.hetero_conv import HeteroConv, HeteroConvLayer

from .small_batches import batch_of, random_graph, schema_of

RELATIONS = {
    "every kind": {
        "author,writes,paper": {"conv": "gat", "heads": 2, "aggr": "max"},
        "paper,cites,paper": {"conv": "gcn"},
        "venue,of,paper": {"conv": "sage", "aggr": "softmax"},
        "paper,written_by,author": {"conv": "gcn"},
    },
    "the others": {
        "author,writes,paper": {"conv": "gatv2", "heads": 2},
        "paper,cites,paper": {"conv": "gin"},
        "venue,of,paper": {"conv": "graph", "aggr": ["mean", "std", "max"], "aggr_mode": "proj"},
        "paper,written_by,author": {"conv": "gin", "edge_attr": False},
    },
}


def statistics(data: HeteroData) -> Any:
    def of(node_type: str, name: str) -> tuple[np.ndarray, np.ndarray]:
        values = data[node_type][name].double().numpy()
        return np.nanmean(values, axis=0).astype(np.float32), np.nanstd(values, axis=0).astype(np.float32)

    return of


def build(data: HeteroData, **settings: Any) -> HeteroConv:
    torch.manual_seed(1)
    model = config.HeteroConvModel.model_validate({"kind": "hetero_conv", "hidden": 8, **settings})
    built = build_model(model, schema_of(data), "paper", 3, statistics(data))
    assert isinstance(built, HeteroConv)
    return built


def check_gradients(model: torch.nn.Module, loss: torch.Tensor) -> None:
    model.zero_grad(set_to_none=True)
    loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, f"{name} has no gradient"
        assert parameter.grad.isfinite().all(), f"{name} has a gradient that is not finite"


def empty_of_edges(batch: HeteroData) -> HeteroData:
    batch = batch.clone()
    for t in batch.node_types:
        seeds = batch[t].num_sampled_nodes[0]
        batch[t].num_sampled_nodes = [seeds, *[0 for _ in batch[t].num_sampled_nodes[1:]]]
        for name, value in list(batch[t].items()):
            if isinstance(value, torch.Tensor):
                batch[t][name] = value[:seeds]
        batch[t].num_nodes = seeds
    for e in batch.edge_types:
        batch[e].edge_index = batch[e].edge_index[:, :0]
        batch[e].num_sampled_edges = [0 for _ in batch[e].num_sampled_edges]
        batch[e].src_degree = batch[e].src_degree[: batch[e[0]].num_nodes]
        batch[e].dst_degree = batch[e].dst_degree[: batch[e[2]].num_nodes]
        if "edge_attr" in batch[e]:
            batch[e].edge_attr = batch[e].edge_attr[:0]
    return batch


def test_blocks_are_prefixes() -> None:
    batch = batch_of(random_graph(), "paper", [3, 1], layers=2, fanout=2)
    first, last = blocks(batch, 2)
    assert last.num_dst["paper"] == 2
    assert last.num_dst["author"] == 0
    assert first.num_dst == last.num_src
    assert first.num_src["paper"] == batch["paper"].num_nodes
    edge_type = ("author", "writes", "paper")
    assert torch.equal(first.edge_index[edge_type], batch[edge_type].edge_index)
    assert last.num_edges(edge_type) == batch[edge_type].num_sampled_edges[0]
    pointer = first.pointer(edge_type)
    counts = torch.bincount(first.edge_index[edge_type][1], minlength=first.num_dst["paper"])
    assert torch.equal(pointer[1:] - pointer[:-1], counts)


def test_needed_types() -> None:
    edge_types = [("a", "to", "b"), ("b", "to", "c"), ("c", "to", "d")]
    assert needed_types(edge_types, "c", 2) == [{"a", "b", "c"}, {"b", "c"}, {"c"}]


@pytest.mark.parametrize("conv", ["sage", "gat", "gcn"])
def test_what_cannot_matter_has_no_parameters(conv: str) -> None:
    names = [name for name, _ in build(random_graph(), conv=conv, layers=1).named_parameters()]
    assert not any("island" in name for name in names)
    assert not any("written_by" in name for name in names)
    assert any("writes" in name for name in names)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"conv": "gat"},
        {"conv": "gcn"},
        {"relations": RELATIONS["every kind"]},
        {"relations": RELATIONS["the others"], "relation_aggr": "cat", "jumping_knowledge": "cat"},
        {"conv": "gin", "jumping_knowledge": "lstm"},
        {"conv": "gatv2", "jumping_knowledge": "max"},
    ],
)
def test_seeds_get_what_the_whole_graph_gives_them(settings: dict[str, Any]) -> None:
    data = random_graph()
    model = build(data, layers=3, residual=True, norm="layer", **settings).eval()
    whole = model(batch_of(data, "paper", list(range(30)), layers=3))
    some = model(batch_of(data, "paper", [7, 2, 29], layers=3))
    torch.testing.assert_close(some, whole[[7, 2, 29]], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("precision", [None, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("seeds", [[], [5], [1, 2, 3]])
@pytest.mark.parametrize("edges", [True, False])
@pytest.mark.parametrize(
    "settings",
    [
        {"norm": "batch", "relation_aggr": "attention"},
        {"conv": "gat", "heads": 2, "residual": True, "norm": "layer", "relation_aggr": "max"},
        {"relations": RELATIONS["the others"], "jumping_knowledge": "lstm", "l2_normalize": True},
        {"conv": "gcn", "relation_aggr": "mean", "l2_normalize": True, "inputs": {"project": False}},
        {"relations": RELATIONS["every kind"], "dropout": 0.5, "relation_aggr": "attention"},
        {
            "conv": "gatv2",
            "heads": 2,
            "relation_aggr": "cat",
            "inputs": {"layer_norm": True, "dropout": 0.5, "embedding_dim": 3},
        },
    ],
)
def test_every_parameter_always_has_a_finite_gradient(
    settings: dict[str, Any], edges: bool, seeds: list[int], precision: torch.dtype | None
) -> None:
    data = random_graph(edge_attr=True)
    model = build(data, **settings)
    batch = batch_of(data, "paper", seeds, layers=2, fanout=3)
    if not edges:
        batch = empty_of_edges(batch)
    with torch.autocast("cpu", precision or torch.bfloat16, enabled=precision is not None):
        out = model(batch)
    assert out.shape == (len(seeds), 3)
    assert out.isfinite().all()
    check_gradients(model, out.float().square().sum())


@pytest.mark.parametrize("aggr", PLAIN)
@pytest.mark.parametrize("conv", ["sage", "gat"])
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_every_aggregation_has_finite_gradients(conv: str, aggr: str, precision: torch.dtype) -> None:
    data = random_graph(edge_attr=True)
    relations = {f"{s},{r},{d}": {"aggr": aggr} for s, r, d in data.edge_types if d != "island"}
    model = build(data, conv=conv, relations=relations)
    whole = batch_of(data, "paper", [5, 6], layers=2, fanout=3)
    for batch in (whole, empty_of_edges(whole), batch_of(data, "paper", [], layers=2)):
        with torch.autocast("cpu", torch.bfloat16, enabled=precision != torch.float32):
            out = model(batch)
        assert out.isfinite().all()
        check_gradients(model, out.float().sum())


def test_edge_attributes_without_columns_are_none() -> None:
    data = random_graph(edge_attr=True)
    for edge_type in data.edge_types:
        data[edge_type].edge_attr = torch.empty(data[edge_type].num_edges, 0)
    model = build(data, conv="gat")
    assert not any(model.wants.edges.values())
    check_gradients(model, model(batch_of(data, "paper", [5, 6], layers=2)).sum())


def test_attention_leaves_out_relations_without_edges() -> None:
    """A node that only citations reach gets the same vector as if there were no other relation."""
    data = random_graph()
    data["author", "writes", "paper"].edge_index = torch.empty(2, 0, dtype=torch.int64)
    data["venue", "of", "paper"].edge_index = torch.empty(2, 0, dtype=torch.int64)
    model = build(data, layers=1, relation_aggr="attention").eval()
    batch = batch_of(data, "paper", list(range(30)), layers=1)
    layer, block = model.layers()[0], blocks(batch, 1)[0]
    assert isinstance(layer, HeteroConvLayer)
    x = model.inputs(batch)
    cites = ("paper", "cites", "paper")
    relation = RelationBlock(block, cites, batch)
    alone = layer.by_relation[cites](x["paper"], x["paper"], relation) + layer.own["paper"](x["paper"])
    reached = block.pointer(cites).diff() > 0
    assert 0 < int(reached.sum()) < 30
    torch.testing.assert_close(layer(x, block, batch)["paper"][reached], alone.relu()[reached], atol=1e-6, rtol=0)
    only_own = layer.own["paper"](x["paper"]).relu()
    torch.testing.assert_close(layer(x, block, batch)["paper"][~reached], only_own[~reached], atol=1e-6, rtol=0)


def test_wants_only_what_it_uses() -> None:
    data = random_graph(edge_attr=True)
    wants = build(
        data, layers=1, relations={"author,writes,paper": {"conv": "gat"}, "venue,of,paper": {"conv": "gcn"}}
    ).wants
    assert wants.nodes == {"paper": ("x",), "author": ("x",), "venue": ()}
    assert wants.edges == {("author", "writes", "paper"): ("edge_attr",)}
    assert wants.degrees == {("venue", "of", "paper")}


def test_first_weights_do_not_depend_on_the_batch_or_rank() -> None:
    first, second = build(random_graph()).state_dict(), build(random_graph()).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(
    ("relations", "message"),
    [
        ({"author,write,paper": {"conv": "gat"}}, 'no relation "author,write,paper"'),
        ({"paper,in,island": {"conv": "gat"}}, "never reaches the seeds"),
    ],
)
def test_relations_that_do_not_fit_are_refused(relations: dict[str, Any], message: str) -> None:
    with pytest.raises(ExperimentError, match=message):
        build(random_graph(), relations=relations)


def test_layer_by_layer_over_the_whole_graph_equals_a_batch() -> None:
    data = random_graph()
    model = build(data, layers=2, relations=RELATIONS["every kind"], l2_normalize=True).eval()
    whole = batch_of(data, "paper", list(range(30)), layers=2)
    for t in whole.node_types:  # in the graph's own order, with all of its nodes
        whole[t].n_id = torch.arange(data[t].num_nodes)
        whole[t].num_nodes = data[t].num_nodes
        if "x" in data[t]:
            whole[t].x = data[t].x
    block = Block({}, {}, {})
    for e in whole.edge_types:
        order = data[e].edge_index[1].argsort(stable=True)
        block.edge_index[e] = data[e].edge_index[:, order]
        whole[e].src_degree = torch.bincount(data[e].edge_index[0], minlength=data[e[0]].num_nodes)
        whole[e].dst_degree = torch.bincount(data[e].edge_index[1], minlength=data[e[2]].num_nodes)
    block.num_src.update({t: data[t].num_nodes for t in data.node_types})
    block.num_dst.update(block.num_src)
    x, states = model.inputs(whole), []
    for layer in model.layers():
        x = layer(x, block, whole)
        assert tuple(x) == layer.node_types
        states.append(x["paper"])
    logits = model.head(model.readout(states))
    some = model(batch_of(data, "paper", [7, 2, 29], layers=2))
    torch.testing.assert_close(some, logits[[7, 2, 29]], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"conv": "gin", "inputs": {"project": False}}, r"must be equally wide; here they are 5 and 6: set"),
        ({"relations": {"author,writes,paper": {"conv": "gat", "edge_attr": True}}}, "has no attribute edge_attr"),
        (
            {"relations": {"author,writes,paper": {"conv": "gcn", "edge_weight": "w"}}},
            'edge_weight is "w", but .* none',
        ),
        ({"aggr": {"kind": "set_transformer", "args": {"heads": 3}}}, r'relations\["author,writes,paper"\]: aggr set_'),
    ],
)
def test_options_that_do_not_fit_the_graph_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ExperimentError, match=message):
        build(random_graph(), **settings)


def test_edges_take_part_where_relations_have_what_is_named() -> None:
    data = random_graph()
    data["author", "writes", "paper"].edge_attr = torch.rand(60, 3)
    data["paper", "cites", "paper"].w = torch.rand(data["paper", "cites", "paper"].num_edges)
    writes, cites = ("author", "writes", "paper"), ("paper", "cites", "paper")
    assert build(data, layers=1, conv="graph", edge_weight="w").wants.edges == {cites: ("w",)}
    assert build(data, layers=1, conv="gatv2").wants.edges == {writes: ("edge_attr",)}
    assert build(data, layers=1, conv="gin", edge_attr=False).wants.edges == {}
    relations = {"author,writes,paper": {"conv": "graph", "edge_weight": "edge_attr"}}
    with pytest.raises(ExperimentError, match=r"has shape \[3\] per edge; expected one number"):
        build(data, relations=relations)
