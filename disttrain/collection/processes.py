"""Mini-batches made ahead by worker processes, in order.

Why not torch's `DataLoader`: of a worker that dies it knows the process number, not the graph, and it says so from a
signal handler; batches come as a shared file for each tensor, of which PyG's have many (measured on a batch of 450 KB:
1.4 ms of CPU time to send, and 0.3 ms here); and all its workers start anew, or finish what nobody wants, when a
trainer leaves an epoch early.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import socket
import struct
import time
from collections.abc import Generator
from contextlib import suppress
from multiprocessing.connection import wait
from multiprocessing.util import Finalize, get_temp_dir
from typing import Any

from .. import guard, watchdog
from ..config import ExperimentError
from ..config.counted import counted
from ..watchman import LOST_FILE
from .parcel import Parcel, pack
from .steps import Steps
from .worker import Failure, work

_SECONDS_BETWEEN_LOOKS = 1.0
_SECONDS_TO_END = 5.0
_SECONDS_TO_START = 300.0
"""Importing takes a minute on a busy machine."""
_STARTING = -2
"""On the board of a process that has not begun."""
_PRELOADED = ["disttrain.collection.worker", "disttrain.collection.graphs"]
"""What takes long to import, so that the server from which processes are forked does it once."""
_MOST_AHEAD = 64
"""Batches that one process makes ahead, at most."""
_SHOWN = 8


class WorkerError(RuntimeError):
    """A worker process failed, or was killed."""


class Processes:
    """Worker processes of a rank, for all its loaders of a collection and all epochs.

    They start when the first batch is asked for. Process w of W makes the steps start + w, start + w + W, ... of an
    epoch, up to `prefetch` ahead each.

    Args:
        graphs: the collection; not copied: files are mapped again, memory is handed on (see `parcel.shared`), and
            forked processes have what the rank has.
        timeout: seconds after which one that shows no sign of life is given up.
        who: the rank, for messages.
    """

    def __init__(self, graphs: Any, count: int, prefetch: int, start_method: str, timeout: float, who: str) -> None:
        self.graphs, self.count, self.ahead = graphs, count, min(prefetch, _MOST_AHEAD)
        self.start_method, self.timeout, self.who = start_method, timeout, who
        self.workers: list[_Worker] = []
        self._numbers = itertools.count()
        self._finalize: Any = None

    def batches(self, steps: Steps, start: int) -> Generator[Any, None, None]:
        """Those of `steps` from `start` on, in order.

        Raises:
            ExperimentError: making one was refused.
            WorkerError: a process failed in another way, or was killed, or is silent for too long; names process and
                graph. No process is left then.
        """
        if start >= len(steps):
            return
        self._start()
        number = next(self._numbers)
        try:
            parcel = pack(steps)
            try:
                for worker in self.workers:
                    worker.tell(("steps", number))
                    worker.hand(parcel)
            finally:
                parcel.close()
            asked = start
            for step in range(start, len(steps)):
                while asked < min(step + self.ahead * self.count, len(steps)):
                    self.workers[(asked - start) % self.count].tell(("make", number, asked))
                    asked += 1
                yield self._receive(self.workers[(step - start) % self.count], number, steps, step)
        except (WorkerError, ExperimentError):
            self.close(at_once=True)
            raise
        finally:
            for worker in self.workers:
                worker.forget(number)

    def _start(self) -> None:
        if self.workers:
            return
        context: Any = multiprocessing.get_context(self.start_method)
        if self.start_method == "forkserver":
            context.set_forkserver_preload(_PRELOADED)
            if multiprocessing.parent_process() is None:  # else it may be that of the parent
                guard.own(get_temp_dir())  # in which is the socket of the server
        forked = self.start_method == "fork"
        self._finalize = Finalize(self, _end, args=(self.workers,), exitpriority=10)
        parcel = None if forked else pack(self.graphs)
        try:
            for number in range(self.count):
                self.workers.append(_Worker(context, number, self.graphs if forked else None, self.timeout, self.who))
            if parcel is not None:
                for worker in self.workers:
                    worker.tell(("graphs",))
                    worker.hand(parcel)
        finally:
            if parcel is not None:
                parcel.close()

    def _receive(self, worker: _Worker, number: int, steps: Steps, step: int) -> Any:
        found = worker.receive(number, step, steps, self.timeout)
        if not isinstance(found, Failure):
            return found
        if found.refused:
            raise ExperimentError(found.text)
        raise WorkerError(f"{worker} failed {_at(steps, step, found.graph)}: {found.text}\n{found.trace.rstrip()}")

    def close(self, at_once: bool = False) -> None:
        """End the processes; a later epoch starts others.

        Args:
            at_once: also from the middle of a batch.
        """
        if self._finalize is not None:
            self._finalize.cancel()
        _end(self.workers, at_once)


class _Worker:
    """One process, as the rank sees it."""

    def __init__(self, context: Any, number: int, graphs: Any, timeout: float, who: str) -> None:
        self.number, self.who = number, who
        self.line, theirs = context.Pipe()
        self.board = context.RawArray("q", [_STARTING, _STARTING])
        self.process = context.Process(
            target=work, args=(theirs, self.board, os.getpid(), graphs), name=f"loader worker {number}", daemon=True
        )
        self.process.start()
        theirs.close()
        self._bound(timeout)
        self.ready: dict[tuple[int, int], Any] = {}
        """What has come and was not asked for yet: number of the epoch, step -> batch."""
        self.forgotten: set[int] = set()

    def _bound(self, timeout: float) -> None:
        """One that is stopped in the middle of a message neither reads nor writes on."""
        line = socket.fromfd(self.line.fileno(), socket.AF_UNIX, socket.SOCK_STREAM)
        with line:
            for direction in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
                line.setsockopt(socket.SOL_SOCKET, direction, struct.pack("ll", int(timeout) + 1, 0))

    def __str__(self) -> str:
        return f"loader worker {self.number} (process {self.process.pid}) of {self.who}"

    def tell(self, what: tuple[Any, ...]) -> None:
        with suppress(OSError):  # it is gone, which is found out where it is waited for
            self.line.send(what)

    def hand(self, parcel: Parcel) -> None:
        with suppress(OSError):
            parcel.send(self.line)

    def forget(self, number: int) -> None:
        self.tell(("forget", number))
        self.forgotten.add(number)
        self.ready = {key: batch for key, batch in self.ready.items() if key[0] != number}

    def receive(self, number: int, step: int, steps: Steps, timeout: float) -> Any:
        """The batch, or the `Failure`."""
        while (number, step) not in self.ready:
            self._await(steps, step, timeout)
            try:
                whose, which, failure = self.line.recv()
                found = Parcel.receive(self.line) if failure is None else failure
            except (EOFError, OSError):
                raise self._dead(steps, step) from None
            if whose not in self.forgotten:
                self.ready[whose, which] = found.opened() if isinstance(found, Parcel) else found
            elif isinstance(found, Parcel):
                found.close()
        return self.ready.pop((number, step))

    def _await(self, steps: Steps, step: int, timeout: float) -> None:
        """Until it says something."""
        seen, since = None, time.monotonic()
        while True:
            ready = wait([self.line, self.process.sentinel], _SECONDS_BETWEEN_LOOKS)
            if self.line in ready:
                return
            if ready:
                raise self._dead(steps, step)
            at = tuple(self.board)
            if at != seen:
                seen, since = at, time.monotonic()
            elif at[0] == _STARTING and time.monotonic() - since > max(timeout, _SECONDS_TO_START):
                raise WorkerError(f"{self} has not started for {max(timeout, _SECONDS_TO_START):g} s")
            elif at[0] != _STARTING and time.monotonic() - since > timeout:
                text = f"{self} has shown no sign of life for {timeout:g} s (train.timeout) {_at(steps, step, at[1])}"
                raise WorkerError(text + watchdog.dump(text, guard.place()))

    def _dead(self, steps: Steps, step: int) -> WorkerError:
        self.process.join(_SECONDS_TO_END)
        code, at = self.process.exitcode, tuple(self.board)
        if code is not None and code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        elif code is None:
            how = "does not go on with a message"
        else:
            how = f"ended with code {code}"
        text = f"{self} {how} {_at(steps, at[0] if at[0] >= 0 else step, at[1])}"
        if code == -signal.SIGBUS:
            text += f"; {LOST_FILE}"
        if code == -signal.SIGKILL:
            text += (
                ". Where nobody did so by hand, the machine or its container ran out of memory: less is needed with a "
                "lower sampling.batch_size, sampling.prefetch or sampling.workers"
            )
        return WorkerError(text)


def _at(steps: Steps, step: int, graph: int) -> str:
    """Where a worker was."""
    where = f"(epoch {steps.epoch + 1}, step {step // len(steps.shares)})"
    if graph >= 0:
        return f"at graph {graph} {where}"
    ids = steps.graphs_of(min(step, len(steps) - 1))
    shown = ", ".join(map(str, ids[:_SHOWN].tolist())) + (", ..." if len(ids) > _SHOWN else "")
    return f"in making a batch of {counted(len(ids), 'graph')}, {shown} {where}"


def _end(workers: list[_Worker], at_once: bool = False) -> None:
    for worker in workers:
        if at_once:
            worker.process.kill()
        else:
            worker.tell(("end",))
        worker.line.close()
    deadline = time.monotonic() + _SECONDS_TO_END
    for worker in workers:
        worker.process.join(max(0.0, deadline - time.monotonic()))
        if worker.process.exitcode is None:
            worker.process.kill()
            worker.process.join(_SECONDS_TO_END)
    workers.clear()
