"""Convolutions against PyG's own layers, GCN's estimate against the whole sum, and sums against finite differences."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch_geometric.nn import GATConv, GATv2Conv, GCNConv, GINConv, GINEConv, GraphConv, SAGEConv

from disttrain.models.blocks import blocks
from disttrain.models.convs import Convolution, Gat, Gcn, Gin, RelationBlock, Sage
from disttrain.models.neighbours import Edges, sum_neighbours

from .small_batches import batch_of, random_graph

WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")


def one_block(fanout: int = -1, edge_attr: bool = False) -> tuple[Any, Any]:
    data = random_graph(edge_attr=edge_attr)
    kept = data[WRITES].edge_index[1] != 3  # a destination without edges, and not the first: PyG's median fails there
    data[WRITES].update(
        {name: value[..., kept] if name == "edge_index" else value[kept] for name, value in data[WRITES].items()}
    )
    batch = batch_of(data, "paper", list(range(12)), layers=1, fanout=fanout)
    return batch, blocks(batch, 1)[0]


def run(conv: Convolution, x: torch.Tensor, own: torch.Tensor, edge_type: Any, batch: Any) -> torch.Tensor:
    """The convolution in the first block, by itself, and with the sum that the layer would have made for it."""
    relation = RelationBlock(blocks(batch, 1)[0], edge_type, batch)
    out = conv(x, own, relation)
    if conv.linear:
        _, (known,) = sum_neighbours(x, [conv.edges(relation)])
        torch.testing.assert_close(conv(x, own, relation, known), out, atol=1e-6, rtol=0)
    return out


@pytest.mark.parametrize("aggr", ["mean", "sum", "max", "min", "std", "var", "median"])
def test_sage_equals_pyg(aggr: Any) -> None:
    batch, block = one_block(fanout=2)
    assert int(block.pointer(WRITES).diff().min()) == 0
    x, own = torch.randn(batch["author"].num_nodes, 5, requires_grad=True), torch.randn(12, 6)
    ours = Sage(5, 4, aggr)
    theirs = SAGEConv((5, 6), 4, aggr=aggr, root_weight=False)
    theirs.lin_l.load_state_dict(ours.lin_l.state_dict())
    out = run(ours, x, own, WRITES, batch)
    expected = theirs((x, own), batch[WRITES].edge_index, size=(x.size(0), 12))
    torch.testing.assert_close(out, expected, atol=1e-6, rtol=0)
    weights = torch.randn_like(out)
    (gradient,) = torch.autograd.grad((out * weights).sum(), x)
    (expected_gradient,) = torch.autograd.grad((expected * weights).sum(), x)
    torch.testing.assert_close(gradient, expected_gradient, atol=1e-6, rtol=0)


@pytest.mark.parametrize("aggr", ["mean", "sum", "max", "min", "std"])
def test_graph_equals_pyg(aggr: Any) -> None:
    batch, _ = one_block(edge_attr=True)
    batch[WRITES].strength = batch[WRITES].edge_attr[:, 0].double()
    x, own = torch.randn(batch["author"].num_nodes, 5), torch.randn(12, 6)
    ours = Sage(5, 4, aggr, weight="strength")
    theirs = GraphConv((5, 6), 4, aggr=aggr)
    theirs.lin_rel.load_state_dict(ours.lin_l.state_dict())
    torch.nn.init.zeros_(theirs.lin_root.weight)
    expected = theirs((x, own), batch[WRITES].edge_index, batch[WRITES].strength.float(), size=(x.size(0), 12))
    torch.testing.assert_close(run(ours, x, own, WRITES, batch), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize(("version", "conv"), [(1, GATConv), (2, GATv2Conv)])
def test_gat_equals_pyg(version: int, conv: Any) -> None:
    batch, _ = one_block(edge_attr=True)
    x, own = torch.randn(batch["author"].num_nodes, 5), torch.randn(12, 6)
    ours = Gat((5, 6), 4, 2, None, within_type=False, attribute="edge_attr", edge_channels=3, version=version)
    theirs = conv((5, 6), 4, heads=2, concat=False, add_self_loops=False, edge_dim=3)
    theirs.load_state_dict(ours.conv.state_dict())
    expected = theirs((x, own), batch[WRITES].edge_index, batch[WRITES].edge_attr)
    torch.testing.assert_close(run(ours, x, own, WRITES, batch), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize(("version", "conv"), [(1, GATConv), (2, GATv2Conv)])
def test_gat_within_a_type_attends_to_itself_as_in_pyg(version: int, conv: Any) -> None:
    data = random_graph()
    batch = batch_of(data, "paper", list(range(30)), layers=1)
    x = torch.randn(30, 6)
    ours = Gat((6, 6), 4, heads=2, aggr=None, within_type=True, version=version)
    theirs = conv(6, 4, heads=2, concat=False)
    theirs.load_state_dict(ours.conv.state_dict())
    torch.testing.assert_close(run(ours, x, x, CITES, batch), theirs(x, data[CITES].edge_index), atol=1e-6, rtol=0)


@pytest.mark.parametrize("with_edges", [False, True])
def test_gin_equals_pyg(with_edges: bool) -> None:
    batch, _ = one_block(edge_attr=True)
    x, own = torch.randn(batch["author"].num_nodes, 5), torch.randn(12, 5)
    ours = Gin(5, 4, "edge_attr", 3) if with_edges else Gin(5, 4)
    torch.nn.init.constant_(ours.eps, 0.3)
    edge_index, attribute = batch[WRITES].edge_index, batch[WRITES].edge_attr
    if with_edges:
        theirs: Any = GINEConv(ours.mlp, eps=0.3, edge_dim=3)
        assert ours.lin is not None
        theirs.lin.load_state_dict(ours.lin.state_dict())
        expected = theirs((x, own), edge_index, attribute, size=(x.size(0), 12))
    else:
        expected = GINConv(ours.mlp, eps=0.3)((x, own), edge_index, size=(x.size(0), 12))
    torch.testing.assert_close(run(ours, x, own, WRITES, batch), expected, atol=1e-6, rtol=0)


def test_gcn_with_weights_is_the_weighted_normalised_adjacency() -> None:
    data = random_graph(edge_attr=True)
    batch = batch_of(data, "paper", list(range(30)), layers=1)
    ours = Gcn(5, 4, within_type=False, weight="edge_attr")
    batch[WRITES].edge_attr = batch[WRITES].edge_attr[:, :1]
    src, dst = batch[WRITES].edge_index
    degrees = batch[WRITES].src_degree[src] * batch[WRITES].dst_degree[dst]
    messages = batch["author"].x[src] * batch[WRITES].edge_attr / degrees.sqrt().unsqueeze(1)
    expected = ours.lin(torch.zeros(30, 5).index_add(0, dst, messages)) + ours.bias
    torch.testing.assert_close(
        run(ours, batch["author"].x, batch["paper"].x, WRITES, batch), expected, atol=1e-6, rtol=0
    )


def test_gcn_within_a_type_equals_pyg() -> None:
    data = random_graph()
    batch = batch_of(data, "paper", [4, 0, 17], layers=1)
    theirs, ours = GCNConv(6, 4), Gcn(6, 4, within_type=True)
    ours.load_state_dict(theirs.state_dict())
    x = batch["paper"].x
    out = run(ours, x, x[:3], CITES, batch)
    expected = theirs(data["paper"].x, data[CITES].edge_index)[[4, 0, 17]]
    torch.testing.assert_close(out, expected, atol=1e-6, rtol=0)


def test_gcn_between_types_is_the_normalised_adjacency() -> None:
    data = random_graph()
    batch = batch_of(data, "paper", list(range(30)), layers=1)
    ours = Gcn(5, 4, within_type=False)
    adjacency = torch.zeros(30, 20)
    src, dst = data[WRITES].edge_index
    adjacency[dst, src] = 1.0
    degree_in, degree_out = adjacency.sum(1).clamp(min=1), adjacency.sum(0).clamp(min=1)
    normalised = adjacency / degree_in.sqrt().unsqueeze(1) / degree_out.sqrt().unsqueeze(0)
    expected = ours.lin(normalised @ data["author"].x) + ours.bias
    out = run(ours, batch["author"].x, batch["paper"].x, WRITES, batch)
    torch.testing.assert_close(out, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("within_type", [False, True])
def test_gcn_of_drawn_neighbours_is_unbiased(within_type: bool) -> None:
    """Exactly: the mean over all draws of 2 of a node's 4 neighbours is the whole sum."""
    data = random_graph()
    edge_type = CITES if within_type else WRITES
    data[edge_type].edge_index = torch.tensor([[1, 2, 3, 4, 2], [0, 0, 0, 0, 5]])
    conv = Gcn(6 if within_type else 5, 4, within_type)
    x_type = edge_type[0]

    def out(fanout_of: Any) -> torch.Tensor:
        batch = batch_of(data, "paper", [0], layers=1)
        keep = torch.tensor([int(batch[x_type].n_id[i]) in fanout_of for i in batch[edge_type].edge_index[0]])
        batch[edge_type].edge_index = batch[edge_type].edge_index[:, keep]
        batch[edge_type].num_sampled_edges = [int(keep.sum())]
        return run(conv, batch[x_type].x, batch["paper"].x[:1], edge_type, batch)

    draws = [out(pair) for pair in itertools.combinations([1, 2, 3, 4], 2)]
    assert len(draws) == math.comb(4, 2)
    torch.testing.assert_close(torch.stack(draws).mean(0), out((1, 2, 3, 4)), atol=1e-6, rtol=0)


def test_sums_of_several_relations_have_the_right_gradient() -> None:
    def edges(src: list[int], dst: list[int], rows: int, **kind: Any) -> Edges:
        counts = torch.bincount(torch.tensor(dst, dtype=torch.int64), minlength=rows)
        pointer = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
        return Edges(torch.tensor(src, dtype=torch.int64), torch.tensor(dst, dtype=torch.int64), pointer, **kind)

    relations = [
        edges([3, 0, 0, 2], [0, 0, 2, 2], 3, mean=True),
        edges([1, 3, 3], [1, 1, 1], 2, weight=torch.tensor([0.5, -1.0, 2.0])),
        edges([], [], 2),
    ]
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)

    def all_sums(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        own, sums = sum_neighbours(x, relations, num_own=2)
        return own, *sums

    assert torch.autograd.gradcheck(all_sums, (x,))
    own, sums = sum_neighbours(x, relations, num_own=2)
    assert torch.equal(own, x[:2])
    torch.testing.assert_close(sums[0], torch.stack([(x[3] + x[0]) / 2, x[0] * 0, (x[0] + x[2]) / 2]))
    torch.testing.assert_close(sums[1], torch.stack([x[0] * 0, 0.5 * x[1] + x[3]]))
    for used in (own.sum(), sums[1].sum()):  # outputs that nothing used have no gradient to add
        (gradient,) = torch.autograd.grad(used, x, retain_graph=True)
        assert gradient.isfinite().all()
