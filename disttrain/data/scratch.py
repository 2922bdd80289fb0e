"""Arrays that are too large for memory: files in a folder of their own, memory-mapped, gone when nobody uses them."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import socket
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import numpy as np

from ..config import ExperimentError

_PREFIX = "disttrain-reading-"
_LOCK = ".lock"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Scratch:
    """A folder for the time of reading; leaving the `with` block removes it.

    Arrays made in it stay usable afterwards: the operating system keeps the bytes of a removed file for as long as
    they are mapped. A process that is killed leaves its folder behind; the next `Scratch` beside it removes it, which
    it can tell by the file lock that died with its holder.
    """

    def __init__(self, parent: str | Path | None = None) -> None:
        """`parent`: where the folder is made, `$TMPDIR` if None; it is made too."""
        self._parent = Path(tempfile.gettempdir() if parent is None else parent)
        self._number = 0

    def __enter__(self) -> Scratch:
        try:
            self._parent.mkdir(parents=True, exist_ok=True)
            _remove_leftovers(self._parent)
            self.folder, self._lock = _locked_folder(self._parent)
        except OSError as error:
            raise ExperimentError(
                f"data: no folder for the arrays that are read can be made in {self._parent}: {error}; name a place "
                "elsewhere (partition.dir, or the environment's TMPDIR)"
            ) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)
        if isinstance(error, OSError) and error.errno in _FULL:
            raise ExperimentError(self.full()) from error

    def path(self, suffix: str = "") -> str:
        """A name in the folder that nothing has yet."""
        self._number += 1
        return str(self.folder / f"{self._number}{suffix}")

    def array(self, shape: tuple[int, ...], dtype: np.dtype | type) -> FileArray:
        """An array on the disk that takes all its room at once.

        Raises:
            ExperimentError: the disk is full.
        """
        return FileArray(self, shape, np.dtype(dtype))

    def filled(self, shape: tuple[int, ...], dtype: np.dtype | type, blocks: Iterable[np.ndarray]) -> np.ndarray:
        """A memory-mapped array of consecutive blocks of rows, of which one is in memory at a time."""
        made, row = self.array(shape, dtype), 0
        for block in blocks:
            made.write(row, block)
            row += len(block)
        assert row == shape[0], (row, shape)
        return made.open()

    def full(self, wanted: int = 0) -> str:
        """What to say when the disk is full."""
        free = shutil.disk_usage(self._parent).free
        need = f"{wanted / 1e6:,.1f} MB are needed for one array, " if wanted else ""
        return (
            f"data: the disk of {self._parent} is full: {need}{free / 1e6:,.1f} MB are free. Arrays of the graph lie "
            "there while it is read; make room, or name a place elsewhere (partition.dir, or the environment's TMPDIR)"
        )


class FileArray:
    """An array that is written in pieces and then memory-mapped.

    Written through the file, not the map: on a full disk that is an error instead of a SIGBUS.
    """

    def __init__(self, scratch: Scratch, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.shape, self.dtype, self._path = shape, dtype, scratch.path(".bin")
        self.row_bytes = dtype.itemsize * int(np.prod(shape[1:], dtype=np.int64))
        self._file = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_RDWR)
        if size := shape[0] * self.row_bytes:
            try:
                os.posix_fallocate(self._file, 0, size)
            except OSError as error:
                os.close(self._file)
                if error.errno in _FULL:
                    raise ExperimentError(scratch.full(size)) from error
                raise

    def write(self, row: int, block: np.ndarray) -> None:
        """Write consecutive rows from `row` on."""
        assert block.shape[1:] == self.shape[1:] and row + len(block) <= self.shape[0], (block.shape, row, self.shape)
        if block.size:
            left = np.ascontiguousarray(block, dtype=self.dtype).reshape(-1).view(np.uint8).data
            place = row * self.row_bytes
            while left:
                written = os.pwrite(self._file, left, place)
                left, place = left[written:], place + written

    def open(self) -> np.ndarray:
        """The array, memory-mapped and writable; nothing can be written by `write` afterwards."""
        os.close(self._file)
        if 0 in self.shape:
            return np.empty(self.shape, dtype=self.dtype)
        return np.memmap(self._path, dtype=self.dtype, mode="r+", shape=self.shape)


def _locked_folder(parent: Path) -> tuple[Path, int]:
    """A new folder and its held lock."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{socket.gethostname()}-{os.getpid()}-", dir=parent))
        try:
            lock = os.open(folder / _LOCK, os.O_CREAT | os.O_RDWR)
        except FileNotFoundError:
            continue  # another process took it for a leftover before it was locked
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        except OSError:
            pass  # a file system without locks: nothing is ever taken for a leftover there
        if (folder / _LOCK).exists():
            return folder, lock
        os.close(lock)


def _remove_leftovers(parent: Path) -> None:
    """Remove the folders of readers that died."""
    for folder in parent.glob(f"{_PREFIX}*"):
        try:
            lock = os.open(folder / _LOCK, os.O_RDWR)
        except OSError:
            # made this moment, another user's, or its maker died before it had a lock: then it is empty
            if folder.name.startswith(f"{_PREFIX}{socket.gethostname()}-") and not _alive(folder.name):
                with suppress(OSError):
                    folder.rmdir()
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            pass
        finally:
            os.close(lock)


def _alive(name: str) -> bool:
    """Whether the process whose id is in the name of a folder of this host runs."""
    try:
        os.kill(int(name.rsplit("-", 2)[1]), 0)
    except (ProcessLookupError, ValueError, IndexError):
        return False
    except PermissionError:
        pass
    return True
