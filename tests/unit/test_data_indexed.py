"""Graphs in the form of PyG's `Entities`: typed edges, and labels and splits by index."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data, HeteroData

from disttrain.config import NodeClassification, PygData, SplitByMasks
from disttrain.data import load
from disttrain.data.indexed import by_relation, with_labels


def typed() -> Data:
    return Data(
        edge_index=torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]]),
        edge_type=torch.tensor([2, 0, 2, 0]),
        edge_attr=torch.arange(4.0),
        train_idx=torch.tensor([3, 0]),
        train_y=torch.tensor([1, 0]),
        test_idx=torch.tensor([1]),
        test_y=torch.tensor([1]),
        num_nodes=5,
    )


def test_each_type_of_edge_is_a_relation() -> None:
    found = by_relation(typed())
    assert found.node_types == ["node"]
    assert found.edge_types == [("node", str(number), "node") for number in range(3)]
    assert found["node", "0", "node"].edge_index.tolist() == [[1, 3], [2, 0]]
    assert found["node", "0", "node"].edge_attr.tolist() == [1.0, 3.0]
    assert found["node", "1", "node"].num_edges == 0
    assert found["node", "2", "node"].edge_index.tolist() == [[0, 2], [1, 3]]


def test_labels_by_index_become_labels_of_nodes() -> None:
    store = with_labels(by_relation(typed()))["node"]
    assert store.num_nodes == 5
    assert store.y.tolist() == [0, 1, -1, 1, -1]
    assert store.train_mask.tolist() == [True, False, False, True, False]
    assert store.test_mask.tolist() == [False, True, False, False, False]


def test_what_is_said_of_the_whole_graph_is_said_of_its_only_nodes() -> None:
    """PyG's own way from one form to the other leaves labels by index at the graph."""
    whole = typed()
    graph = whole.to_heterogeneous(node_type_names=["v"])
    store = with_labels(graph)["v"]
    assert store.y.tolist() == [0, 1, -1, 1, -1]
    assert "train_y" in graph._global_store, "what was given is not changed"


def test_other_graphs_come_back_as_they_are() -> None:
    plain, hetero = Data(edge_index=torch.tensor([[0], [1]])), HeteroData()
    assert by_relation(plain) is plain and by_relation(hetero) is hetero
    half = typed()
    half.edge_type = half.edge_type.float()
    assert by_relation(half) is half
    assert with_labels(plain) is plain
    before = by_relation(typed())
    with_labels(before)
    assert "train_y" in before["node"], "what was given is not changed"


@pytest.mark.parametrize("hetero", [False, True])
def test_the_real_aifb_by_pyg(hetero: bool, tmp_path: Path, real_data: Callable[[str], Path]) -> None:
    pytest.importorskip("rdflib")
    pytest.importorskip("pandas")
    raw = tmp_path / "aifb" / "raw"
    raw.mkdir(parents=True)
    for file in real_data("rdf-aifb").iterdir():
        (raw / file.name).symlink_to(file)
    data = PygData(
        source="pyg", dataset="Entities", root=str(tmp_path), args={"name": "AIFB", "hetero": hetero},
        split=SplitByMasks(val_from_train=0.2),
    )  # fmt: skip
    loaded = load(data, NodeClassification(kind="node_classification")).data
    (node_type,) = loaded.node_types
    assert (loaded[node_type].num_nodes, len(loaded.edge_types)) == (8285, 90)
    assert int(loaded[node_type].train_mask.sum() + loaded[node_type].val_mask.sum()) == 140
    assert int(loaded[node_type].test_mask.sum()) == 36
