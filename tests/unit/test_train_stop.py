"""The best so far, and requests to stop."""

from __future__ import annotations

import os
import signal

import pytest

from disttrain.train.stop import BestSoFar, StopRequest


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


def test_the_first_signal_is_remembered_and_the_second_does_what_it_did():
    # A shell starts background jobs with SIGINT ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with StopRequest() as request:
        os.kill(os.getpid(), signal.SIGINT)
        assert request.signal == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def test_handlers_are_put_back():
    before = signal.getsignal(signal.SIGTERM)
    with StopRequest():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before
