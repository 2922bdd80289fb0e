"""Graphs as objects, transformed at each access and put together again: what PyG's own loader makes of them."""

from __future__ import annotations

import pickle
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.data.storage import NodeStorage

from disttrain.collection.collated import collate
from disttrain.collection.graphs import Graphs
from disttrain.collection.joining import join
from disttrain.collection.loader import GraphLoader
from disttrain.collection.objects import graphs_of
from disttrain.collection.parcel import pack
from disttrain.config import ExperimentError, Sampling
from disttrain.graph.schema import GRAPH, Wants
from disttrain.world import World
from tests import collections_of_graphs
from tests.ranks import run_ranks
from tests.unit.test_collection_collated import heterogeneous, homogeneous, same, same_batch
from tests.unit.test_collection_loader import opened

EDGES = ("node", "edge", "node")
WANTS = Wants(nodes={GRAPH: ("y",), "node": ("x",)}, edges={EDGES: ("edge_attr",)})
HERE = "tests.collections_of_graphs"

pytestmark = pytest.mark.filterwarnings("ignore:Unable to accurately infer 'num_nodes'", "ignore:Sparse")


def plain(graph: Data) -> Data:
    """Without rules of its own."""
    held, made = graph.to_dict(), Data()
    for name in ["num_nodes"] * ("num_nodes" in held) + list(held):
        made[name] = held[name]
    return made


@settings(max_examples=40)
@given(st.data())
def test_objects_are_the_graphs_and_come_together_as_pyg_has_it(data: st.DataObject) -> None:
    graphs: list[Any] = data.draw(
        st.one_of(homogeneous().map(lambda drawn: [plain(graph) for graph in drawn[0]]), heterogeneous())
    )
    ids = np.array(data.draw(st.lists(st.integers(0, len(graphs) - 1), min_size=1, max_size=6)))
    try:
        collated = collate(graphs, "here")
    except ExperimentError:
        return  # what plain graphs have no rule for
    if collated.left_out:
        return
    made = graphs_of(collated, ids)
    assert type(made[0]) is type(graphs[0])
    for ours, number in zip(made, ids):
        assert ours.num_nodes == graphs[number].num_nodes
        for mine, theirs in zip(ours.stores, graphs[number].stores):
            assert mine._key == theirs._key and mine._parent() is ours and type(mine) is type(theirs)
            for name, value in theirs.items():
                # A tensor without axes comes back with one, as from PyG's own `InMemoryDataset`.
                scalar = isinstance(value, torch.Tensor) and value.dim() == 0
                same(mine[name], value.unsqueeze(0) if scalar else value, name)
    joined = join(made, ids, collated)
    theirs: Any = Batch.from_data_list([graphs[i] for i in ids])
    same_batch(joined.batch(np.arange(len(ids))), theirs)


def test_objects_may_be_changed() -> None:
    graphs: list[Any] = [*collections_of_graphs.rings(4)]
    collated = collate(graphs, "here")
    first, second = graphs_of(collated, np.array([1, 1]))
    first.x.zero_()
    assert torch.equal(second.x, graphs[1].x) and torch.equal(graphs_of(collated, np.array([1]))[0].x, graphs[1].x)


def wider(number: int) -> Any:
    return collections_of_graphs.wider(collections_of_graphs.rings()[number], by=2)


def test_what_a_transform_adds_is_known_and_carried(tmp_path: Path) -> None:
    graphs = opened(tmp_path, transforms=[{f"{HERE}:wider": {"by": 2}}])
    assert graphs.schema.nodes["node"].attributes["x"].shape == (4,)
    assert list(graphs.schema.edges[EDGES].attributes) == ["edge_attr", "edge_weight"]
    assert graphs.schema.nodes["node"].count == sum(3 + number % 6 for number in range(30))
    x = torch.cat([wider(number).x for number in range(30)])
    found = graphs.statistics("node", "x")
    assert found is not None
    np.testing.assert_allclose(found[0], x.mean(dim=0), rtol=1e-6)
    wants = Wants(WANTS.nodes, {EDGES: ("edge_weight", "edge_attr")})
    graphs.resolved(wants)
    ids = np.array([29, 3, 0, 3])
    batch, theirs = graphs.batch(ids, wants), Batch.from_data_list([wider(i) for i in ids])
    for name in ("x", "batch", "ptr"):
        assert torch.equal(batch["node"][name], theirs[name]), name  # pyright: ignore[reportIndexIssue]
    for name in ("edge_index", "edge_weight", "edge_attr"):
        assert torch.equal(batch[EDGES][name], theirs[name]), name  # pyright: ignore[reportIndexIssue]
    assert batch[GRAPH].y.tolist() == theirs.y.tolist() and batch[GRAPH].n_id.tolist() == ids.tolist()  # pyright: ignore
    nobody = graphs.batch(np.empty(0, np.int64), wants)
    assert str(pack(nobody).opened()) == str(nobody), "as a worker process sends it"
    assert nobody["node"].x.shape == (0, 4) and nobody[EDGES].edge_index.shape == (2, 0)


def test_labels_may_come_from_transforms_only(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"transforms": [f"{HERE}:another_label"], "label": "z"}
    graphs = opened(tmp_path, **settings)
    assert "y" not in graphs.schema.nodes[GRAPH].attributes
    assert graphs.node_attribute(GRAPH, "z").tolist() == [number % 2 for number in range(30)]
    masks = [graphs.masks[f"{split}_mask"] for split in ("train", "val", "test")]
    assert sum(int(mask.sum()) for mask in masks) == 30, "all have this label"
    batch = graphs.batch(np.array([4, 7]), Wants(nodes={GRAPH: ("z",)}))
    assert batch[GRAPH].z.tolist() == [0, 1]


def arrays() -> list[int]:
    state: Any = np.random.get_state()  # noqa: NPY002
    return state[1].tolist()


def drawn(world: World, directory: str, batch_size: int) -> dict[int, float]:
    graphs = opened(directory, world=world, transforms=[f"{HERE}:noise"])
    sampling = Sampling(batch_size=batch_size, workers=2, prefetch=1)
    loader = GraphLoader(world, graphs, "train_mask", sampling=sampling, run_seed=3, wants=WANTS, training=True)
    before = random.getstate(), torch.get_rng_state(), arrays()
    found = {}
    for epoch in (0, 1):
        for batch in loader.batches(epoch):
            firsts = batch["node"].x[batch["node"].ptr[:-1], 1]
            found |= {epoch * 100 + int(i): x for i, x in zip(batch[GRAPH].n_id, firsts.tolist())}
    assert random.getstate() == before[0] and torch.equal(torch.get_rng_state(), before[1])
    assert arrays() == before[2]
    return found


def test_draws_depend_on_run_epoch_and_graph_alone(tmp_path: Path) -> None:
    (alone,) = run_ranks(drawn, 1, str(tmp_path), 12)
    ranks = run_ranks(drawn, 3, str(tmp_path), 2)
    together: dict[int, float] = {}
    for rank in ranks:
        together |= rank
    assert together == alone
    noise = [value - key % 100 for key, value in alone.items()]
    assert len(set(noise)) == len(noise) and all(0 < each < 3 for each in noise)


def refusal(graphs: Graphs, ids: list[int], error: type[Exception] = ExperimentError) -> str:
    with pytest.raises(error) as caught:
        graphs.batch(np.array(ids), Wants(nodes={"node": ("x",)}))
    return str(caught.value)


def test_a_graph_that_differs_is_refused_by_its_number(tmp_path: Path) -> None:
    graphs = opened(tmp_path, args={"count": 1000}, transforms=[{f"{HERE}:wider": {}}])
    assert graphs.access is not None
    access: Any = graphs.access

    def but_five(change: Any) -> Any:
        def changed(graph: Any, number: int) -> Any:
            graph = collections_of_graphs.wider(graph)
            return change(graph) if number == 5 else graph

        return changed

    def but(name: str, value: Any) -> Any:
        def changed(graph: Any) -> Any:
            graph[name] = value(graph) if callable(value) else value
            return graph

        return changed

    for change, message in (
        (but("x", None), "graph 5 is not like the others after them: it has no `x`"),
        (but("x", lambda g: g.x.double()), r"`x` is float64 \[8, 3\], and float32 \[..., 3\] in others"),
        (but("x", lambda g: g.x[:, :2]), r"graph 5 .* `x` is float32 \[8, 2\], and float32 \[..., 3\] in others"),
        (but("x", lambda g: g.x.to_sparse()), "graph 5 .* `x` is a sparse matrix"),
        (but("x", 3), "graph 5.*`x`"),
        (lambda graph: HeteroData(), "graph 5 .* it is a HeteroData, and the others are Data"),
        (but("num_nodes", 3), "graph 5 .* `x` has 8 rows, and there are 3 nodes; others have one for each"),
    ):
        access._apply = but_five(change)
        assert re.search(message, refusal(graphs, [4, 5, 6])), message
        assert graphs.batch(np.array([4, 6]), WANTS)["node"].x.shape[1] == 3
    assert isinstance(pickle.loads(pickle.dumps(graphs)), Graphs)


def test_a_transform_that_fails_is_named_with_the_graph(tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"data.transforms\[0\] .*:fails failed on graph 3: ZeroDivisionError: no way"):
        opened(tmp_path, transforms=[f"{HERE}:fails"])
    with pytest.raises(ExperimentError, match="has no 'nothing'"):
        opened(tmp_path, transforms=[f"{HERE}:nothing"])


def test_graphs_that_differ_are_found_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match="graph 9 is not like the others"):
        opened(tmp_path, transforms=[{f"{HERE}:another_label": {"odd": 9}}], label="z")


def test_the_stores_of_objects_are_those_of_pyg() -> None:
    made: Any = graphs_of(collate(collections_of_graphs.pairs(2), "here"), np.array([1]))[0]
    assert isinstance(made["a"], NodeStorage) and made.node_types == ["a", "b"] and made.num_edges == 2
    copied = made.clone()
    assert copied["a"].num_nodes == 2 and "a" in str(made)
