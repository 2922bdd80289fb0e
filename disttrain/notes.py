"""Short notes between ranks, in the store that rank 0 (or its torchrun agent) holds: no call waits without a bound."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeVar

import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

T = TypeVar("T")

OVER = "over"
"""The note that the job is over: who failed or stopped, where, and how."""
_POLL_SECONDS = 1.0
_PIECE_BYTES = 1 << 22
_MOST_LETTERS = 1 << 14
"""Of the note `OVER`: an error may have swallowed a whole tensor."""


class Over(NamedTuple):
    """Why the job is over, as the first rank that left has said."""

    text: str
    kind: Literal["failed", "hang", "stopped"] = "failed"
    """`hang`: somebody waited in vain, so all tell what they were doing."""
    code: int = 1
    """Exit code of a job that was stopped."""
    machine: int = -1
    """The only one that was told to stop; -1: all of them."""

    def packed(self) -> str:
        return json.dumps(self._replace(text=self.text[:_MOST_LETTERS]))

    @staticmethod
    def unpacked(note: bytes) -> Over:
        return Over(*json.loads(note))


class StoreLost(RuntimeError):
    """The store does not answer: who holds it is gone, stopped, or out of reach.

    Args:
        silent: it has not answered for as long as anybody waits; else the connection is gone.
    """

    def __init__(self, text: str, silent: bool = False) -> None:
        super().__init__(text)
        self.silent = silent


class Notes:
    """One rank's access to the store. Any thread may use it.

    When the machine with the store vanishes without a word, torch's client waits for an answer for ever. So a thread of
    its own asks, and the others wait for it no longer than they want to. Between questions it looks whether some rank
    has left the note that the job is over.

    Args:
        store: not used by anybody else at the same time.
        timeout: seconds to wait for an answer, unless a call says otherwise.
        watch: look for the note `OVER`.
    """

    def __init__(self, store: Store, timeout: float, watch: bool) -> None:
        self._store, self.timeout, self._watch = store, timeout, watch
        self._questions: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._answered = time.monotonic()
        self._lost = ""
        self.over: Over | None = None
        """What the note `OVER` says, once it is there."""
        threading.Thread(target=self._serve, name="notes", daemon=True).start()

    def set(self, key: str, value: str | bytes, within: float | None = None) -> None:
        self._ask(lambda: self._store.set(key, value), within)  # pyright: ignore[reportArgumentType]

    def get(self, key: str, within: float | None = None) -> bytes:
        """The value of a key that is known to be there."""
        return self._ask(lambda: self._store.get(key), within)

    def set_large(self, key: str, value: bytes) -> None:
        """A value of any size, in pieces: torch's store cuts the connection at more than 8 MiB. `key` comes last."""
        for piece, begin in enumerate(range(0, len(value), _PIECE_BYTES)):
            self.set(f"{key}/{piece}", value[begin : begin + _PIECE_BYTES])
        self.set(key, str(len(value)))

    def get_large(self, key: str) -> bytes:
        """What `set_large` has set, when `key` is known to be there."""
        pieces = range(-(-int(self.get(key)) // _PIECE_BYTES))
        return b"".join(self.get(f"{key}/{piece}") for piece in pieces)

    def check(self, keys: list[str], within: float | None = None) -> bool:
        """Whether all keys are there."""
        return self._ask(lambda: self._store.check(keys), within)

    def listen(self, keys: list[str], seconds: float) -> bool:
        """Wait until all keys are there, at most so long; whether they are.

        Not `store.wait`: each time that it runs out, torch writes warnings, and other threads cannot use the store.

        Raises:
            StoreLost: nobody answers.
        """
        deadline = time.monotonic() + seconds
        while not (found := not keys or self.check(keys, seconds)) and time.monotonic() < deadline:
            time.sleep(0.05)
        return found

    def say_over(self, over: Over, within: float) -> None:
        """Leave the note that the job is over, unless another rank has done so before."""

        def leave() -> None:
            if not self._store.check([OVER]):
                self._store.set(OVER, over.packed())

        self._ask(leave, within)

    def read_over(self, within: float) -> Over | None:
        """What the note `OVER` says; None if it is not there."""

        def read() -> None:
            if self._store.check([OVER]):
                self.over = Over.unpacked(self._store.get(OVER))

        self._ask(read, within)
        return self.over

    def stop_watching(self) -> None:
        self._watch = False

    def trouble(self) -> str:
        """Why the job cannot go on, as far as the notes tell; empty while all is well, or nobody watches."""
        if not self._watch:
            return ""
        if self.over is not None:
            return self.over.text
        if self._lost:
            return f"the store that rank 0 or its torchrun agent holds is gone ({self._lost})"
        if time.monotonic() - self._answered > self.timeout:
            return f"the store that rank 0 or its torchrun agent holds has been silent for {self.timeout:g} s"
        return ""

    def _ask(self, question: Callable[[], T], within: float | None) -> T:
        done = threading.Event()
        answer: list[Any] = []

        def ask() -> None:
            try:
                answer.append((question(), None))
            except (RuntimeError, dist.DistError) as error:
                answer.append((None, error))
            done.set()

        within = self.timeout if within is None else within
        self._questions.put(ask)
        if not done.wait(within):
            raise StoreLost(f"it has not answered for {within:g} s", silent=True)
        value, error = answer[0]
        if error is not None:
            raise StoreLost(_first_line(error)) from error
        return value

    def _serve(self) -> None:
        looked = time.monotonic()
        while True:
            try:
                self._questions.get(timeout=_POLL_SECONDS)()
            except queue.Empty:
                pass
            if self._watch and not self._lost and time.monotonic() - looked >= _POLL_SECONDS:
                self._look()
                looked = time.monotonic()
            self._answered = time.monotonic()

    def _look(self) -> None:
        try:
            if self._store.check([OVER]):
                self.over = Over.unpacked(self._store.get(OVER))
        except (RuntimeError, dist.DistError) as error:
            self._lost = _first_line(error)


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
