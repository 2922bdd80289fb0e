"""One process of a machine at a time in a folder, and what it tells those that wait for it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..config import ExperimentError
from ..graph.landing import try_lock

_LOCK = ".lock"
_SECONDS_BETWEEN_TRIES = 0.2
_SECONDS_BETWEEN_TOUCHES = 1.0
_SECONDS_BETWEEN_LINES = 10.0
_SECONDS_TO_END = 10.0
_MOST_TOLD = 200


def say(text: str) -> None:
    print(f"[collection] {text}", flush=True)


class Turn:
    """What a process has while it is alone in a folder."""

    def __init__(self, lock: int, sure: bool) -> None:
        self._lock = lock
        self.sure = sure
        """False on a file system without locks: another machine's process may be there too."""

    def tell(self, text: str) -> None:
        """Say it here, and to those that wait."""
        say(text)
        with suppress(OSError):
            os.pwrite(self._lock, text.encode().ljust(_MOST_TOLD)[:_MOST_TOLD], 0)


@contextmanager
def alone(folder: Path, timeout: float) -> Iterator[Turn]:
    """Wait until nobody else is in a folder, which is made.

    The lock goes with its process, which touches it each second: others wait for as long as they see that.

    Raises:
        ExperimentError: the folder cannot be made, or who holds the lock has been silent for `timeout` seconds.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / _LOCK, os.O_CREAT | os.O_RDWR, 0o666)
    except (OSError, ValueError) as error:  # a path may not hold a null byte
        raise ExperimentError(
            f"collection directory {folder} cannot be made: {error}; name another, data.store"
        ) from error
    over = threading.Event()
    beat = threading.Thread(target=_touch_until, args=(lock, over), name="beat for other jobs", daemon=True)
    try:
        _await(lock, folder, timeout)
        with suppress(OSError):
            os.ftruncate(lock, 0)
        beat.start()
        yield Turn(lock, sure=_excludes(folder / _LOCK))
    finally:
        over.set()
        if beat.ident is not None:
            beat.join(_SECONDS_TO_END)  # or its disk hangs
        os.close(lock)


def _await(lock: int, folder: Path, timeout: float) -> None:
    seen, heard, said, told = 0, 0.0, 0.0, b""
    while not try_lock(lock):
        touched, now = os.fstat(lock).st_mtime_ns, time.monotonic()
        if not heard:
            say(f"another process is making a collection in {folder}; waiting for it")
            said = now
        if touched != seen or not heard:
            seen, heard = touched, now
        if now - heard > timeout:
            raise ExperimentError(
                f"another process holds {folder / _LOCK}, and has shown no sign of life for {timeout:g} s "
                "(train.timeout): end it, or name another directory, data.store"
            )
        if now - said > _SECONDS_BETWEEN_LINES and (text := os.pread(lock, _MOST_TOLD, 0)) != told:
            said, told = now, text
            say(f"waiting; the other process says: {text.decode(errors='replace').strip()}")
        time.sleep(_SECONDS_BETWEEN_TRIES)


def _touch_until(lock: int, over: threading.Event) -> None:
    while not over.wait(_SECONDS_BETWEEN_TOUCHES):
        with suppress(OSError):
            os.utime(lock)


def _excludes(path: Path) -> bool:
    """Whether a lock that is held keeps another from being taken."""
    with suppress(OSError):
        other = os.open(path, os.O_RDWR)
        try:
            return not try_lock(other)
        finally:
            os.close(other)
    return False
