"""A directory that appears whole or not at all; what its writer had finished when it died, the next one takes over."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..config import ExperimentError
from .journal import LOCK, finished_bytes, remove_work

_FULL = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the quota is used up",
    errno.EFBIG: "a file may not grow more",
}


class AlreadyThereError(ExperimentError):
    """The target was made by somebody else meanwhile."""


@contextmanager
def landing(
    target: Path,
    num_bytes: int,
    identity: dict[str, Any] | None = None,
    *,
    called: str = "partition directory",
    contents: str = "the partitions",
    setting: str = "partition.dir",
) -> Iterator[Path]:
    """Yield a directory beside `target`; when the block ends it becomes `target`, in one step.

    If the block raises, the directory is removed; if the process dies, or is interrupted (Ctrl-C), it stays. The next
    `landing` of the same target finds it (the writer holds a file lock in it, which dies with it), yields the one that
    is of the same identity and has most finished, and removes the others. Living writers are left alone, so two may
    work on one target; the second to finish gets `AlreadyThereError`.

    Args:
        target: must not exist, or be empty.
        num_bytes: about how many will be written; refused at once where the disk has less.
        identity: of what is made, by which its `Journal` is known; None: nothing is ever taken over.
        called, contents, setting: what it is and holds, and what names it in the experiment, for messages.

    Raises:
        ExperimentError: the disk is full, or not writable; or the target is not empty.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial, lock = _take_over(target, identity) or _make(target)
    except OSError as error:
        raise ExperimentError(f"{called} {target} cannot be made: {error}; name another, {setting}") from error
    keep = False
    try:
        free = shutil.disk_usage(partial).free
        if free < num_bytes - (finished_bytes(partial, identity) if identity else 0):
            raise ExperimentError(
                _full(f"{called} {target}", "the disk has too little room", num_bytes, free, contents, setting)
            )
        yield partial
        _replace(partial, target, called, setting)
    except OSError as error:
        if error.errno in _FULL:
            free = shutil.disk_usage(partial).free
            raise ExperimentError(
                _full(f"{called} {target}", _FULL[error.errno], num_bytes, free, contents, setting)
            ) from error
        raise
    except KeyboardInterrupt:
        keep = identity is not None
        raise
    finally:
        # Gone already if all went well.
        if not keep:
            shutil.rmtree(partial, ignore_errors=True)
        os.close(lock)


def _full(target: str, what: str, num_bytes: int, free: int, contents: str, setting: str) -> str:
    return (
        f"{target}: {what}; {contents} take about {num_bytes / 1e6:,.1f} MB, {free / 1e6:,.1f} MB are free. Make room, "
        f"or name a directory elsewhere: {setting}"
    )


def _replace(partial: Path, target: Path, called: str, setting: str) -> None:
    try:
        os.replace(partial, target)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise AlreadyThereError(
                f"{called} {target} is not empty and would be overwritten; remove it, or name another, {setting}"
            ) from error
        raise
    remove_work(target)
    # The rename itself has to survive a crash of the machine.
    with suppress(OSError):
        parent = os.open(target.parent, os.O_RDONLY)
        os.fsync(parent)
        os.close(parent)


def _make(target: Path) -> tuple[Path, int]:
    """A new directory and its held lock."""
    attempt = 0
    while True:
        host = socket.gethostname()
        partial = target.parent / f"{target.name}.partial-{host}-{os.getpid()}{f'-{attempt}' if attempt else ''}"
        attempt += 1
        try:
            partial.mkdir()
            lock = os.open(partial / LOCK, os.O_CREAT | os.O_RDWR)
        except (FileExistsError, FileNotFoundError):
            # Another's, or one that a cleaner took for a leftover before it was locked.
            if attempt == 100:
                raise
            continue
        if try_lock(lock) and _is_at(lock, partial / LOCK):
            return partial, lock
        os.close(lock)


def try_lock(lock: int) -> bool:
    """Take the lock of an open file, which goes with its process; whether nobody else has it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        # A file system without locks: nothing is ever taken for a leftover there.
        return True
    return True


def _is_at(lock: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(lock), path.stat())
    except FileNotFoundError:
        return False


def remove_leftovers(target: Path) -> list[Path]:
    """Remove the directories of writers of `target` that died; returns which."""
    removed = []
    for partial, lock in _leftovers(target):
        shutil.rmtree(partial, ignore_errors=True)
        os.close(lock)
        removed.append(partial)
    return removed


def _take_over(target: Path, identity: dict[str, Any] | None) -> tuple[Path, int] | None:
    """The dead writer's directory that has most of `identity` finished, and its lock; the others are removed."""
    best, most = None, 0
    for partial, lock in _leftovers(target):
        finished = finished_bytes(partial, identity) if identity is not None else 0
        if finished > most:
            beaten, best, most = best, (partial, lock), finished
        else:
            beaten = (partial, lock)
        if beaten is not None:
            shutil.rmtree(beaten[0], ignore_errors=True)
            os.close(beaten[1])
    return best


def _leftovers(target: Path) -> Iterator[tuple[Path, int]]:
    """The directories of writers that died, locked."""
    for partial in sorted(target.parent.glob(f"{_escaped(target.name)}.partial-*")):
        try:
            lock = os.open(partial / LOCK, os.O_RDWR)
        except FileNotFoundError:
            # Made this moment, or its writer died before the lock: then it is empty.
            with suppress(OSError):
                partial.rmdir()
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            # A living one's, or a file system without locks.
            os.close(lock)
            continue
        if _is_at(lock, partial / LOCK):
            yield partial, lock
        else:
            # Landed or removed meanwhile.
            os.close(lock)


def _escaped(name: str) -> str:
    return "".join(f"[{character}]" if character in "*?[" else character for character in name)
