"""Generated graphs: exact counts, the same bits everywhere, planted structure that can be measured."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
import torch

from disttrain.config import ExperimentError, GeneratedData
from disttrain.data.generated import generate


def section(**changes: Any) -> GeneratedData:
    settings: dict[str, Any] = {
        "source": "generated",
        "seed": 3,
        "nodes": {
            "paper": {"num_nodes": 3000, "features": 16},
            "author": {"num_nodes": 1000, "features": 3},
            "topic": {"num_nodes": 5},
        },
        "edges": {
            "author,writes,paper": {"num_edges": 9000},
            "paper,cites,paper": {"num_edges": 20000, "reverse": False},
            "paper,about,topic": {"num_edges": 4000, "exponent": [0.0, 0.5]},
        },
        "num_classes": 10,
        "num_communities": 20,
        "homophily": 0.7,
    }
    return GeneratedData(**{**settings, **changes})


def test_counts_types_and_reverses():
    data = generate(section())
    assert data.node_types == ["paper", "author", "topic"]
    assert [data[t].num_nodes for t in data.node_types] == [3000, 1000, 5]
    assert data["paper"].x.shape == (3000, 16)
    assert data["paper"].x.dtype == torch.float32
    assert "x" not in data["topic"]
    assert data["paper"].y.dtype == torch.int64
    assert "y" not in data["author"]
    assert [data[e].num_edges for e in data.edge_types] == [9000, 9000, 20000, 4000, 4000]
    assert torch.equal(
        data["paper", "rev_writes", "author"].edge_index, data["author", "writes", "paper"].edge_index.flip(0)
    )
    data.validate(raise_on_error=True)


def test_neither_multi_edges_nor_self_loops():
    data = generate(section())
    for edge_type in data.edge_types:
        src, dst = data[edge_type].edge_index
        assert len(torch.unique(src * 10_000 + dst)) == len(src)
    cites = data["paper", "cites", "paper"].edge_index
    assert not (cites[0] == cites[1]).any()


def test_the_same_bits_on_any_machine():
    digest = hashlib.blake2b(digest_size=8)
    data = generate(section())
    for store in data.stores:
        for _, value in sorted(store.items()):
            digest.update(value.numpy().tobytes() if isinstance(value, torch.Tensor) else str(value).encode())
    assert digest.hexdigest() == "70a791c8b8aa6657"


def test_another_seed_is_another_graph_and_a_relation_does_not_disturb_others():
    data, other = generate(section()), generate(section(seed=4))
    assert not torch.equal(data["paper"].x, other["paper"].x)
    fewer = generate(section(edges={"paper,cites,paper": {"num_edges": 20000, "reverse": False}}))
    cites = ("paper", "cites", "paper")
    assert torch.equal(fewer[cites].edge_index, data[cites].edge_index)


def test_homophily_is_the_share_of_edges_within_communities():
    # As many classes as communities: the class is the community.
    data = generate(section(num_classes=20))
    src, dst = data["paper", "cites", "paper"].edge_index
    same = (data["paper"].y[src] == data["paper"].y[dst]).double().mean()
    # Four standard deviations, and a little for multi-edges that were drawn again.
    assert abs(same - 0.7) < 4 * (0.7 * 0.3 / 20000) ** 0.5 + 0.02


def test_power_law_degrees():
    data = generate(section(homophily=0.0, edges={"author,writes,paper": {"num_edges": 20000, "exponent": [0.0, 0.8]}}))
    src, dst = data["author", "writes", "paper"].edge_index
    flat, steep = torch.bincount(src, minlength=1000), torch.bincount(dst, minlength=3000).sort(descending=True).values
    # Uniform: the busiest source has a few times the mean of 20. Power law: the first tenth has most edges.
    assert flat.max() < 60
    # sum(r^-0.8, r < 300) / sum(r^-0.8, r < 3000) = 0.57; hubs lose a little, as multi-edges are not made.
    assert 0.45 < steep[:300].sum() / 20000 < 0.65


def test_more_classes_than_communities_and_fewer():
    assert generate(section(num_classes=50, num_communities=8))["paper"].y.unique().numel() == 50
    assert generate(section(num_classes=3, num_communities=64))["paper"].y.unique().tolist() == [0, 1, 2]
    assert generate(section(num_classes=1, num_communities=1))["paper"].y.unique().tolist() == [0]


def test_noise_zero_gives_the_class_centres():
    data = generate(section(noise=0.0))
    x, y = data["paper"].x, data["paper"].y
    for label in range(10):
        assert (x[y == label] == x[y == label][0]).all()
    assert torch.unique(x, dim=0).shape[0] == 10


def test_every_pair_can_be_asked_for():
    data = generate(
        section(
            nodes={"a": {"num_nodes": 7}, "b": {"num_nodes": 4}},
            edges={"a,to,b": {"num_edges": 28}, "a,of,a": {"num_edges": 42}},
        )
    )
    assert torch.unique(data["a", "to", "b"].edge_index, dim=1).shape[1] == 28
    assert torch.unique(data["a", "of", "a"].edge_index, dim=1).shape[1] == 42


def test_refusals():
    with pytest.raises(ExperimentError, match=r"at most 42 .* got 43"):
        generate(section(nodes={"a": {"num_nodes": 7}}, edges={"a,of,a": {"num_edges": 43}}))
    with pytest.raises(ExperimentError, match=r"expected node types out of .*'author'.* got 'autor'"):
        generate(section(edges={"autor,writes,paper": {"num_edges": 3}}))
    with pytest.raises(ExperimentError, match=r"data\.target: .* got 'papers'"):
        generate(section(target="papers"))
    with pytest.raises(ExperimentError, match="a ring has one node type"):
        generate(section(kind="ring"))
    with pytest.raises(ExperimentError, match="at least one node type"):
        generate(section(nodes={}, edges={}))


def test_ring():
    data = generate(section(kind="ring", nodes={"v": {"num_nodes": 9}}, edges={}, num_classes=4))
    assert data.edge_types == [("v", "edge", "v")]
    assert data["v"].x.tolist() == [[float(v)] for v in range(9)]
    assert data["v"].y.tolist() == [v % 4 for v in range(9)]
    src, dst = data["v", "edge", "v"].edge_index
    assert src.tolist() == [*range(9), *range(9)]
    assert dst.tolist() == [(v + 1) % 9 for v in range(9)] + [(v + 2) % 9 for v in range(9)]
