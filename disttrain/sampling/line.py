"""Batches made ahead by worker threads, in order."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence, Sized
from typing import Any

from .. import guard
from ..failure import hung

logger = logging.getLogger(__name__)

_POLL_SECONDS = 1.0
_SECONDS_TO_SEE_THE_END = 0.05
"""A thread that ends wakes nobody up."""
_MORE_SECONDS = 10.0
"""A worker that waits for others gives up after the timeout, and says for whom; then its error is here first."""


class Line:
    """The worker threads of one epoch, and the batches between them and the trainer.

    Worker w of W makes the steps start + w, start + w + W, ..., up to `prefetch` batches ahead each; they arrive in
    order. An exception in a worker is raised where the batch would have arrived.

    Args:
        make: (worker, shares, epoch, step) -> batch.
        shares: how long the epoch is, in steps, and what `make` has to know of it.
        timeout: seconds for which the workers may be at their batches without one of them having made one.
        who: the rank, for messages.
    """

    def __init__(
        self,
        workers: Sequence[Any],
        make: Callable[[Any, Any, int, int], Any],
        shares: Sized,
        epoch: int,
        start: int,
        prefetch: int,
        timeout: float,
        who: str,
    ) -> None:
        self.make, self.shares, self.epoch, self.who = make, shares, epoch, who
        self.timeout, self.heard = timeout, time.monotonic()
        """When a worker last had made a batch."""
        self.ahead = prefetch * len(workers)
        self.changed = threading.Condition()
        self.limit = min(start + self.ahead, len(shares))
        """Workers make the steps below it, all of them: it depends on what was consumed only, and so is the same on all
        machines, even when the trainer leaves early."""
        self.closing = False
        self.error: BaseException | None = None
        self.told = False
        """Whether the trainer has got the error."""
        self.ready: dict[int, Any] = {}
        self.threads = [
            threading.Thread(
                target=self._work, args=(w, start + n, len(workers)), name=f"loader worker {n}", daemon=True
            )
            for n, w in enumerate(workers)
        ]
        for thread in self.threads:
            thread.start()

    def _work(self, worker: Any, step: int, stride: int) -> None:
        try:
            while True:
                with self.changed:
                    while step >= self.limit and not self.closing and self.error is None:
                        self.changed.wait()
                    if step >= self.limit or self.error is not None:
                        return
                batch = self.make(worker, self.shares, self.epoch, step)
                with self.changed:
                    self.ready[step] = batch
                    self.heard = time.monotonic()
                    self.changed.notify_all()
                step += stride
        except BaseException as error:  # whatever it is, it has to reach the trainer
            with self.changed:
                self.error = self.error or error
                self.changed.notify_all()

    def next(self, step: int) -> Any:
        """The batch of `step`; lets the workers go one further.

        Raises:
            PeerError: no worker has made a batch for `timeout` seconds: what makes them hangs.
        """
        with self.changed:
            began = time.monotonic()
            while step not in self.ready and self.error is None:
                self.changed.wait(_POLL_SECONDS)
                assert step in self.ready or self.error or any(t.is_alive() for t in self.threads), self.who
                self._lose_patience(began)
            if step not in self.ready:
                assert self.error is not None
                self.told = True
                raise self.error
            batch = self.ready.pop(step)
            self.limit = min(step + 1 + self.ahead, len(self.shares))
            self.changed.notify_all()
        return batch

    def close(self) -> None:
        """End the threads, when they have made what workers of other machines may be waiting for.

        The error of a worker in a batch that nobody has asked for ends nothing, but it is said; the others come to the
        end of theirs first, since those of the next epoch talk over the same connections.

        Raises:
            PeerError: see `next`.
        """
        with self.changed:
            self.closing, began = True, time.monotonic()
            self.changed.notify_all()
            while not self.told and any(thread.is_alive() for thread in self.threads):
                self.changed.wait(_SECONDS_TO_SEE_THE_END)
                self._lose_patience(began)
            self.ready.clear()
        if self.error is not None and not self.told:
            kind = type(self.error).__name__
            logger.warning(
                "%s: a batch that was made ahead failed; nobody needs it now: %s: %s", self.who, kind, self.error
            )

    def _lose_patience(self, began: float) -> None:
        """Args:
        began: when the trainer began to wait."""
        if not self.told and time.monotonic() - max(began, self.heard) > self.timeout + _MORE_SECONDS:
            names = ", ".join(thread.name for thread in self.threads if thread.is_alive())
            raise hung(f"{self.who} waited for its own {names} in {guard.place()}, at most {self.timeout:g} s")
