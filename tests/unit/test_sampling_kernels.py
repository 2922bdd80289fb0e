"""Draws against the exact distribution, and the row copies against indexing."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
from scipy.stats import chisquare

from disttrain.sampling import kernels


def _draw(degree: int, fanout: int, replace: bool, times: int) -> np.ndarray:
    """`times` independent draws from one node of this degree, as places 0..degree-1: [times, fanout]."""
    colptr, original = np.array([0, degree]), np.array([12345])
    ids, counts = np.zeros(1, np.int32), np.zeros(1, np.int32)
    begins, degrees, states = np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.uint64)
    picks, seen = kernels.scratch_for(fanout)
    drawn = np.empty((times, fanout), np.int64)
    for step in range(times):
        key = np.uint64(kernels.stream_key(7, 1, step, 0, 3))
        total = kernels.look_up(ids, 0, 1, colptr, original, key, fanout, replace, begins, degrees, counts, states)
        assert total == fanout
        kernels.draw_places(begins, degrees, counts, states, replace, picks, seen, drawn[step])
    return drawn


def test_without_replacement_every_subset_is_equally_likely():
    drawn = np.sort(_draw(7, 3, False, 21_000), axis=1)
    counts = {subset: 0 for subset in combinations(range(7), 3)}
    for subset in map(tuple, drawn.tolist()):
        counts[subset] += 1
    assert chisquare(list(counts.values())).pvalue > 1e-3


def test_with_replacement_every_sequence_is_equally_likely():
    drawn = _draw(4, 3, True, 19_200)
    counts = {sequence: 0 for sequence in product(range(4), repeat=3)}
    for sequence in map(tuple, drawn.tolist()):
        counts[sequence] += 1
    assert chisquare(list(counts.values())).pvalue > 1e-3


@pytest.mark.parametrize(("degree", "fanout"), [(60, 40), (1000, 33), (41, 40), (5000, 700)])
def test_many_picks_are_distinct_and_equally_likely(degree, fanout):
    times = 2000
    drawn = _draw(degree, fanout, False, times)
    assert all(len(set(picks)) == fanout for picks in drawn.tolist())
    counts = np.bincount(drawn.ravel(), minlength=degree)
    # Of degree d, k without replacement: the variance of each count is times * k/d * (1 - k/d), and counts are
    # negatively correlated such that sum((c - mean)^2) / (mean * (1 - k/d)) * (d-1)/d is chi-square with d - 1 degrees
    # of freedom.
    mean, share = times * fanout / degree, fanout / degree
    statistic = ((counts - mean) ** 2).sum() / (mean * (1 - share)) * (degree - 1) / degree
    assert abs(statistic - (degree - 1)) < 5 * np.sqrt(2 * (degree - 1))


def test_many_picks_leave_the_room_of_a_hub_alone():
    """Clearing all of it for each node after the hub would cost as much as the hub."""
    places = np.empty((2, 40), np.int64)
    draw = np.zeros(1, np.int64), np.full(1, 1000), np.full(1, 40, np.int32), np.array([5], np.uint64)
    for room, found in zip((40, 5000), places, strict=True):
        picks, seen = kernels.scratch_for(room)
        seen[256:] = 7  # would be taken for a pick
        kernels.draw_places(*draw, False, picks, seen, found)
        assert (seen[:256] == -1).all() and (seen[256:] == 7).all()
    assert len(set(places[0].tolist())) == 40 and (places[0] == places[1]).all()


def test_few_neighbours_are_all_taken_and_none_stay_none():
    ids, counts = np.arange(4, dtype=np.int32), np.zeros(4, np.int32)
    begins, degrees, states = np.zeros(4, np.int64), np.zeros(4, np.int64), np.zeros(4, np.uint64)
    colptr = np.array([0, 0, 2, 5, 9])
    for fanout, replace, expected in [
        (3, False, [0, 2, 3, 3]),
        (-1, False, [0, 2, 3, 4]),
        (3, True, [0, 3, 3, 3]),
        (0, False, [0, 0, 0, 0]),
    ]:
        key = np.uint64(0)
        total = kernels.look_up(ids, 0, 4, colptr, ids, key, fanout, replace, begins, degrees, counts, states)
        assert counts.tolist() == expected and total == sum(expected)
        assert begins.tolist() == [0, 0, 2, 5] and degrees.tolist() == [0, 2, 3, 4]


def test_streams_differ_in_each_of_their_arguments():
    base = (1, 2, 3, 4, 5)
    keys = {kernels.stream_key(*base)}
    for place in range(5):
        for value in (0, 6, 7):
            keys.add(kernels.stream_key(*(value if at == place else b for at, b in enumerate(base))))
    assert len(keys) == 16


def test_shuffles_are_permutations_and_uniform():
    ids = np.arange(5)
    counts = np.zeros((5, 5))
    for epoch in range(4000):
        order = np.argsort(kernels.shuffle_keys(np.uint64(kernels.stream_key(0, epoch, 9, 0, 0)), ids))
        counts[np.arange(5), order] += 1
    assert chisquare(counts.ravel()).pvalue > 1e-3


def test_the_hash_table_gives_the_same_indices_as_the_dense_one():
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 5000, 3000).astype(np.int32)
    dense, hashed = np.full(5000, -1, np.int32), np.full(8192, -1, np.int32)
    a, b = np.empty(3000, np.int32), np.empty(3000, np.int32)
    n = kernels.add_nodes(ids, dense, -1, a, 0)
    m = kernels.add_nodes(ids, hashed, 8191, b, 0)
    assert n == m == len(set(ids.tolist()))
    assert a[:n].tolist() == b[:n].tolist() == list(dict.fromkeys(ids.tolist()))
    kernels.forget_nodes(a[:n], dense, -1)
    kernels.forget_nodes(b[:n], hashed, 8191)
    assert (dense == -1).all() and (hashed == -1).all()


def test_requests_are_grouped_by_owner():
    bounds = np.array([0, 4, 9, 12])
    ids = np.array([5, 0, 11, 4, 1, 10], np.int32)
    per_owner = np.zeros(3, np.int64)
    kernels.count_remote(ids, bounds, 1, per_owner)
    assert per_owner.tolist() == [2, 0, 2]
    message = np.empty(4, np.int64)
    kernels.write_remote(ids, bounds, 1, np.array([0, -1, 2]), message)
    assert message.tolist() == [0, 1, 11, 10]
