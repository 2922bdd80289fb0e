"""Graphs as people save them: each has something in it that went wrong somewhere, beside what training should see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData


class Saved(NamedTuple):
    graph: Any
    """What is saved."""
    target: str
    nodes: dict[str, dict[str, Tensor]]
    """What training should see of each node type, in the order of the saved graph."""
    edges: dict[tuple[str, str, str], Tensor]
    """int64 [2, E] of each relation."""


def _random(seed: int, *shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


def _ends(seed: int, sources: int, destinations: int, edges: int) -> Tensor:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(np.stack([rng.integers(0, sources, edges), rng.integers(0, destinations, edges)]))


def _masks(rows: int) -> dict[str, Tensor]:
    part = torch.arange(rows) % 5
    return {"train_mask": part < 3, "val_mask": part == 3, "test_mask": part == 4}


def _indices(masks: dict[str, Tensor], val: str = "val") -> dict[str, Tensor]:
    found = {name.removesuffix("_mask"): mask.nonzero().flatten() for name, mask in masks.items()}
    return {"train": found["train"].flip(0), val: found["val"], "test": found["test"].int()}


def imdb_like() -> Saved:
    """Several labels per film, relations named as in HGB's IMDB, sparse features, a type without any."""
    data, masks = HeteroData(), _masks(40)
    y = torch.stack([torch.arange(40) % k == 0 for k in (1, 2, 3, 5, 7)], dim=1).float()
    y[3] = -1.0  # one without labels
    bag = (_random(0, 40, 30) > 1).float()
    data["movie"].x, data["movie"].y = bag.to_sparse(), y
    persons = (_random(1, 25, 12) > 0.5).half()
    with _sparse():
        data["actor"].x = persons.to_sparse_csr()
    data["keyword"].num_nodes = 9
    for name, mask in masks.items():
        data["movie"][name] = mask
    edges = {
        ("movie", ">actorh", "actor"): _ends(2, 40, 25, 90),
        ("actor", "<actorh", "movie"): _ends(3, 25, 40, 90),
        ("movie", "to", "keyword"): _ends(4, 40, 9, 60),
        ("keyword", "to", "movie"): _ends(5, 9, 40, 60),
    }
    for edge_type, index in edges.items():
        data[edge_type].edge_index = index
    labelled = {name: mask & (torch.arange(40) != 3) for name, mask in masks.items()}
    nodes = {"movie": {"x": bag, "y": y, **labelled}, "actor": {"x": persons}, "keyword": {}}
    return Saved(data, "movie", nodes, edges)


def odd_names_and_extras() -> Saved:
    """Names with all characters but commas; attributes that have no row per node; masks of other types."""
    data, masks = HeteroData(), _masks(30)
    person, place = "Person / Ünïcode", "a place: 'x' \"y\" $(z)"
    counts = torch.arange(60).view(30, 2) - 7
    data[person].x, data[person].y = counts, (torch.arange(30) % 3).view(-1, 1).double()
    data[person].names = [f"person {row}" for row in range(30)]
    data[person].lookup = {"nested": {"lists": [1, [2, (3, None)]]}, "flag": True}
    data[person].weights = np.linspace(0, 1, 30)
    data[person].train_mask = masks["train_mask"].to(torch.uint8)
    data[person].val_mask = masks["val_mask"].double()
    data[person].test_mask = masks["test_mask"].nonzero().flatten()
    data[place].x = torch.arange(8) % 2 == 0
    data.title, data.made_of, data.scale = "a graph", ["one", {"two": 2}], 0.5
    data.table = np.arange(6).reshape(2, 3)
    edges = {
        (person, "lives in -> at", place): _ends(0, 30, 8, 50),
        (place, "../home of", person): _ends(1, 8, 30, 50),
        (person, ">знает<", person): _ends(2, 30, 30, 70),
    }
    for edge_type, index in edges.items():
        data[edge_type].edge_index = index
        data[edge_type].note = "which is no number"
    seen = {"x": counts, "y": data[person].y, "weights": torch.from_numpy(data[person].weights), **masks}
    return Saved(data, person, {person: seen, place: {"x": data[place].x}}, edges)


def small_and_large_floats() -> Saved:
    """float16, float64 and bfloat16 features, boolean labels, features of one and of three dimensions."""
    data, masks = HeteroData(), _masks(24)
    data["half"].x, data["half"].y = _random(0, 24, 4).half(), torch.arange(24) % 2 == 0
    data["double"].x = _random(1, 10).double()
    data["brain"].x = _random(2, 12, 3, 2).bfloat16()
    for name, mask in masks.items():
        data["half"][name] = mask
    edges = {
        ("double", "to", "half"): _ends(0, 10, 24, 40),
        ("brain", "to", "half"): _ends(1, 12, 24, 40),
        ("half", "to", "double"): _ends(2, 24, 10, 40),
        ("half", "to", "brain"): _ends(3, 24, 12, 40),
    }
    for edge_type, index in edges.items():
        data[edge_type].edge_index = index
    nodes = {
        "half": {"x": data["half"].x, "y": data["half"].y, **masks},
        "double": {"x": data["double"].x},
        "brain": {"x": data["brain"].x.float()},
    }
    return Saved(data, "half", nodes, edges)


def shapes_of_edges() -> Saved:
    """Edges as a transposed view and as int32, self loops, multi-edges, isolated nodes, types of one node and none."""
    data, masks = HeteroData(), _masks(20)
    data["many"].x, data["many"].y = _random(0, 20, 3), torch.arange(20) % 4
    data["one"].x = torch.tensor([[2.5]])
    data["none"].x = torch.empty(0, 4)
    data["alone"].num_nodes = 3
    for name, mask in masks.items():
        data["many"][name] = mask
    pairs = torch.tensor([[0, 0], [1, 1], [2, 3], [2, 3], [2, 3], [19, 0], [4, 19]])
    edges = {
        ("many", "self and again", "many"): pairs.t(),
        ("one", "to", "many"): torch.stack([torch.zeros(9, dtype=torch.int32), torch.arange(9, dtype=torch.int32)]),
        ("many", "to", "one"): torch.stack([torch.arange(20), torch.zeros(20, dtype=torch.long)]),
        ("none", "to", "many"): torch.empty(2, 0, dtype=torch.long),
        ("many", "to", "none"): torch.empty(2, 0, dtype=torch.long),
    }
    for edge_type, index in edges.items():
        data[edge_type].edge_index = index
    data["many", "to", "none"].edge_index = torch.tensor([])  # as an empty list becomes a tensor
    assert not data["many", "self and again", "many"].edge_index.is_contiguous()
    nodes = {"many": {"x": data["many"].x, "y": data["many"].y, **masks}, "one": {"x": data["one"].x}, "none": {}}
    return Saved(data, "many", {**nodes, "alone": {}}, edges)


def adjacency_and_ids() -> Saved:
    """A homogeneous graph with `adj_t`, features of bytes, and splits as lists of ids."""
    masks, ends = _masks(35), torch.unique(_ends(0, 35, 34, 120), dim=1)
    with _sparse():
        adj_t = torch.sparse_coo_tensor(ends.flip(0), torch.ones(ends.size(1)), (35, 35)).to_sparse_csr()
    split = _indices(masks, val="valid")
    x, y = (torch.arange(70) % 251).to(torch.uint8).view(35, 2), torch.arange(35) % 3
    data = Data(
        x=x,
        y=y,
        adj_t=adj_t,
        **{f"{name}_idx": ids for name, ids in split.items()},
    )
    return Saved(data, "node", {"node": {"x": x, "y": y, **masks}}, {("node", "edge", "node"): ends})


def only_edges_and_split_idx() -> Saved:
    """A homogeneous graph without features, whose number of nodes is nowhere said but in the labels."""
    masks, ends = _masks(26), _ends(1, 26, 26, 80)
    data = Data(y=torch.arange(26) % 2, edge_index=ends, edge_attr=_random(1, 80, 2))
    data.split_idx = _indices(masks, val="valid")
    return Saved(data, "node", {"node": {"y": torch.arange(26) % 2, **masks}}, {("node", "edge", "node"): ends})


class _sparse:
    """Without what PyTorch says, once a process, of sparse tensors."""

    def __enter__(self) -> None:
        import warnings

        self._caught = warnings.catch_warnings()
        self._caught.__enter__()
        warnings.filterwarnings("ignore", "Sparse")

    def __exit__(self, *_: object) -> None:
        self._caught.__exit__(None, None, None)


SAVED: dict[str, Callable[[], Saved]] = {
    made.__name__: made
    for made in (
        imdb_like,
        odd_names_and_extras,
        small_and_large_floats,
        shapes_of_edges,
        adjacency_and_ids,
        only_edges_and_split_idx,
    )
}
