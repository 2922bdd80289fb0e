"""Worker threads that hang or fail: the trainer does not wait for ever, and nothing is dropped without a word."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from disttrain import watchdog
from disttrain.refusal import PeerError
from disttrain.sampling import line as line_module
from disttrain.sampling.line import Line


def line(make: Callable[[int], Any], steps: int = 6, workers: int = 2, timeout: float = 60.0) -> Line:
    def made(worker: Any, shares: Any, epoch: int, step: int) -> Any:
        return make(step)

    return Line([None] * workers, made, range(steps), 0, 0, 1, timeout, "rank 0 on here")


def test_batches_come_in_order() -> None:
    own = line(lambda step: step)
    assert [own.next(step) for step in range(6)] == list(range(6))
    own.close()
    assert not any(thread.is_alive() for thread in own.threads)


@pytest.mark.parametrize("in_close", [False, True])
def test_a_worker_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, in_close: bool) -> None:
    monkeypatch.setattr(line_module, "_MORE_SECONDS", 0.0)
    monkeypatch.setattr(watchdog, "_dumped", [])
    monkeypatch.setattr(watchdog, "_directory", str(tmp_path))
    over = threading.Event()

    def never(step: int) -> int:
        return step if step < 1 else over.wait() + step

    own = line(never, timeout=0.5)
    try:
        assert own.next(0) == 0
        with pytest.raises(
            PeerError, match=r"rank 0 on here waited for its own loader worker 0, loader worker 1 in "
        ) as e:
            own.close() if in_close else own.next(1)
        assert e.value.hang
        assert "loader worker 1: wait (" in e.value.stacks and " < never (unit/test_sampling_line.py:" in e.value.stacks
    finally:
        over.set()
        own.close()


def test_other_workers_come_to_an_end_before_what_they_use_is_used_again() -> None:
    begun, over = threading.Event(), threading.Event()

    def fails_at_one(step: int) -> int:
        if step == 1:
            begun.wait()
            raise ValueError("graph 7 is odd")
        begun.set()
        over.wait()
        return step

    own = line(fails_at_one, steps=2)
    while own.error is None:
        threading.Event().wait(0.01)
    closing = threading.Thread(target=own.close)
    closing.start()
    closing.join(0.3)
    assert closing.is_alive(), "worker 0 is still at step 0"
    over.set()
    closing.join()
    assert not any(thread.is_alive() for thread in own.threads)


def test_the_error_of_a_batch_that_nobody_has_asked_for_is_said(caplog: pytest.LogCaptureFixture) -> None:
    def fails_at_one(step: int) -> int:
        if step == 1:
            raise ValueError("graph 7 is odd")
        return step

    own = line(fails_at_one)
    while own.error is None:  # it is made ahead
        threading.Event().wait(0.01)
    with caplog.at_level(logging.WARNING):
        own.close()
    assert "a batch that was made ahead failed; nobody needs it now: ValueError: graph 7 is odd" in caplog.text
    caplog.clear()
    asked = line(fails_at_one)
    with pytest.raises(ValueError, match="graph 7 is odd"):
        [asked.next(step) for step in range(3)]
    asked.close()
    assert caplog.text == ""
