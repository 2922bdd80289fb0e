"""Every aggregation: PyG's own figures, no dependence on who shares the batch, and gradients whatever is empty."""

from __future__ import annotations

from typing import Any, get_args

import pytest
import torch
from torch import Tensor
from torch_geometric.nn import MultiAggregation

from disttrain import config
from disttrain.config import Aggregation, ExperimentError, aggregations
from disttrain.config.aggregation import ARGUMENTS, REQUIRED, AggrName
from disttrain.models.aggregate import Aggregate
from disttrain.models.neighbours import Edges

from .small_batches import batch_of, random_graph
from .test_models_hetero_conv import build, check_gradients, empty_of_edges

CASES: dict[str, dict[str, Any]] = {
    "mean": {},
    "sum": {},
    "max": {},
    "min": {},
    "mul": {},
    "var": {"semi_grad": True},
    "std": {},
    "softmax": {"t": 0.5, "channels": 4},
    "powermean": {"p": 2.0, "learn": True},
    "median": {},
    "quantile": {"q": [0.25, 0.75], "interpolation": "midpoint"},
    "variance_preserving": {},
    "degree_scaler": {"aggr": ["mean", "std"], "scaler": ["identity", "linear"], "train_norm": True},
    "sort": {"k": 2},
    "lstm": {"num_layers": 2, "bidirectional": True},
    "gru": {"out_channels": 5},
    "lcm": {},
    "set2set": {"processing_steps": 2},
    "attentional": {"transform": True},
    "deep_sets": {"hidden_channels": 3},
    "set_transformer": {"num_seed_points": 2, "heads": 2, "layer_norm": True},
    "graph_multiset_transformer": {"k": 2, "heads": 2},
    "patch_transformer": {"patch_size": 2, "heads": 2, "aggr": ["mean", "max"]},
    "mlp": {"max_num_elements": 3},
}
ALL = [{"kind": kind, "args": args} for kind, args in CASES.items()]


def make(written: Any, channels: int = 4, **settings: Any) -> Aggregate:
    torch.manual_seed(3)
    model = config.HeteroConvModel.model_validate({"kind": "hetero_conv", "aggr": written})
    assert model.aggr is not None
    return Aggregate(model.aggr, channels, **settings)


def edges_of(counts: list[int], num_src: int = 9) -> Edges:
    """`counts[i]` neighbours of destination i, drawn at random from `num_src`."""
    count = torch.tensor(counts, dtype=torch.int64)
    pointer = torch.cat([count.new_zeros(1), count.cumsum(0)])
    generator = torch.Generator().manual_seed(int(count.sum()))
    src = torch.randint(0, num_src, (int(count.sum()),), generator=generator)
    return Edges(src, torch.repeat_interleave(count), pointer)


def part_of(edges: Edges, rows: list[int]) -> Edges:
    count = edges.pointer.diff()[rows]
    src = [edges.src[edges.pointer[row] : edges.pointer[row + 1]] for row in rows]
    pointer = torch.cat([count.new_zeros(1), count.cumsum(0)])
    return Edges(torch.cat(src), torch.repeat_interleave(count), pointer)


def test_there_is_a_case_for_each() -> None:
    assert set(CASES) == set(get_args(get_args(AggrName)[0]))
    assert set(ARGUMENTS) <= set(CASES) and set(REQUIRED) <= set(ARGUMENTS)


@pytest.mark.parametrize("written", ALL, ids=CASES)
def test_a_node_gets_the_same_whoever_shares_the_batch(written: Any) -> None:
    aggregate = make(written).eval()
    edges, x = edges_of([3, 0, 1, 7, 0, 2, 5]), torch.randn(9, 4)
    whole = aggregate(x, edges)
    assert whole.shape == (7, aggregate.out_channels)
    assert whole.isfinite().all()
    assert (whole[[1, 4]] == 0).all()
    for rows in ([5], [2, 0], [4, 3, 1], [1]):
        torch.testing.assert_close(aggregate(x, part_of(edges, rows)), whole[rows], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("written", [w for w in ALL if w["kind"] not in ("lstm", "gru")], ids=lambda w: w["kind"])
def test_figures_are_those_of_pyg(written: Any) -> None:
    """Where all have equally many neighbours, that is where PyG's do not depend on the others either."""
    aggregate = make(written).eval()
    edges, x = edges_of([4, 4, 4]), torch.randn(9, 4)
    (part,) = aggregate.parts
    module = MultiAggregation([written["kind"]]) if not hasattr(part, "module") else part.module
    arguments = {"max_num_elements": 4} if written["kind"] == "patch_transformer" else {}
    expected = module(x[edges.src], edges.dst, dim_size=3, **arguments)  # type: ignore[operator]
    torch.testing.assert_close(aggregate(x, edges), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_recurrent_ones_equal_pyg(kind: str) -> None:
    from torch_geometric.nn import GRUAggregation, LSTMAggregation

    aggregate = make({"kind": kind, "args": {"num_layers": 2}})
    theirs: Any = (LSTMAggregation if kind == "lstm" else GRUAggregation)(4, 4, num_layers=2)
    own = {name.removeprefix("parts.0.module.cell."): value for name, value in aggregate.state_dict().items()}
    getattr(theirs, kind).load_state_dict(own)
    edges, x = edges_of([4, 4, 4]), torch.randn(9, 4)
    expected = theirs(x[edges.src], edges.dst, dim_size=3)
    torch.testing.assert_close(aggregate(x, edges), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("precision", [None, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("written", ALL, ids=CASES)
def test_gradients_are_finite_whatever_is_empty(written: Any, precision: Any) -> None:
    """No edges, no sources, no destinations, some destinations without neighbours; alone and with weights."""
    aggregate = make(written)
    for counts, num_src in (([3, 0, 1], 9), ([0, 0], 9), ([0, 0], 0), ([], 9), ([], 0)):
        edges = edges_of(counts, max(num_src, 1))
        x = torch.randn(num_src, 4, requires_grad=True)
        for weight in (None, torch.rand(edges.src.numel())):
            aggregate.zero_grad(set_to_none=True)
            x.grad = None
            with torch.autocast("cpu", precision or torch.bfloat16, enabled=precision is not None):
                given = x if precision is None else x.to(precision)
                out = aggregate(given, Edges(edges.src, edges.dst, edges.pointer, weight=weight))
            assert out.shape == (len(counts), aggregate.out_channels)
            assert out.isfinite().all()
            out.float().square().sum().backward()
            for tensor in (x, *aggregate.parameters()):
                assert isinstance(tensor.grad, Tensor) and tensor.grad.isfinite().all()
                assert sum(counts) or (tensor.grad == 0).all()


@pytest.mark.parametrize("precision", [None, torch.bfloat16, torch.float16], ids=str)
def test_all_of_them_in_a_model_on_full_and_empty_batches(precision: Any) -> None:
    data = random_graph()
    model = build(data, aggr=ALL, conv="graph", hidden=4, inputs={"embedding_dim": 3})
    whole = batch_of(data, "paper", [5, 6], layers=2, fanout=3)
    for batch in (whole, empty_of_edges(whole), batch_of(data, "paper", [], layers=2)):
        with torch.autocast("cpu", precision or torch.bfloat16, enabled=precision is not None):
            out = model(batch)
        assert out.isfinite().all()
        check_gradients(model, out.float().sum())


def test_several_side_by_side_or_projected() -> None:
    edges, x = edges_of([3, 1, 2]), torch.randn(9, 4)
    names: list[Any] = ["mean", "max", "std"]
    expected = MultiAggregation(names)(x[edges.src], edges.dst, dim_size=3)
    side_by_side, projected = make(names), make(names, mode="proj")
    torch.testing.assert_close(side_by_side(x, edges), expected, atol=1e-6, rtol=0)
    assert (side_by_side.out_channels, projected.out_channels) == (12, 4)
    assert projected.project is not None
    torch.testing.assert_close(projected(x, edges), projected.project(expected), atol=1e-6, rtol=0)


def test_degrees_scale_by_the_mean_of_the_whole_graph() -> None:
    edges, x = edges_of([4, 1]), torch.ones(9, 4)
    written = {"kind": "degree_scaler", "args": {"aggr": "sum", "scaler": ["linear"]}}
    out = make(written, mean_degree=2.5)(x, edges)
    torch.testing.assert_close(out[:, 0], torch.tensor([4 * 4 / 2.5, 1 / 2.5]), atol=1e-3, rtol=0)
    assert make(written, mean_degree=0.0)(x, edges).isfinite().all()
    counted = {"kind": "degree_scaler", "args": {"aggr": "sum", "scaler": ["linear"], "deg": [0, 5, 0, 5]}}
    torch.testing.assert_close(make(counted)(x, edges)[:, 0], torch.tensor([8.0, 0.5]))


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("equilibrium", "equilibrium cannot be used: .* averaged over all nodes of a mini-batch"),
        (["mean", "multi"], "written as a list"),
        ("add", "it is called sum here"),
        ("quantile", r"quantile needs arguments: \{kind: quantile, args: \{q: ...\}\}"),
        ({"kind": "sort"}, "sort needs args: k"),
        ({"kind": "sort", "args": {"k": 0}}, "args.k of sort: .*greater than 0, got 0"),
        ({"kind": "quantile", "args": {"q": 1.5}}, "args.q of quantile"),
        ({"kind": "lstm", "args": {"out_chanels": 3}}, "did you mean out_channels"),
        ({"kind": "mean", "args": {"k": 3}}, "it takes none"),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_reason(written: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        config.HeteroConvModel.model_validate({"kind": "hetero_conv", "aggr": written})


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ({"kind": "set_transformer", "args": {"heads": 3}}, "must divide the width of the vectors, 4"),
        ({"kind": "softmax", "args": {"channels": 3}}, "must be 1 or the width of the vectors, 4"),
        ({"kind": "softmax", "args": {"learn": True, "semi_grad": True}}, "softmax: .*semi_grad"),
        ({"kind": "lcm", "args": {"project": False, "out_channels": 3}}, "without args.project"),
        ({"kind": "degree_scaler", "args": {"deg": [3, 0]}}, "needs some above 0"),
    ],
)
def test_arguments_that_do_not_fit_the_width_are_refused(written: Any, said: str) -> None:
    with pytest.raises(ExperimentError, match=said):
        make(written)


def test_the_short_form_is_the_long_one() -> None:
    assert aggregations(("mean", Aggregation(kind="sort", args={"k": 2}))) == [
        Aggregation(kind="mean"),
        Aggregation(kind="sort", args={"k": 2}),
    ]
