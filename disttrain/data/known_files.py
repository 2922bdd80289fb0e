"""Digests of files that have not changed since they were read: many gigabytes are not read at each start."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from .digest import add_files

_SECONDS = 2.0
"""A file that was changed so shortly ago may change once more without its times showing it."""


def digest_of_files(files: Sequence[str], known: Path | None) -> str:
    """Hex digest of names and bytes, see `add_files`.

    Args:
        known: a JSON file with the digest that was found before, and sizes, times and places on the disk of the files.
            Where these are the same, the files are not read. It is written anew where they are not; if that cannot be
            done, it costs time only. None: the files are read.

    Raises:
        ExperimentError: a file is not there.
    """
    seen = _seen(files) if known is not None else None
    if known is not None:
        with suppress(OSError, ValueError, KeyError, TypeError):
            entry = json.loads(known.read_text(encoding="utf-8"))
            if seen is not None and entry["seen"] == seen:
                return entry["digest"]
    began = time.time_ns()
    digest = hashlib.blake2b(digest_size=16)
    add_files(digest, files)
    if known is not None and seen is not None and seen == _seen(files) and _newest(seen) < began - _SECONDS * 1e9:
        temporary = known.with_name(f"{known.name}.{os.getpid()}")
        with suppress(OSError):
            temporary.write_text(json.dumps({"seen": seen, "digest": digest.hexdigest()}), encoding="utf-8")
            os.replace(temporary, known)
    return digest.hexdigest()


def _seen(files: Sequence[str]) -> list[list[str | int]] | None:
    """Path, device, inode, size and times of each; None where one is not there."""
    found: list[list[str | int]] = []
    for path in files:
        try:
            entry = os.stat(path)
        except OSError:
            return None
        numbers = (entry.st_dev, entry.st_ino, entry.st_size, entry.st_mtime_ns, entry.st_ctime_ns)
        found.append([os.path.abspath(path), *numbers])
    return found


def _newest(seen: list[list[str | int]]) -> int:
    return max((max(int(entry[4]), int(entry[5])) for entry in seen), default=0)
