"""Batches cut from the arrays are PyG's own `Batch.from_data_list` of the same graphs, for every rule of PyG."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.data.storage import NodeStorage

from disttrain.collection.collated import Collated, collate
from disttrain.config import ExperimentError

pytestmark = pytest.mark.filterwarnings("ignore:Unable to accurately infer 'num_nodes'", "ignore:Sparse")


class Pair(Data):
    """PyG's example of rules of one's own: two graphs in one, and an attribute that is stacked."""

    def __cat_dim__(self, key: str, value: Any, *args: Any, **kwargs: Any) -> Any:
        return None if key == "stacked" else 1 if key == "wide" else super().__cat_dim__(key, value, *args, **kwargs)

    def __inc__(self, key: str, value: Any, *args: Any, **kwargs: Any) -> Any:
        if key == "edge_index_t":
            return torch.tensor([[self.x.size(0)], [self.x_t.size(0)]])  # pyright: ignore[reportOptionalMemberAccess]
        return super().__inc__(key, value, *args, **kwargs)


def same(a: Any, b: Any, where: str = "") -> None:
    """Of the same kind, type and contents, to the bit."""
    if isinstance(a, Tensor):
        assert isinstance(b, Tensor) and (a.dtype, a.shape, a.layout) == (b.dtype, b.shape, b.layout), (where, a, b)
        if a.layout == torch.sparse_coo:
            assert a.is_coalesced() == b.is_coalesced(), where
            same(a._indices(), b._indices(), where)
            same(a._values(), b._values(), where)
        elif a.layout == torch.sparse_csr:
            for part in ("crow_indices", "col_indices", "values"):
                same(getattr(a, part)(), getattr(b, part)(), where)
        else:
            assert torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)), (where, a, b)
    elif isinstance(a, dict):
        assert list(a) == list(b), (where, a, b)
        for key in a:
            same(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, (list, tuple)):
        assert type(a) is type(b) and len(a) == len(b), (where, a, b)
        for n, (x, y) in enumerate(zip(a, b)):
            same(x, y, f"{where}[{n}]")
    else:
        assert a == b and type(a) is type(b), (where, a, b)


def same_batch(ours: Any, theirs: Any) -> None:
    assert ours.num_graphs == theirs.num_graphs and type(ours).__mro__[-3:] == type(theirs).__mro__[-3:]
    assert [store._key for store in ours.stores] == [store._key for store in theirs.stores]
    for mine, other in zip(ours.stores, theirs.stores):
        same(dict(mine.items()), dict(other.items()), str(mine._key))
        if isinstance(mine, NodeStorage) and mine.can_infer_num_nodes:
            assert mine.num_nodes == other.num_nodes
    same(ours._slice_dict, theirs._slice_dict, "slices")


def tensor(draw: st.DrawFn, dtype: torch.dtype, *shape: int) -> Tensor:
    seed = draw(st.integers(0, 1000))
    values = torch.randint(-9, 9, shape, generator=torch.Generator().manual_seed(seed))
    return (values > 0) if dtype == torch.bool else values.to(dtype)


DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool]


@st.composite
def homogeneous(draw: st.DrawFn) -> tuple[list[Data], list[str]]:
    """Graphs with the same attributes, of every kind; some without edges, some without nodes."""
    dtype, index_dtype = draw(st.sampled_from(DTYPES)), draw(st.sampled_from([torch.int64, torch.int32]))
    width = draw(st.integers(0, 3))
    kinds = [
        "x", "wide", "stacked", "scalar", "y", "pos", "number", "fraction", "flag", "mixed", "root_index", "text",
        "none", "codes", "named", "listed", "adj", "csr", "below", "face", "edge_index", "edge_attr", "num_nodes",
        "part_index", "edge_index_t", "is_index",
    ]  # fmt: skip
    chosen = set(draw(st.lists(st.sampled_from(kinds), unique=True)))
    graphs = []
    for _ in range(draw(st.integers(1, 5))):
        n, m = draw(st.integers(0, 4)), draw(st.integers(0, 5))
        m = m if n else 0
        graph: Any = Pair()
        graph.num_nodes = n
        made: dict[str, Any] = {
            "x": lambda n=n: tensor(draw, dtype, n, width),
            "wide": lambda n=n: tensor(draw, dtype, 2, n, width),
            "stacked": lambda: tensor(draw, dtype, 3),
            "scalar": lambda: tensor(draw, dtype),
            "y": lambda: tensor(draw, torch.float32, 1, 2),
            "pos": lambda n=n: tensor(draw, torch.float64, n, 3),
            "number": lambda: draw(st.integers(-5, 5)),
            "fraction": lambda: draw(st.floats(-1, 1)),
            "flag": lambda: draw(st.booleans()),
            "mixed": lambda: draw(st.sampled_from([1, 2.5, True])),
            "root_index": lambda: draw(st.integers(0, 3)),
            "text": lambda: draw(st.text(max_size=4)),
            "none": lambda: {"a": None, "b": draw(st.sampled_from(["ü", None]))},
            "codes": lambda: draw(st.lists(st.integers(), max_size=3)),
            "named": lambda n=n: {"a": tensor(draw, dtype, n), "in_index": tensor(draw, index_dtype, 2), "c": "x"},
            "listed": lambda n=n: [tensor(draw, dtype, n, 2), tensor(draw, torch.int64, 1)],
            "adj": lambda n=n: tensor(draw, torch.float32, n, n).to_sparse_coo(),
            "csr": lambda n=n: tensor(draw, torch.float32, n, 2).to_sparse_csr(),
            "below": lambda n=n: tensor(draw, torch.float32, n, 2).to_sparse_coo(),
            "face": lambda m=m: tensor(draw, torch.int64, 3, m),
            "edge_index": lambda m=m: tensor(draw, index_dtype, 2, m),
            "edge_attr": lambda m=m: tensor(draw, dtype, m, width),
            "part_index": lambda m=m: tensor(draw, dtype, m),
            "is_index": lambda m=m: tensor(draw, torch.bool, 2, m),
            "edge_index_t": lambda m=m: tensor(draw, index_dtype, 2, m),
        }
        if "edge_index_t" in chosen:
            chosen.add("x")
            graph.x_t = torch.zeros(n + 1, 1)
        for name in kinds:
            if name in chosen and name != "num_nodes":
                graph[name] = made[name]()
        if "num_nodes" not in chosen and ("x" in chosen or "pos" in chosen):
            del graph.num_nodes
        graphs.append(graph)
    follow = draw(st.lists(st.sampled_from(kinds), unique=True, max_size=4))
    return graphs, follow


def expected(graphs: list[Any], ids: list[int], **options: Any) -> Any:
    return Batch.from_data_list([graphs[i] for i in ids], **options)


@settings(max_examples=80)
@given(st.data())
def test_batches_of_homogeneous_graphs_are_those_of_pyg(data: st.DataObject) -> None:
    graphs, follow = data.draw(homogeneous())
    ids = data.draw(st.lists(st.integers(0, len(graphs) - 1), min_size=1, max_size=6))
    exclude = data.draw(st.sampled_from([[], ["x"], ["named", "num_nodes"]]))
    collated = collate(iter(graphs), "here")
    assert collated.left_out == ()
    try:
        theirs = expected(graphs, ids, follow_batch=follow, exclude_keys=exclude)
    except RuntimeError as error:  # PyG adds numbers in place, and fractions to whole ones it cannot
        pytest.fail(f"PyG cannot: {error}")
    same_batch(collated.batch(np.array(ids), follow_batch=follow, exclude_keys=exclude), theirs)


@st.composite
def heterogeneous(draw: st.DrawFn) -> list[HeteroData]:
    dtype, index_dtype = draw(st.sampled_from(DTYPES)), draw(st.sampled_from([torch.int64, torch.int32]))
    implicit, with_edges, on_graph = draw(st.booleans()), draw(st.booleans()), draw(st.booleans())
    graphs = []
    for _ in range(draw(st.integers(1, 4))):
        graph: Any = HeteroData()
        sizes = {"a": draw(st.integers(0, 3)), "b": draw(st.integers(0, 3))}
        graph["a"].x = tensor(draw, dtype, sizes["a"], 2)
        graph["b"].num_nodes = sizes["b"]
        graph["b"].index_of = tensor(draw, torch.int64, sizes["b"])
        if not implicit:
            graph["b"].pos = tensor(draw, torch.float32, sizes["b"], 3)
        if with_edges:
            m = draw(st.integers(0, 4))
            graph["a", "to", "b"].edge_index = tensor(draw, index_dtype, 2, m)
            graph["a", "to", "b"].edge_attr = tensor(draw, dtype, m, 1)
            graph["b", "of", "b"].edge_index = torch.empty(2, 0, dtype=torch.int64)
            graph["a", "to", "b"].weight = draw(st.integers(0, 3))
        if on_graph:
            graph.y, graph.name, graph["a"].kind = tensor(draw, torch.int64, 1), draw(st.text(max_size=3)), "k"
        graphs.append(graph)
    return graphs


@settings(max_examples=50)
@given(st.data())
def test_batches_of_heterogeneous_graphs_are_those_of_pyg(data: st.DataObject) -> None:
    graphs = data.draw(heterogeneous())
    ids = data.draw(st.lists(st.integers(0, len(graphs) - 1), min_size=1, max_size=5))
    follow = data.draw(st.sampled_from([[], ["x"], ["edge_index", "weight", "name"]]))
    same_batch(collate(graphs, "here").batch(np.array(ids), follow), expected(graphs, ids, follow_batch=follow))


def molecules(count: int = 5) -> list[Data]:
    generator = torch.Generator().manual_seed(0)
    made = []
    for n in range(count):
        edges = torch.randint(0, n + 1, (2, 2 * n), generator=generator)
        x = torch.randn(n + 1, 2, generator=generator)
        made.append(Data(x=x, edge_index=edges, y=torch.tensor([n % 2]), name=f"m{n}"))
    return made


def test_a_batch_can_be_taken_apart_again() -> None:
    graphs = molecules()
    batch = collate(graphs, "here").batch(np.array([3, 0, 3]))
    for graph, number in zip(batch.to_data_list(), (3, 0, 3), strict=True):
        same(graph.to_dict(), graphs[number].to_dict())


def test_no_graphs_make_an_empty_batch() -> None:
    batch = collate(molecules(), "here").batch(np.array([], np.int64), follow_batch=["edge_index"])
    assert (batch.num_graphs, batch.name, batch.ptr.tolist()) == (0, [], [0])
    assert [tuple(batch[name].shape) for name in ("x", "edge_index", "y", "batch")] == [(0, 2), (2, 0), (0,), (0,)]


def test_equal_slices_are_kept_once() -> None:
    graphs = [Data(x=torch.zeros(n, 1), z=torch.zeros(n), pos=torch.zeros(n, 3)) for n in (3, 1, 2)]
    columns: Any = collate(graphs, "here").stores[None].columns
    assert columns["x"].slices is columns["z"].slices is columns["pos"].slices


def test_what_later_graphs_have_beside_the_first_is_left_out_and_said() -> None:
    graphs = molecules(3)
    graphs[2].charge = torch.tensor([1.0])
    collated = collate(graphs, "here")
    assert collated.left_out == ("`charge`: graph 0 has none, graph 2 has",)
    same_batch(collated.batch(np.array([0, 2])), expected(graphs, [0, 2]))


def test_what_cannot_be_kept_is_left_out_and_said() -> None:
    graphs = molecules(2)
    for graph in graphs:
        graph.numbers, graph.tags = np.zeros(2), ("a", "b")
    (numbers, tags) = collate(graphs, "here").left_out
    assert numbers.startswith("`numbers`: a value of type ndarray cannot be written as JSON")
    assert tags.startswith("`tags`: a value of type tuple")


def refusal(graphs: Any) -> str:
    with pytest.raises(ExperimentError) as caught:
        collate(graphs, "data.function f:g")
    return str(caught.value)


def broken(number: int, **change: Any) -> list[Data]:
    graphs = molecules()
    for name, value in change.items():
        graphs[number][name] = value
    return graphs


@pytest.mark.parametrize(
    ("graphs", "message"),
    [
        (broken(3, x=torch.zeros(4, 2, dtype=torch.float64)), "graph 3: `x` is float64, and float32 in graph 0"),
        (broken(2, x=torch.zeros(3, 5)), "graph 2: `x` has shape [3, 5]; it has to be [..., 2], as in graph 0"),
        (broken(1, y=1), "graph 1: `y` is a number, and a tensor in graph 0"),
        (broken(4, x=None), "graph 4 has no `x`, which graph 0 has"),
        ([*molecules(2), "a string"], "number 2 (from 0) is a str"),
        ([*molecules(2), HeteroData()], "graph 2 is a HeteroData, and graph 0 a Data"),
        ([], "it has no graphs"),
    ],
)
def test_a_graph_that_does_not_go_with_the_first_is_named(graphs: list[Any], message: str) -> None:
    text = refusal(graphs)
    assert text.startswith("data.function f:g: ") and message in text


def test_a_type_that_some_graphs_lack_is_refused() -> None:
    """PyG would put the others together as if nothing were missing."""
    one, other = HeteroData(), HeteroData()
    one["a"].x, one["b"].x, other["a"].x = torch.zeros(1, 1), torch.zeros(1, 1), torch.zeros(1, 1)
    assert 'graph 1 has no node type "b", which graph 0 has' in refusal([one, other])


def test_there_is_no_such_graph() -> None:
    collated: Collated = collate(molecules(), "here")
    for wrong in (5, -1):
        with pytest.raises(IndexError, match=f"there is no graph {wrong}: there are 5"):
            collated.batch(np.array([0, wrong]))


def test_nothing_is_warned_of_graphs_whose_nodes_are_only_known_by_their_edges() -> None:
    graphs = [Data(edge_index=torch.tensor([[0], [2]])), Data(edge_index=torch.empty(2, 0, dtype=torch.int64))]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        collated = collate(graphs, "here")
        batch = collated.batch(np.array([0, 1, 0]))
    assert batch.batch.tolist() == [0, 0, 0, 2, 2, 2] and batch.edge_index.tolist() == [[0, 3], [2, 5]]
