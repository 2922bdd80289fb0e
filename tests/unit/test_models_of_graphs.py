"""Models of collections: what PyG's layers compute, every parameter used on any batch, attributes where they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GPSConv, PNAConv
from torch_geometric.transforms import AddLaplacianEigenvectorPE, AddRandomWalkPE, Compose

from disttrain.collection.collated import collate
from disttrain.collection.files import open_collection, read_manifest, write_collection
from disttrain.collection.graphs import Graphs
from disttrain.config import ExperimentError
from disttrain.config.file import parse_experiment
from disttrain.graph.schema import GRAPH
from disttrain.models import build_model
from disttrain.train.batch_norms import each_by_itself

from .test_models_hetero_conv import check_gradients

CONVS = ["gin", "gine", "gcn", "sage", "gat", "pna"]
REPOSITORY = Path(__file__).resolve().parents[2]
EDGE = ("node", "edge", "node")


def molecules(count: int = 12, codes: bool = False, seed: int = 0) -> list[Data]:
    """Random graphs of up to 7 nodes; one without edges, one without nodes. Attributes of nodes and edges are numbers,
    or categories as PyG's `from_smiles` writes them."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for number in range(count):
        n = 0 if number == 3 else 1 + number % 7
        pairs = (torch.rand(n, n, generator=generator) < 0.5).triu(1)
        edge_index = torch.cat([pairs.nonzero().t(), pairs.nonzero().t().flip(0)], dim=1)
        edges = edge_index.size(1)
        if codes:
            x = torch.stack([torch.randint(0, 20, (n,), generator=generator), torch.arange(n) % 3], dim=1)
            edge_attr = torch.randint(0, 4, (edges, 3), generator=generator)
        else:
            x = torch.randn(n, 3, generator=generator)
            edge_attr = torch.randn(edges, 2, generator=generator)
        made.append(
            Data(
                x=x, edge_index=edge_index, edge_attr=edge_attr, y=number % 2,
                edge_weight=torch.rand(edges, generator=generator),
            )
        )  # fmt: skip
    return made


@pytest.fixture
def opened(tmp_path: Any) -> Iterator[Any]:
    """Puts a list of graphs together, all but the last two to train on."""

    def of(graphs: list[Any]) -> Graphs:
        directory = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        write_collection(collate(iter(graphs), "here"), directory, "f", "data.store")
        manifest = read_manifest(directory)
        train = np.arange(len(graphs)) < len(graphs) - 2
        return Graphs(open_collection(directory, manifest, mapped=True), manifest, {"train_mask": train})

    yield of


def settings(model: str) -> Any:
    text = (
        "data: {source: python, function: 'a:b', split: {by: folds}}\ntask: {kind: graph_classification}\n"
        f"model: {model}"
    )
    return parse_experiment(text).model


def build(graphs: Graphs, kind: str, more: str = "") -> Any:
    torch.manual_seed(0)
    model = settings(f"{{kind: {kind}, hidden: 8, layers: 2{', ' if more else ''}{more}}}")
    return build_model(model, graphs.schema, GRAPH, 3, graphs.statistics, graphs.training_degrees)


def batch_of(graphs: Graphs, model: Any, ids: list[int]) -> HeteroData:
    return graphs.batch(np.array(ids, np.int64), model.wants)


VARIANTS = [
    *((kind, "") for kind in CONVS),
    ("gcn", "edge_weight: edge_weight"),
    ("gat", "version: 2, edge_attr: false"),
    ("gat", "version: 2, heads: 2"),
    ("sage", "aggr: max, norm: layer, residual: true, jumping_knowledge: lstm"),
    ("pna", "towers: 2, scalers: [linear, identity], edge_attr: false"),
    *(("gps", f"conv: {conv}, heads: 2") for conv in (*CONVS, "none", "auto")),
    ("gps", "attention: performer, norm: layer, conv: gcn, edge_weight: edge_weight"),
    ("gps", "norm: none, jumping_knowledge: cat, head_layers: 1"),
    ("gin", "head_norm: batch, head_layers: 3"),
    ("gin", "head_norm: layer"),
    ("hetero_conv", "conv: gat, pooling: mean"),
    ("hetero_conv", "conv: gcn, norm: batch, jumping_knowledge: cat"),
    ("hetero_conv", "conv: gin"),
]


@pytest.mark.parametrize("codes", [False, True], ids=["numbers", "codes"])
@pytest.mark.parametrize(("kind", "more"), VARIANTS)
def test_every_parameter_is_used_on_any_batch(opened: Any, kind: str, more: str, codes: bool) -> None:
    graphs = opened(molecules(codes=codes))
    model = build(graphs, kind, more)
    for ids in ([4, 3, 5, 0], [6], [0], [3], []):  # with one of no nodes, of one node, of no nodes only, of no graphs
        batch = batch_of(graphs, model, ids)
        out = model(batch)
        assert out.shape == (len(ids), 3) and out.isfinite().all()
        check_gradients(model, out.square().sum())
    model.eval()
    together = model(batch_of(graphs, model, [4, 3, 5, 6]))
    alone = torch.cat([model(batch_of(graphs, model, [number])) for number in (4, 3, 5, 6)])
    torch.testing.assert_close(together, alone, msg="a graph's vector does not depend on who shares its batch")


@pytest.mark.parametrize("kind", CONVS)
def test_the_layers_are_those_of_pyg(opened: Any, kind: str) -> None:
    source = molecules()
    graphs = opened(source)
    model = build(graphs, kind, "norm: none, activation: none, jumping_knowledge: none, inputs: {project: false}")
    ids = [5, 4, 6]
    theirs: Any = Batch.from_data_list([source[i] for i in ids])
    x = theirs.x
    for layer in model.convs:
        more = (theirs.edge_attr,) if kind in ("gine", "gat", "pna") else ()
        x = layer.conv(x, theirs.edge_index, *more)
    sums = torch.zeros(3, 8).index_add(0, theirs.batch, x)
    torch.testing.assert_close(model.embed(batch_of(graphs, model, ids)), sums)


def test_gps_is_that_of_pyg(opened: Any) -> None:
    source = molecules()
    graphs = opened(source)
    model = build(graphs, "gps", "conv: gine, heads: 2, norm: none")
    ids = [5, 4, 6]
    batch = batch_of(graphs, model, ids)
    theirs: Any = Batch.from_data_list([source[i] for i in ids])
    x = model.inputs(batch)["node"]
    for layer in model.convs:
        assert type(layer.conv) is GPSConv
        x = layer.conv(x, theirs.edge_index, theirs.batch, edge_attr=theirs.edge_attr)
    torch.testing.assert_close(model.embed(batch), torch.zeros(3, 8).index_add(0, theirs.batch, x))


def test_pna_knows_the_degrees_of_the_training_graphs_and_keeps_them(opened: Any) -> None:
    source = molecules(16)
    graphs = opened(source)
    expected = PNAConv.get_degree_histogram(DataLoader(source[:14], batch_size=3))  # pyright: ignore[reportArgumentType]
    assert graphs.training_degrees(EDGE).tolist() == expected.tolist()
    model = build(graphs, "pna")
    state = model.state_dict()
    mean = (expected * torch.arange(len(expected))).sum() / expected.sum()
    assert state["convs.0.conv.aggr_module.avg_deg_lin"].item() == pytest.approx(mean.item())
    other = build(opened(molecules(16, seed=5)), "pna")
    other.load_state_dict(state)  # another collection, and yet the degrees that it was trained with
    batch = batch_of(graphs, model, [5, 1])
    assert torch.equal(other.eval()(batch), model.eval()(batch))
    to_predict = replace(graphs, masks={"train_mask": np.zeros(16, bool)})
    assert to_predict.training_degrees(EDGE).tolist() == [0, 1], "a model can be made, whose weights are then read"


def test_encodings_are_found_and_used(opened: Any) -> None:
    transform = Compose([AddRandomWalkPE(walk_length=4), AddLaplacianEigenvectorPE(k=1, is_undirected=True)])
    source = [transform(graph) for graph in molecules(14) if len(graph.x) > 2]  # pyright: ignore
    graphs = opened(source)
    model = build(graphs, "gps")
    assert set(model.encodings.keys()) == {"random_walk_pe", "laplacian_eigenvector_pe"}
    batch = batch_of(graphs, model, [0, 1])
    before = model.eval()(batch)
    batch["node"].random_walk_pe = batch["node"].random_walk_pe + 1.0
    assert not torch.allclose(model(batch), before)
    assert not build(graphs, "gin", "encodings: []").encodings
    without = build(
        opened([Data(random_walk_pe=g.random_walk_pe, edge_index=g.edge_index, num_nodes=len(g.x)) for g in source]),
        "gin",
    )
    check_gradients(without, without(batch).sum())
    with pytest.raises(ExperimentError, match="model.encodings: the nodes have no attribute `pe`; they have x, "):
        build(graphs, "gps", "encodings: [pe]")


def test_codes_have_embeddings_unless_told_otherwise(opened: Any) -> None:
    graphs = opened(molecules(codes=True))
    model = build(graphs, "gine")
    rows = {name: tuple(value.shape) for name, value in model.state_dict().items() if "categories" in name}
    assert rows == {
        **{f"inputs.types.node.categories.{n}.weight": (20, 16) for n in range(2)},
        **{f"edge_input.categories.{n}.weight": (4, 16) for n in range(3)},
    }
    numbers = build(graphs, "gine", "inputs: {categorical: false}")
    assert not any("categories" in name for name in numbers.state_dict())
    assert not build(opened(molecules()), "gine", "inputs: {categorical: true}").inputs.types["node"].categories


@pytest.mark.parametrize(
    "pooling",
    ["mean", "max", "attention", "set2set", "[sum, mean, std]", "{kind: sort, args: {k: 2}}", "[max, set2set]"],
)
def test_poolings(opened: Any, pooling: str) -> None:
    source = molecules()
    graphs = opened(source)
    model = build(graphs, "gin", f"pooling: {pooling}, norm: none")
    for ids in ([4, 3, 5], [3], []):
        out = model(batch_of(graphs, model, ids))
        assert out.shape == (len(ids), 3)
        check_gradients(model, out.sum())
    if pooling in ("mean", "max"):
        plain = build(graphs, "gin", "norm: none").eval()
        plain.load_state_dict(model.state_dict())
        vectors: list[torch.Tensor] = []
        plain.pooling.register_forward_pre_hook(lambda module, arguments: vectors.append(arguments[0]))
        plain(batch_of(graphs, plain, [5]))
        torch.testing.assert_close(
            model.embed(batch_of(graphs, model, [5]))[0], getattr(vectors[0], f"a{pooling}", vectors[0].mean)(dim=0)
        )


@pytest.mark.parametrize(
    ("kind", "more", "text"),
    [
        ("gine", "", "is to take edge_attr, and the graphs have no such attribute; choose gin"),
        ("gat", "edge_attr: true", "choose edge_attr: auto"),
        (
            "gcn",
            "edge_weight: weight",
            'model.edge_weight is "weight", and the edges have no such attribute; they have no',
        ),
        ("gps", "inputs: {project: false}", "set model.inputs.project to true"),
        ("gin", "pooling: {kind: set_transformer, args: {heads: 5}}", "model.pooling: set_transformer: args.heads"),
        (
            "hetero_conv",
            "relations: {'a,to,b': {conv: gat}}",
            'the graphs have no relation "a,to,b"; they have "node,edge',
        ),
    ],
)
def test_what_does_not_fit_is_refused(opened: Any, kind: str, more: str, text: str) -> None:
    graphs = opened([Data(x=g.x, edge_index=g.edge_index, y=g.y) for g in molecules()])
    with pytest.raises(ExperimentError) as caught:
        build(graphs, kind, more)
    assert text in str(caught.value)


def test_without_features_or_edges(opened: Any) -> None:
    plain = opened([Data(edge_index=g.edge_index, num_nodes=g.num_nodes, y=g.y) for g in molecules()])
    with pytest.raises(ExperimentError, match=r"pna needs features of the nodes, .* data.pre_transforms"):
        build(plain, "pna")
    with pytest.raises(ExperimentError, match="node has no `x`"):
        build(plain, "hetero_conv")
    no_edges = torch.empty(2, 0, dtype=torch.int64)
    with pytest.raises(ExperimentError, match="they have no edges"):
        build(opened([Data(x=torch.ones(2, 1), edge_index=no_edges, y=0) for _ in range(4)]), "pna")


def pairs(count: int = 9) -> list[HeteroData]:
    """Of two node types and two relations, of which some have no edges, with attributes."""
    made = []
    for number in range(count):
        graph: Any = HeteroData()
        n, m = number % 4, 1 + number % 3
        graph["a"].x, graph["b"].x = torch.randn(n, 2), torch.arange(m)[:, None] % 3
        graph["c"].x = torch.ones(1, 1)  # in no relation
        graph["a", "to", "b"].edge_index = torch.stack([torch.arange(n * m) // m, torch.arange(n * m) % m])
        graph["a", "to", "b"].edge_attr = torch.randn(n * m, 3)
        graph["b", "to", "b"].edge_index = torch.tensor([[m - 1], [0]])
        graph.y = torch.tensor([int(m > n)])
        made.append(graph)
    return made


@pytest.mark.parametrize("conv", ["sage", "gat", "gcn", "gin", "graph"])
def test_heterogeneous_graphs_are_pooled_by_type(opened: Any, conv: str) -> None:
    graphs = opened(pairs())
    model = build(graphs, "hetero_conv", f"conv: {conv}, pooling: [sum, max], norm: batch")
    assert model.head.in_channels == 3 * 2 * 8
    for ids in ([1, 0, 7, 3], [4, 0], [0], []):
        out = model(batch_of(graphs, model, ids))
        assert out.shape == (len(ids), 3)
        check_gradients(model, out.square().sum())
    model.eval()
    with each_by_itself(model):
        together = model(batch_of(graphs, model, [3, 1, 6]))
        alone = torch.cat([model(batch_of(graphs, model, [number])) for number in (3, 1, 6)])
    torch.testing.assert_close(together, alone)


def test_the_example_of_a_model_of_ones_own(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(REPOSITORY))
    graphs = opened(molecules())
    model = build_model(
        settings("{kind: custom, module: 'examples.own_graph_model:Molecules', args: {width: 8}}"),
        graphs.schema, GRAPH, 3, graphs.statistics, graphs.training_degrees,
    )  # fmt: skip
    for ids in ([4, 3, 5], [0], [3], []):
        out = model(batch_of(graphs, model, ids))
        assert out.shape == (len(ids), 3)
        check_gradients(model, out.sum())
