"""Weighted draws against the exact law, worked out by enumeration."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from disttrain.sampling import kernels
from disttrain.sampling.drawable import Drawable
from disttrain.sampling.fanout import Rule
from disttrain.sampling.relation import Relation
from disttrain.sampling.weighted import running_sums, scale_weights


def _relation(weights: list[list[float]], replace: bool = False) -> Relation:
    """Destination v has a neighbour for each of weights[v], all above 0."""
    colptr = np.concatenate([[0], np.cumsum([len(w) for w in weights])])
    scaled = np.concatenate([np.asarray(w, np.float64) for w in weights])
    scale_weights(colptr, scaled)
    drawable = Drawable(colptr, None, weights=scaled, sums=running_sums(colptr, scaled))
    places = np.arange(len(scaled))
    csc = (colptr, places, places)
    return Relation(0, ("a", "to", "a"), 0, len(weights), csc, np.arange(len(weights)) + 77, drawable, replace=replace)


def _draw(relation: Relation, ids: np.ndarray, fanout: int, step: int = 0) -> tuple[np.ndarray, np.ndarray]:
    key = np.uint64(kernels.stream_key(3, 0, step, 0, 1))
    draw = relation.look_up(ids, Rule(fanout), key, None)
    places = np.full(draw.total, -7)
    relation.draw_places(draw, places)
    return places, draw.counts


def _sequences(weights: list[float], count: int) -> dict[tuple[int, ...], float]:
    """The probability of each sequence of successive draws without replacement."""
    law = {}
    for sequence in permutations(range(len(weights)), count):
        left, chance = sum(weights), 1.0
        for pick in sequence:
            chance *= weights[pick] / left
            left -= weights[pick]
        law[sequence] = chance
    return law


@pytest.mark.parametrize(("weights", "count"), [([1, 2, 3, 4], 2), ([5, 1, 1, 1, 0.5], 3), ([1e-3, 1, 1], 1)])
def test_without_replacement_the_law_is_that_of_successive_draws(weights, count):
    """Also the order, and so the chance of each neighbour to be among the drawn."""
    times = 30_000
    relation, one = _relation([weights]), np.zeros(1, np.int32)
    law = _sequences(weights, count)
    found = dict.fromkeys(law, 0)
    for step in range(times):
        found[tuple(_draw(relation, one, count, step)[0].tolist())] += 1
    expected = np.array(list(law.values())) * times
    counted = np.array(list(found.values()))
    rare = expected < 5
    assert (
        chisquare(
            np.append(counted[~rare], counted[rare].sum() + 1e-9),
            np.append(expected[~rare], expected[rare].sum() + 1e-9),
        ).pvalue
        > 1e-3
    )
    inclusion = [sum(chance for sequence, chance in law.items() if v in sequence) for v in range(len(weights))]
    included = [sum(n for sequence, n in found.items() if v in sequence) for v in range(len(weights))]
    for chance, n in zip(inclusion, included, strict=True):
        assert abs(n - times * chance) < 4.5 * np.sqrt(times * chance * (1 - chance)) + 1e-9


def test_of_many_neighbours_each_is_included_as_often_as_it_should():
    """A degree and a count that are past any enumeration: against exponential clocks drawn by NumPy."""
    rng = np.random.default_rng(1)
    weights = rng.gamma(0.7, size=300)
    relation, one, times, count = _relation([weights.tolist()]), np.zeros(1, np.int64), 4000, 60
    included = np.zeros(300)
    for step in range(times):
        places, _ = _draw(relation, one, count, step)
        assert len(set(places.tolist())) == count
        included[places] += 1
    clocks = rng.exponential(size=(times, 300)) / weights
    expected = np.zeros(300)
    np.add.at(expected, np.argsort(clocks, axis=1)[:, :count], 1)
    share = (included + expected) / (2 * times)
    sure = (share < 0.01) | (share > 0.99)
    z = (included - expected)[~sure] / np.sqrt(2 * times * (share * (1 - share))[~sure])
    assert abs(z).max() < 5 and 0.8 < z.std() < 1.2


def test_with_replacement_each_draw_is_by_weight():
    weights = [3.0, 1.0, 0.25, 5.75]
    relation, one = _relation([weights], replace=True), np.zeros(1, np.int32)
    pairs = np.zeros((4, 4))
    for step in range(20_000):
        a, b = _draw(relation, one, 2, step)[0]
        pairs[a, b] += 1
    law = np.outer(weights, weights) / 100 * 20_000
    assert chisquare(pairs.ravel(), law.ravel()).pvalue > 1e-3


def test_no_more_than_there_are_and_remote_ones_are_left():
    relation = _relation([[1, 2], [1], [4, 5, 6]])
    places, counts = _draw(relation, np.array([2, 1, 0]), 3)
    assert places.tolist() == [3, 4, 5, 2, 0, 1] and counts.tolist() == [3, 1, 2]
    relation.high = 2  # destination 2 is another machine's
    draw = relation.look_up(np.array([2, 0]), Rule(1), np.uint64(5), None)
    draw.counts[0] = 2  # which says how many it drew
    places = np.full(3, -7)
    relation.draw_places(draw, places)
    assert places[:2].tolist() == [-7, -7] and places[2] in (0, 1)


@given(st.lists(st.floats(1e-300, 1e300), min_size=2, max_size=8), st.integers(1, 7), st.booleans())
def test_any_weights_can_be_drawn_by(weights, fanout, replace):
    """Neither sums that overflow nor weights that vanish beside others keep a draw from being one."""
    relation = _relation([[1.0], weights], replace=replace)
    places, counts = _draw(relation, np.array([1]), fanout)
    assert counts[0] == (fanout if replace else min(fanout, len(weights))) == len(places)
    assert set(places.tolist()) <= set(range(1, len(weights) + 1))
    assert replace or len(set(places.tolist())) == len(places)


def test_scaling_is_exact():
    weights = np.array([3.0, 7.5, 1e-3, 2.0**-1060, 1e308, 1e308])
    scaled = weights.copy()
    scale_weights(np.array([0, 3, 4, 6]), scaled)
    assert scaled.tolist() == [3 / 8, 7.5 / 8, 1e-3 / 8, 0.5, 1e308 / 2.0**1023 / 2, 1e308 / 2.0**1023 / 2]
