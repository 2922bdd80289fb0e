"""One hop through the interface of pyg-lib's `dist_neighbor_sample`: by this package, and by pyg-lib where it is.

The expected results are worked out by hand.
"""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
from scipy.stats import chisquare

from disttrain.sampling.one_hop import one_hop_of, sample_one_hop

BACKENDS = [
    pytest.param(sample_one_hop, id="numba"),
    pytest.param(
        one_hop_of("pyg-lib") if find_spec("pyg_lib") else None,
        id="pyg-lib",
        marks=pytest.mark.skipif(find_spec("pyg_lib") is None, reason="pyg-lib is not installed"),
    ),
]
# 0 <- 1, 2, 3, 4    1 <- (none)    2 <- 0, 0, 2
ROWPTR, COL = torch.tensor([0, 4, 4, 7, 7, 7]), torch.tensor([1, 2, 3, 4, 0, 0, 2])


@pytest.mark.parametrize("one_hop", BACKENDS)
def test_all_neighbours_in_order(one_hop):
    node, edge, ends = one_hop(ROWPTR, COL, torch.tensor([2, 1, 0]), -1, csc=True)
    assert node.tolist() == [2, 1, 0, 0, 0, 2, 1, 2, 3, 4]
    assert edge.tolist() == [4, 5, 6, 0, 1, 2, 3]
    assert list(ends) == [3, 6, 6, 10]


@pytest.mark.parametrize("one_hop", BACKENDS)
def test_seeds_that_are_kept_apart(one_hop):
    node, edge, ends = one_hop(ROWPTR, COL, torch.tensor([2, 2]), -1, csc=True, disjoint=True)
    assert node.tolist() == [[0, 2], [1, 2], [0, 0], [0, 0], [0, 2], [1, 0], [1, 0], [1, 2]]
    assert edge.tolist() == [4, 5, 6, 4, 5, 6] and list(ends) == [2, 5, 8]


@pytest.mark.parametrize("one_hop", BACKENDS)
def test_some_with_and_without_replacement(one_hop):
    node, edge, ends = one_hop(ROWPTR, COL, torch.tensor([0, 1, 2]), 2, csc=True)
    assert list(ends) == [3, 5, 5, 7] and len(set(edge.tolist())) == 4
    assert node[3:].tolist() == COL[edge].tolist()
    node, edge, ends = one_hop(ROWPTR, COL, torch.tensor([0, 1, 2]), 9, csc=True, replace=True)
    assert list(ends) == [3, 12, 12, 21] and node[3:].tolist() == COL[edge].tolist()
    assert set(edge[:9].tolist()) <= {0, 1, 2, 3} and set(edge[9:].tolist()) <= {4, 5, 6}


@pytest.mark.parametrize("one_hop", BACKENDS)
@pytest.mark.parametrize("strategy", ["uniform", "last"])
def test_by_time(one_hop, strategy):
    """Neighbours lie in the order of time."""
    at = torch.tensor([10, 20, 30, 40, 5, 5, 6])
    options = dict(seed_time=torch.tensor([30, 9, 5, 4]), csc=True, disjoint=True, temporal_strategy=strategy)
    seeds = torch.tensor([0, 0, 2, 2])
    node, edge, ends = one_hop(ROWPTR, COL, seeds, -1, edge_time=at, **options)
    assert edge.tolist() == [0, 1, 2, 4, 5] and list(ends) == [4, 7, 7, 9, 9]
    assert node[4:, 0].tolist() == [0, 0, 0, 2, 2]
    node, edge, ends = one_hop(ROWPTR, COL, seeds, 2, edge_time=at, **options)
    assert list(ends) == [4, 6, 6, 8, 8]
    assert edge[:2].tolist() == [1, 2] if strategy == "last" else set(edge[:2].tolist()) < {0, 1, 2}
    of_nodes = torch.tensor([3, 1, 2, 3, 4])  # neighbours of 0 lie in its order too; seeds have their own times
    options = options | dict(seed_time=None)
    node, edge, ends = one_hop(ROWPTR[:2], COL[:4], torch.tensor([0]), -1, node_time=of_nodes, **options)
    assert edge.tolist() == [0, 1, 2] and list(ends) == [1, 4] and node.tolist() == [[0, 0], [0, 1], [0, 2], [0, 3]]


@pytest.mark.parametrize("one_hop", BACKENDS)
def test_by_weight(one_hop):
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0, 1.0, 1.0, 1.0])
    seeds = torch.zeros(4000, dtype=torch.long)
    _, edge, _ = one_hop(ROWPTR, COL, seeds, 1, edge_weight=weights, csc=True)
    assert chisquare(torch.bincount(edge, minlength=4)[:4].numpy(), [400, 800, 1200, 1600]).pvalue > 1e-3
    _, edge, ends = one_hop(ROWPTR, COL, seeds, 2, edge_weight=weights, csc=True, replace=True)
    assert chisquare(torch.bincount(edge, minlength=4)[:4].numpy(), [800, 1600, 2400, 3200]).pvalue > 1e-3
    assert ends[-1] == 12000


def test_weights_of_zero_are_never_drawn():
    weights = torch.tensor([0.0, 2.0, 0.0, 4.0, 0.0, 0.0, 0.0])
    _, edge, ends = sample_one_hop(ROWPTR, COL, torch.tensor([0, 2]), 3, edge_weight=weights)
    assert edge.tolist() == [1, 3] and ends == [2, 4, 4]


def test_what_does_not_go_together_is_refused():
    with pytest.raises(ValueError, match="disjoint"):
        sample_one_hop(ROWPTR, COL, torch.tensor([0]), 1, edge_time=torch.arange(7), seed_time=torch.tensor([3]))
    with pytest.raises(ValueError, match="at most one"):
        sample_one_hop(ROWPTR, COL, torch.tensor([0]), 1, torch.arange(5), torch.arange(7), disjoint=True)
    with pytest.raises(ValueError, match="seed_time"):
        sample_one_hop(ROWPTR, COL, torch.tensor([0]), 1, edge_time=torch.arange(7), disjoint=True)
