"""Batches for training and evaluation: each graph once, the same whatever the ranks, and as PyG has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Batch

from disttrain.collection.graphs import Graphs
from disttrain.collection.loader import GraphLoader
from disttrain.config import Experiment, ExperimentError, Sampling
from disttrain.data.graphs import one_by_one as graphs_of
from disttrain.graph.schema import GRAPH, Wants
from disttrain.train.collections import prepare_collection
from disttrain.world import World
from tests import collections_of_graphs
from tests.ranks import run_ranks

WANTS = Wants(nodes={GRAPH: ("y",), "node": ("x",)}, edges={("node", "edge", "node"): ("edge_attr",)})


def experiment(
    directory: Path | str,
    function: str = "rings",
    task: str = "graph_classification",
    label: str = "y",
    sampling: Sampling | None = None,
    **data: Any,
) -> Experiment:
    return Experiment.model_validate(
        {
            "run_dir": f"{directory}/run",
            "data": {
                "source": "python", "function": f"tests.collections_of_graphs:{function}",
                "store": f"{directory}/store", "split": {"by": "folds", "folds": 5}, **data,
            },
            "task": {"kind": task, "label": label},
            "model": {"kind": "gin", "hidden": 8, "layers": 2},
            "sampling": sampling or {},
        }
    )  # fmt: skip


def opened(directory: Path | str, function: str = "rings", world: World | None = None, **settings: Any) -> Graphs:
    if world is not None:
        return prepare_collection(experiment(directory, function, **settings), world)
    with World.start(device="cpu", timeout=30) as alone:
        return prepare_collection(experiment(directory, function, **settings), alone)


def loaded(world: World, directory: str, workers: int, batch_size: int) -> dict[str, list[Any]]:
    graphs = opened(directory, world=world)
    sampling = Sampling(batch_size=batch_size, workers=workers, prefetch=1)
    found: dict[str, list[Any]] = {}
    for split in ("train", "val", "test"):
        loader = GraphLoader(
            world, graphs, f"{split}_mask", sampling=sampling, run_seed=3, wants=WANTS, training=split == "train"
        )
        for epoch, start in ((0, 0), (1, 0), (1, 1)):
            made = list(loader.batches(epoch, start))
            assert len(made) == max(0, loader.num_steps - start)
            assert [batch.step for batch in made] == list(range(start, loader.num_steps))
            found[f"{split} {epoch} {start}"] = [
                (batch[GRAPH].n_id.numpy(), batch.num_global_seeds, batch["node"].x.sum().item()) for batch in made
            ]
        found[split] = [np.flatnonzero(graphs.masks[f"{split}_mask"])]
    return found


def test_each_graph_is_there_once_whatever_the_ranks(tmp_path: Path) -> None:
    (alone,) = run_ranks(loaded, 1, str(tmp_path / "1"), 0, 12)
    ranks = run_ranks(loaded, 3, str(tmp_path / "3"), 2, 4)
    for split in ("train", "val", "test"):
        (ids,) = alone[split]
        for key in (f"{split} 0 0", f"{split} 1 0"):
            assert len({len(rank[key]) for rank in ranks}) == 1, "equal steps"
            everything = np.concatenate([graphs for rank in ranks for graphs, _, _ in rank[key]])
            assert sorted(everything) == ids.tolist()
        assert [graphs.tolist() for graphs, _, _ in ranks[1][f"{split} 1 1"]] == [
            graphs.tolist() for graphs, _, _ in ranks[1][f"{split} 1 0"][1:]
        ]
    for one, *parts in zip(alone["train 1 0"], *(rank["train 1 0"] for rank in ranks), strict=True):
        assert [graphs.tolist() for graphs, _, _ in parts] == [one[0][rank::3].tolist() for rank in range(3)]
        assert {part[1] for part in parts} == {len(one[0])}
        assert sum(part[2] for part in parts) == pytest.approx(one[2])
    assert alone["train 0 0"][0][0].tolist() != alone["train 1 0"][0][0].tolist()


def test_fewer_graphs_than_ranks(tmp_path: Path) -> None:
    ranks = run_ranks(loaded, 3, str(tmp_path), 1, 50)
    sizes = [[len(graphs) for graphs, _, _ in rank["test 0 0"]] for rank in ranks]
    assert sizes == [[5], [0], [0]]


@pytest.mark.parametrize("function", ["rings", "one_by_one", "chosen"])
def test_what_a_batch_carries_is_what_pyg_puts_together(tmp_path: Path, function: str) -> None:
    graphs = opened(tmp_path, function)
    source = list(graphs_of(getattr(collections_of_graphs, function)()))
    assert graphs.collated.num_graphs == len(source)
    ids = np.array([len(source) - 1, 3, len(source) - 2, 0])
    batch = graphs.batch(ids, WANTS)
    theirs: Any = Batch.from_data_list([source[i] for i in ids])
    assert torch.equal(batch["node"].x, theirs.x) and torch.equal(batch["node"].batch, theirs.batch)
    assert torch.equal(batch["node"].ptr, theirs.ptr) and batch["node"].num_nodes == theirs.num_nodes
    assert torch.equal(batch["node", "edge", "node"].edge_index, theirs.edge_index)
    assert torch.equal(batch["node", "edge", "node"].edge_attr, theirs.edge_attr)
    assert torch.equal(batch[GRAPH].y, theirs.y) and batch[GRAPH].batch_size == len(ids)


def test_the_schema_knows_what_belongs_to_graphs_nodes_and_edges(tmp_path: Path) -> None:
    graphs = opened(tmp_path, "one_by_one")
    schema = graphs.schema
    assert {name: list(nodes.attributes) for name, nodes in schema.nodes.items()} == {
        GRAPH: ["y", "train_mask", "val_mask", "test_mask"],
        "node": ["x"],
    }
    assert {name: list(edges.attributes) for name, edges in schema.edges.items()} == {
        ("node", "edge", "node"): ["edge_attr"]
    }
    x = torch.cat([graph.x for graph in collections_of_graphs.one_by_one()])  # pyright: ignore[reportArgumentType]
    assert schema.nodes["node"].count == len(x) and schema.nodes["node"].attributes["x"].high == x.max()
    found = graphs.statistics("node", "x")
    assert found is not None
    np.testing.assert_allclose(found[0], x.mean(dim=0), rtol=1e-6)
    np.testing.assert_allclose(found[1], x.std(dim=0, unbiased=False), rtol=1e-6)
    masks = [graphs.masks[f"{split}_mask"] for split in ("train", "val", "test")]
    assert np.array_equal(sum(mask.astype(int) for mask in masks), graphs.node_attribute(GRAPH, "y") >= 0)


def test_storages_give_the_same(tmp_path: Path) -> None:
    ids = np.array([4, 2, 2])
    mapped, read = (opened(tmp_path, storage=storage).batch(ids, WANTS) for storage in ("mmap", "memory"))
    assert str(mapped) == str(read) and torch.equal(mapped["node"].x, read["node"].x)


def refusal(tmp_path: Path, function: str, **settings: Any) -> str:
    with pytest.raises(ExperimentError) as caught:
        opened(tmp_path, function, **settings)
    return str(caught.value)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("one_broken", "graph 5: `x` is float64, and float32 in graph 0"),
        ("no_graphs", "number 0 (from 0) is a str"),
        ("nothing", "tests.collections_of_graphs has no 'nothing'"),
    ],
)
def test_what_is_no_collection_is_refused(tmp_path: Path, function: str, message: str) -> None:
    assert message in refusal(tmp_path, function)
    assert not list((tmp_path / "store").glob("[!.]*")), "nothing is left behind"


def test_one_graph_is_no_collection(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError) as caught, World.start(device="cpu", timeout=30) as world:
        one = experiment(tmp_path).data.model_copy(update={"function": "tests.graphs:zoo"})
        prepare_collection(experiment(tmp_path).model_copy(update={"data": one}), world)
    text = str(caught.value)
    assert "expected a collection of graphs, a list or iterator of Data or HeteroData" in text


def test_fewer_labels_than_folds_are_refused(tmp_path: Path) -> None:
    assert "9 folds of 2 rows" in refusal(tmp_path, "rings", args={"count": 3}, split={"by": "folds", "folds": 9})


def test_wanted_attributes_have_to_be_there(tmp_path: Path) -> None:
    graphs = opened(tmp_path)
    with pytest.raises(ExperimentError, match='the model wants `xx` of `node`, .* did you mean "x"'):
        graphs.resolved(Wants(nodes={"node": ("xx",)}))
    with pytest.raises(ExperimentError, match="the model wants `a,to,b`, and the collection has no such type"):
        graphs.resolved(Wants(edges={("a", "to", "b"): ("x",)}))
