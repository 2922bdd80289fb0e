"""Batches made ahead by worker threads, in order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence, Sized
from typing import Any

_POLL_SECONDS = 1.0


class Line:
    """The worker threads of one epoch, and the batches between them and the trainer.

    Worker w of W makes the steps start + w, start + w + W, ..., up to `prefetch` batches ahead each; they arrive in
    order. An exception in a worker is raised where the batch would have arrived.

    Args:
        make: (worker, shares, epoch, step) -> batch.
        shares: how long the epoch is, in steps, and what `make` has to know of it.
    """

    def __init__(
        self,
        workers: Sequence[Any],
        make: Callable[[Any, Any, int, int], Any],
        shares: Sized,
        epoch: int,
        start: int,
        prefetch: int,
        who: str,
    ) -> None:
        self.make, self.shares, self.epoch, self.who = make, shares, epoch, who
        self.ahead = prefetch * len(workers)
        self.changed = threading.Condition()
        self.limit = min(start + self.ahead, len(shares))
        """Workers make the steps below it, all of them: it depends on what was consumed only, and so is the same on all
        machines, even when the trainer leaves early."""
        self.closing = False
        self.error: BaseException | None = None
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
                    self.changed.notify_all()
                step += stride
        except BaseException as error:  # whatever it is, it has to reach the trainer
            with self.changed:
                self.error = self.error or error
                self.changed.notify_all()

    def next(self, step: int) -> Any:
        """The batch of `step`; lets the workers go one further."""
        with self.changed:
            # No bound of its own: a worker's every wait has one, and its error ends this one.
            while step not in self.ready and self.error is None:
                self.changed.wait(_POLL_SECONDS)
                assert step in self.ready or self.error or any(t.is_alive() for t in self.threads), self.who
            if step not in self.ready:
                assert self.error is not None
                raise self.error
            batch = self.ready.pop(step)
            self.limit = min(step + 1 + self.ahead, len(self.shares))
            self.changed.notify_all()
        return batch

    def close(self) -> None:
        with self.changed:
            self.closing = True
            self.changed.notify_all()
        if self.error is None:
            for thread in self.threads:
                thread.join()
        self.ready.clear()
