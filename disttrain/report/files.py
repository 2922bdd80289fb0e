"""Writing files so that a reader sees the old or the new one, never a half; and saying why it could not be done."""

from __future__ import annotations

import errno
import math
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import CDLL
from pathlib import Path
from typing import Any

from ..config import ExperimentError

_FULL: dict[int | None, str] = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the quota is used up",
    errno.EFBIG: "files may not grow any more (`ulimit -f`, or the file system's own limit)",
}
_FORBIDDEN = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY),
    *(errno.ENAMETOOLONG, errno.ELOOP),
)
_BROKEN: dict[int | None, str] = {
    errno.EIO: "the disk or its connection failed",
    errno.ESTALE: "the shared disk has lost it",
    errno.ENODEV: "the disk is gone",
    errno.ENOTCONN: "the shared disk is not connected",
    errno.EHOSTDOWN: "the machine that holds it is down",
}


def replace_text(path: Path, text: str) -> None:
    """Write a file under a temporary name beside it, make it durable, then put it in place."""
    # With the host: on a shared file system, processes of two machines may have the same number.
    temporary = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


_HERE = -100
_EXCHANGE = 2
"""`AT_FDCWD` and `RENAME_EXCHANGE` of Linux."""


def exchange(one: Path, other: Path) -> bool:
    """Let two files or folders have each other's name, in one step; whether this system and file system can."""
    rename = getattr(CDLL(None), "renameat2", None)
    if rename is None:
        return False
    return rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0


def finite(value: Any) -> Any:
    """What JSON can hold of a value: numbers that are not finite become null."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


_RUN_ADVICE = (
    "Free some space, lower train.checkpoint.keep, or choose another run_dir; started again, the run goes on from its "
    "last checkpoint"
)


@contextmanager
def explaining(path: Path, what: str, advice: str = _RUN_ADVICE) -> Iterator[None]:
    """An operating system's refusal in the block becomes an `ExperimentError` that says what to do.

    Args:
        advice: what to do about a full disk.
    """
    try:
        yield
    except OSError as error:
        refusal = disk_refusal(error, path, what, advice)
        if refusal is None:
            raise
        raise refusal from error


def disk_refusal(error: OSError, path: Path, what: str, advice: str = _RUN_ADVICE) -> ExperimentError | None:
    """The message for a full, forbidden or broken disk; None for other errors."""
    if error.errno in _FULL:
        why = _FULL[error.errno]
        return ExperimentError(f"{what} could not be written to {path}: {why} ({_free(path)}). {advice}")
    if error.errno in _FORBIDDEN:
        return ExperimentError(
            f"{what} cannot be used at {path}: {error.strerror or error}. Expected a directory that this user "
            "may read and write; mend its permissions or choose another one"
        )
    if error.errno in _BROKEN:
        return ExperimentError(
            f"{what} cannot be used at {path}: {_BROKEN[error.errno]} ({error.strerror}). Mend that, or choose another "
            "run_dir; started again, the run goes on from its last checkpoint"
        )
    return None


def _free(path: Path) -> str:
    for place in (path, *path.parents):
        if place.exists():
            return f"{shutil.disk_usage(place).free / 2**20:.0f} MiB free on it"
    return "unknown space free"
