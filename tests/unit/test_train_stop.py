"""The best so far."""

from __future__ import annotations

from disttrain.train.stop import BestSoFar


def test_the_best_of_a_rising_metric():
    best = BestSoFar("accuracy", "max")
    assert [best.update(v, e, e * 10) for e, v in enumerate([0.1, 0.3, 0.3, float("nan"), 0.2])] == [
        True, True, False, False, False,
    ]  # fmt: skip
    assert (best.value, best.epoch, best.step, best.since) == (0.3, 1, 10, 3)


def test_the_best_of_a_falling_metric_survives_its_state():
    best = BestSoFar("loss", "min")
    best.update(2.0, 0, 1)
    best.update(3.0, 1, 2)
    other = BestSoFar("loss", "min")
    other.restore(best.state())
    assert other == best
    assert other.update(1.5, 2, 3)
