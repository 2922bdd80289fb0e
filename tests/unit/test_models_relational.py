"""rgcn, rgat and hgt against PyG's own layers, on the whole graph and on sampled blocks; and D6 for each."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch_geometric.data import HeteroData
from torch_geometric.nn import HGTConv, RGATConv, RGCNConv

from disttrain import config
from disttrain.config import ExperimentError
from disttrain.models import build_model
from disttrain.models.blocks import Block, blocks
from disttrain.models.grouped import grouped_matmul
from disttrain.models.hgt import HgtLayer
from disttrain.models.layered import LayeredModel, relations_into
from disttrain.models.rgat import RgatLayer
from disttrain.models.rgcn import RgcnLayer

from .small_batches import batch_of, random_graph, schema_of
from .test_models_hetero_conv import check_gradients, empty_of_edges

TYPES = ("paper", "author")
SETTINGS: dict[str, type[config.Layered]] = {
    "rgcn": config.RgcnModel,
    "rgat": config.RgatModel,
    "hgt": config.HgtModel,
}
KINDS: list[dict[str, Any]] = [
    {"kind": "rgcn"},
    {"kind": "rgcn", "head": False, "dropout": 0.5, "norm": "layer"},
    {"kind": "rgcn", "bases": 2, "norm": "layer"},
    {"kind": "rgcn", "blocks": 4, "residual": True, "jumping_knowledge": "cat"},
    {"kind": "rgcn", "self_loop": False, "inputs": {"embedding_dim": 3}},
    {"kind": "rgat", "heads": 2},
    {"kind": "rgat", "heads": 4, "attention": "within", "score": "multiplicative", "bases": 3, "norm": "batch"},
    {"kind": "rgat", "edge_attr": False},
    {"kind": "rgat", "blocks": 2, "self_loop": False, "dropout": 0.5, "attention_dropout": 0.5},
    {"kind": "hgt", "heads": 2, "norm": "layer", "jumping_knowledge": "lstm"},
    {"kind": "hgt", "heads": 1, "residual": True, "inputs": {"project": False}, "jumping_knowledge": "max"},
]


def build(data: HeteroData, target: str = "paper", **settings: Any) -> LayeredModel:
    torch.manual_seed(1)
    model = SETTINGS[settings["kind"]].model_validate({"hidden": 8, **settings})
    built = build_model(model, schema_of(data), target, 3, lambda node_type, name: None)  # type: ignore[arg-type]
    assert isinstance(built, LayeredModel)
    return built


def one_block(
    fanout: int, edge_attr: bool = False
) -> tuple[HeteroData, Block, list[tuple[str, str, str]], dict[str, torch.Tensor]]:
    """Papers and authors from all types; some destinations without neighbours of a relation, or of any."""
    data = random_graph(edge_attr=edge_attr)
    batch = batch_of(data, "paper", list(range(12)), layers=2, fanout=fanout)
    block = blocks(batch, 2)[0]
    edge_types = relations_into(schema_of(data), TYPES)
    assert any(int(block.pointer(e).diff().min()) == 0 for e in edge_types)
    x = {t: torch.randn(block.num_src[t], 8) for t in ("paper", "author", "venue")}
    return batch, block, edge_types, x


def homogeneous(block: Block, edge_types: list[Any], x: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """All vectors, all edges, each edge's relation: as PyG's relational layers want them."""
    begin, first = {}, 0
    for t, vectors in x.items():
        begin[t], first = first, first + vectors.size(0)
    index, kind = [], []
    for number, e in enumerate(edge_types):
        index.append(block.edge_index[e] + torch.tensor([[begin[e[0]]], [begin[e[2]]]]))
        kind.append(torch.full((block.num_edges(e),), number))
    return torch.cat(list(x.values())), torch.cat(index, dim=1), torch.cat(kind)


def of_types(out: torch.Tensor, block: Block, x: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    parts = dict(zip(x, out.split([vectors.size(0) for vectors in x.values()])))
    return {t: parts[t][: block.num_dst[t]] for t in TYPES}


def assert_same(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    assert tuple(ours) == TYPES
    for t in TYPES:
        torch.testing.assert_close(ours[t], theirs[t], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("fanout", [-1, 2])
@pytest.mark.parametrize("fewer", [{}, {"bases": 3}, {"blocks": 2}])
def test_rgcn_equals_pyg(fewer: dict[str, int], fanout: int) -> None:
    batch, block, edge_types, x = one_block(fanout)
    settings = config.RgcnModel.model_validate({"kind": "rgcn", "hidden": 6, "activation": "none", **fewer})
    ours = RgcnLayer(settings, edge_types, 8, TYPES)
    theirs = RGCNConv(8, 6, len(edge_types), num_bases=fewer.get("bases"), num_blocks=fewer.get("blocks"))
    torch.nn.init.normal_(theirs.bias)  # type: ignore[arg-type]
    weights = {"bias": theirs.bias, "root": theirs.root, "matrices.weight": theirs.weight}
    if "bases" in fewer:
        weights["matrices.comp"] = theirs.comp
    ours.load_state_dict(weights)  # type: ignore[arg-type]
    expected = of_types(theirs(*homogeneous(block, edge_types, x)), block, x)
    assert_same(ours(x, block, batch), expected)


@pytest.mark.parametrize("bases", [None, 3])
def test_rgcn_of_nodes_without_features_equals_pyg(bases: int | None) -> None:
    """Types without features are one-hot: PyG's layer without x, whose matrices have a row per node."""
    data = random_graph()
    for t in data.node_types:
        data[t].num_nodes = data[t].num_nodes
        data[t].pop("x", None)
    model = build(data, kind="rgcn", bases=bases, layers=1)
    batch = batch_of(data, "paper", [4, 9, 17], layers=1)
    block, layer = blocks(batch, 1)[0], model.layers()[0]
    assert isinstance(layer, RgcnLayer)
    update: Any = layer.update["paper"]
    update.activation = None
    edge_types = relations_into(schema_of(data), ["paper"])
    theirs = RGCNConv(sum(data[t].num_nodes for t in ("paper", "author", "venue")), 8, len(edge_types), num_bases=bases)
    begin = {"paper": 0, "author": 30, "venue": 50}
    with torch.no_grad():
        theirs.weight.zero_()
        for t, first in begin.items():
            table = model.inputs.types[t].embedding.weight.view(data[t].num_nodes, -1, 8)  # type: ignore
            last = first + data[t].num_nodes
            theirs.root[first:last] = table[:, -1]  # type: ignore[index]
            if bases is not None:
                theirs.weight[:, first:last] = table[:, :bases].transpose(0, 1)
                continue
            leaving = [number for number, e in enumerate(edge_types) if e[0] == t]
            for slot, number in enumerate(leaving):
                theirs.weight[number, first:last] = table[:, slot]
        if bases is not None:
            assert layer.comp is not None
            for e, of_relation in zip(layer.by_rows, layer.comp):
                theirs.comp[edge_types.index(e)] = of_relation
    index = [data[e].edge_index + torch.tensor([[begin[e[0]]], [begin[e[2]]]]) for e in edge_types]
    kind = torch.cat([torch.full((data[e].num_edges,), number) for number, e in enumerate(edge_types)])
    expected = theirs(None, torch.cat(index, dim=1), kind)[[4, 9, 17]]
    out = layer(model.inputs(batch), block, batch)["paper"]
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("fanout", [-1, 2])
@pytest.mark.parametrize("fewer", [{}, {"bases": 3}, {"blocks": 2}])
@pytest.mark.parametrize("attention", ["across", "within"])
@pytest.mark.parametrize("score", ["additive", "multiplicative"])
def test_rgat_equals_pyg(fewer: dict[str, int], attention: str, score: str, fanout: int) -> None:
    batch, block, edge_types, x = one_block(fanout)
    settings = config.RgatModel.model_validate(
        {"kind": "rgat", "hidden": 6, "heads": 3, "activation": "none", "attention": attention, "score": score,
         "self_loop": False, **fewer}
    )  # fmt: skip
    ours = RgatLayer(settings, edge_types, 8, TYPES)
    theirs = RGATConv(
        8, 2, len(edge_types), heads=3, attention_mechanism=f"{attention}-relation",
        attention_mode=f"{score}-self-attention", num_bases=fewer.get("bases"), num_blocks=fewer.get("blocks"),
    )  # fmt: skip
    weights = {"bias": torch.randn(6), "q": theirs.q, "k": theirs.k}
    if "bases" in fewer:
        weights |= {"matrices.weight": theirs.basis, "matrices.comp": theirs.att}
    else:
        weights["matrices.weight"] = theirs.weight
    theirs.bias.data.copy_(weights["bias"])  # type: ignore[union-attr]
    ours.load_state_dict(weights)
    expected = of_types(theirs(*homogeneous(block, edge_types, x)), block, x)
    assert_same(ours(x, block, batch), expected)


@pytest.mark.parametrize("attention", ["across", "within"])
@pytest.mark.parametrize("score", ["additive", "multiplicative"])
def test_rgat_with_edge_attributes_equals_pyg(attention: str, score: str) -> None:
    batch, block, edge_types, x = one_block(-1, edge_attr=True)
    settings = config.RgatModel.model_validate(
        {"kind": "rgat", "hidden": 6, "heads": 3, "activation": "none", "attention": attention, "score": score,
         "self_loop": False}
    )  # fmt: skip
    ours = RgatLayer(settings, edge_types, 8, TYPES, dict.fromkeys(edge_types, 3))
    theirs = RGATConv(
        8, 2, len(edge_types), heads=3, attention_mechanism=f"{attention}-relation",
        attention_mode=f"{score}-self-attention", edge_dim=3,
    )  # fmt: skip
    assert theirs.lin_edge is not None and theirs.e is not None
    of_edges = (theirs.lin_edge.weight.t() @ theirs.e).t()
    weights = {name: of_edges for name in ours.state_dict() if name.startswith("e.")}
    assert len(weights) == len(edge_types)
    ours.load_state_dict(
        {**weights, "bias": theirs.bias, "q": theirs.q, "k": theirs.k, "matrices.weight": theirs.weight}
    )  # type: ignore[arg-type]
    whole = homogeneous(block, edge_types, x)
    edge_attr = torch.cat([block.edge_attribute(batch, e) for e in edge_types])
    assert_same(ours(x, block, batch), of_types(theirs(*whole, edge_attr), block, x))

    # A relation without attributes: nothing is added there, or a factor of one.
    bare, *others = edge_types
    some = RgatLayer(settings, edge_types, 8, TYPES, dict.fromkeys(others, 3))
    some.load_state_dict({n: w for n, w in ours.state_dict().items() if n in some.state_dict()})
    nothing = torch.zeros(3) if score == "additive" else torch.linalg.lstsq(of_edges, torch.ones(3)).solution
    edge_attr[: block.num_edges(bare)] = nothing
    del batch[bare].edge_attr
    assert_same(some(x, block, batch), of_types(theirs(*whole, edge_attr), block, x))


@pytest.mark.parametrize("precision", [None, torch.float16])
def test_rgat_learns_from_edge_attributes_on_every_batch(precision: Any) -> None:
    """Of unequal widths, one relation without, and some values missing."""
    data = random_graph(edge_attr=True)
    del data["venue", "of", "paper"].edge_attr
    data["paper", "cites", "paper"].edge_attr = data["paper", "cites", "paper"].edge_attr[:, 0]
    data["author", "writes", "paper"].edge_attr[::5] = float("nan")
    model = build(data, kind="rgat", heads=2)
    assert set(model.wants.edges) == {e for e in data.edge_types if "edge_attr" in data[e] and e[2] != "island"}
    some = batch_of(data, "paper", [1, 2, 3], layers=2, fanout=3)
    for batch in (some, batch_of(data, "paper", [], layers=2), empty_of_edges(some)):
        with torch.autocast("cpu", torch.float16, enabled=precision is not None):
            out = model(batch)
        assert out.isfinite().all()
        check_gradients(model, out.float().square().sum())
    other = batch_of(data, "paper", [1, 2, 3], layers=2, fanout=3)
    other["paper", "cites", "paper"].edge_attr += 1
    assert not torch.equal(model(other), model(some))
    with pytest.raises(ExperimentError, match=r"model.edge_attr is true, but venue,of,paper has no attribute"):
        build(data, kind="rgat", edge_attr=True)


@pytest.mark.parametrize("fanout", [-1, 2])
@pytest.mark.parametrize("in_channels", [6, 8])
def test_hgt_equals_pyg(in_channels: int, fanout: int) -> None:
    batch, block, edge_types, x = one_block(fanout)
    x = {t: vectors[:, :in_channels].contiguous() for t, vectors in x.items()}
    settings = config.HgtModel(kind="hgt", hidden=6, heads=3)
    ours: Any = HgtLayer(settings, edge_types, dict.fromkeys(x, in_channels), TYPES)
    theirs: Any = HGTConv(in_channels, 6, (list(x), edge_types), heads=3)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.normal_()
        for t in x:
            of_t = theirs.kqv_lin.lins[t]
            key, value = ours.key_value[t].weight.chunk(2)
            key_bias, value_bias = ours.key_value[t].bias.chunk(2)
            query = ours.query[t] if t in TYPES else torch.nn.Linear(in_channels, 6)
            of_t.weight.copy_(torch.cat([key, query.weight, value]))
            of_t.bias.copy_(torch.cat([key_bias, query.bias, value_bias]))
            if t in TYPES:
                theirs.out_lin.lins[t].load_state_dict(ours.out[t].state_dict())
                if ours.gated:
                    theirs.skip[t].copy_(ours.skip[TYPES.index(t)])
        for number, e in enumerate(edge_types):
            theirs.p_rel["__".join(e)].copy_(ours.prior[number])
            for head in range(3):  # theirs are numbered head by head
                theirs.k_rel.weight[head * len(edge_types) + number].copy_(ours.key_matrix[number, head])
                theirs.v_rel.weight[head * len(edge_types) + number].copy_(ours.value_matrix[number, head])
    expected = theirs(x, {e: block.edge_index[e] for e in edge_types})
    assert_same(ours(x, block, batch), {t: expected[t][: block.num_dst[t]] for t in TYPES})


@pytest.mark.parametrize("settings", KINDS)
def test_seeds_get_what_the_whole_graph_gives_them(settings: dict[str, Any]) -> None:
    data = random_graph()
    model = build(data, layers=3, **settings).eval()
    whole = model(batch_of(data, "paper", list(range(30)), layers=3))
    some = model(batch_of(data, "paper", [7, 2, 29], layers=3))
    torch.testing.assert_close(some, whole[[7, 2, 29]], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("precision", [None, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("settings", KINDS)
def test_every_parameter_always_has_a_finite_gradient(settings: dict[str, Any], precision: Any) -> None:
    data = random_graph()
    model = build(data, **settings)
    some = batch_of(data, "paper", [1, 2, 3], layers=2, fanout=3)
    none = batch_of(data, "paper", [], layers=2)
    for batch in (some, batch_of(data, "paper", [5], layers=2), none, empty_of_edges(some), empty_of_edges(none)):
        with torch.autocast("cpu", precision or torch.bfloat16, enabled=precision is not None):
            out = model(batch)
        assert out.shape == (batch["paper"].batch_size, 3)
        assert out.isfinite().all()
        check_gradients(model, out.float().square().sum())


@pytest.mark.parametrize("kind", list(SETTINGS))
@pytest.mark.parametrize("self_loop", [True, False])
@pytest.mark.parametrize("featureless", [True, False])
def test_a_target_that_nothing_leads_to_still_learns(kind: str, self_loop: bool, featureless: bool) -> None:
    data = HeteroData()
    data["sink"].num_nodes = data["lonely"].num_nodes = 4
    if not featureless:
        data["lonely"].x = torch.randn(4, 5)
    data["lonely", "to", "sink"].edge_index = torch.tensor([[0, 1], [1, 2]])
    settings = {"kind": kind} if kind == "hgt" else {"kind": kind, "self_loop": self_loop}
    model = build(data, "lonely", **settings)
    check_gradients(model, model(batch_of(data, "lonely", [0, 2], layers=2)).square().sum())
    check_gradients(model, model(batch_of(data, "lonely", [], layers=2)).square().sum())


@pytest.mark.parametrize("kind", ["rgcn", "rgat"])
def test_widths_that_differ_are_refused(kind: str) -> None:
    with pytest.raises(ExperimentError, match=r"different widths \(paper 6, author 5.*model.inputs.project to true"):
        build(random_graph(), kind=kind, inputs={"project": False})


@pytest.mark.parametrize("heads", [None, 3])
def test_products_by_group(heads: int | None) -> None:
    sizes, between = [2, 0, 3], () if heads is None else (heads,)
    x = torch.randn(5, *between, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(3, *between, 4, 2, dtype=torch.float64, requires_grad=True)
    out = grouped_matmul(x, sizes, weight)
    group = torch.tensor([0, 0, 2, 2, 2])
    torch.testing.assert_close(out, (x.unsqueeze(-2) @ weight[group]).squeeze(-2))
    nothing = grouped_matmul(x[:0], [0, 0, 0], weight)
    assert nothing.shape == (0, *between, 2)
    (gradient,) = torch.autograd.grad(nothing.sum(), weight)
    assert (gradient == 0).all()
