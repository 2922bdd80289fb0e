"""What a model of one's own may want of a batch is what `Batch.from_data_list` would have given it, under each name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Batch, Data, HeteroData

from disttrain.collection.collated import collate
from disttrain.collection.graphs import Graphs
from disttrain.config import ExperimentError
from disttrain.graph.schema import GRAPH, Wants
from tests.unit.test_collection_collated import Pair, heterogeneous, homogeneous, same

pytestmark = pytest.mark.filterwarnings("ignore:Unable to accurately infer 'num_nodes'", "ignore:Sparse")
EDGES = ("node", "edge", "node")


def graphs_of(graphs: list[Any]) -> Graphs:
    return Graphs(collate(graphs, "here"), {"stores": [], "fingerprint": ""})


def of_pyg(batch: Any) -> dict[str, Any]:
    return {name: value for name, value in dict(batch.items()).items() if name not in ("num_nodes", "batch", "ptr")}


def ours(batch: Any, owners: list[Any]) -> dict[str, Any]:
    own = ("num_nodes", "batch", "ptr", "batch_size", "n_id")
    return {name: value for owner in owners for name, value in dict(batch[owner].items()).items() if name not in own}


def everything(graphs: Graphs) -> Wants:
    nodes, edges = graphs.schema.nodes, graphs.schema.edges
    return graphs.resolved(Wants(nodes=dict.fromkeys(nodes, ("*",)), edges=dict.fromkeys(edges, ("*",))))


def same_attributes(mine: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert mine.keys() == theirs.keys()
    for name, value in mine.items():
        same(value.long() if name == "edge_index" else value, _long(theirs[name], name), name)


def _long(value: Any, name: str) -> Any:
    return value.long() if name == "edge_index" else value


@settings(max_examples=40)
@given(st.data())
def test_every_attribute_of_homogeneous_graphs(data: st.DataObject) -> None:
    made, _ = data.draw(homogeneous())
    ids = data.draw(st.lists(st.integers(0, len(made) - 1), min_size=1, max_size=5))
    graphs = graphs_of(made)
    wants = everything(graphs)
    batch = graphs.batch(np.array(ids), wants)
    theirs = Batch.from_data_list([made[i] for i in ids])
    same_attributes(ours(batch, [GRAPH, "node", *graphs.schema.edges]), of_pyg(theirs))


@settings(max_examples=30)
@given(st.data())
def test_every_attribute_of_heterogeneous_graphs(data: st.DataObject) -> None:
    made = data.draw(heterogeneous())
    ids = data.draw(st.lists(st.integers(0, len(made) - 1), min_size=1, max_size=5))
    graphs = graphs_of(made)
    batch = graphs.batch(np.array(ids), everything(graphs))
    theirs: Any = Batch.from_data_list([made[i] for i in ids])
    same_attributes(ours(batch, [GRAPH]), of_pyg(theirs._global_store))
    for store in (*theirs.node_stores, *theirs.edge_stores):
        same_attributes(ours(batch, [store._key]), of_pyg(store))


def two_in_one(n: int) -> Data:
    graph: Any = Pair(x=torch.ones(n, 2), x_t=torch.ones(n + 1, 3))
    graph.edge_index_t = torch.tensor([[0, n - 1], [n, 0]])
    graph.root_index, graph.smiles, graph.codes = n - 1, "C" * n, {"a": torch.arange(n)}
    return graph


def test_indices_follow_batch_and_what_is_no_row_for_each() -> None:
    made = [two_in_one(n) for n in (2, 3, 1)]
    graphs = graphs_of(made)
    names = ("edge_index_t", "root_index", "smiles", "codes", "x_t", "x_t_batch", "x_t_ptr", "codes_batch", "x")
    batch = graphs.batch(np.array([2, 0]), graphs.resolved(Wants(nodes={GRAPH: names, "node": ("x", "x_ptr")})))
    theirs: Any = Batch.from_data_list([made[2], made[0]], follow_batch=["x", "x_t", "codes"])
    for name in names:
        same(batch[GRAPH][name], theirs[name], name)
    same(batch["node"].x_ptr, theirs.x_ptr)
    assert batch[GRAPH].num_nodes == 2 and batch["node"].num_nodes == 3
    moved = batch.to("cpu").clone()
    assert torch.equal(moved[GRAPH].edge_index_t, theirs.edge_index_t)
    for wrong in ("smile", "y_batch"):
        with pytest.raises(ExperimentError, match=f"the model wants `{wrong}` of `graph`, and the graphs have no such"):
            graphs.resolved(Wants(nodes={GRAPH: (wrong,)}))


def test_adjacency_matrices_instead_of_edges() -> None:
    made = []
    for n in (2, 3):
        graph: Any = HeteroData()
        graph["a"].x, graph["b"].x = torch.ones(n, 1), torch.ones(2, 1)
        graph["a", "to", "b"].adj_t = torch.ones(2, n).to_sparse_csr()
        made.append(graph)
    graphs, edge_type = graphs_of(made), ("a", "to", "b")
    batch = graphs.batch(np.array([1, 0]), graphs.resolved(Wants(edges={edge_type: ("adj_t",)})))
    theirs: Any = Batch.from_data_list(made[::-1])
    same(batch[edge_type].adj_t, theirs[edge_type].adj_t)
    assert graphs.sizes[1].tolist() == [4, 6]
