"""Functions compiled by numba; their machine code is kept for the processes to come where the disk takes it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from numba import njit


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """`numba.njit` without the interpreter's lock, and with a cache that is never needed.

    The cache lies in $NUMBA_CACHE_DIR, else beside this package or in the user's own folder. Where none of these may
    be written to, or the disk is full, each process compiles for itself (some seconds); numba alone would fail there.
    What was compiled is of use as long as the function's file is the same, and those of the functions that it calls:
    numba alone looks at the first one only.
    """
    try:
        made: Any = njit(nogil=True, cache=True)(function)
    except RuntimeError:  # no folder can be written to
        return njit(nogil=True)(function)
    cache = made._cache
    others = sorted(_files(function, set()) - {function.__code__.co_filename})
    with suppress(AttributeError):  # numba calls it so, as yet
        if others:
            cache._cache_file._source_stamp = (cache._cache_file._source_stamp, *map(_digest, others))
    save = cache.save_overload

    def save_if_possible(*arguments: Any) -> None:
        with suppress(OSError):
            save(*arguments)

    cache.save_overload = save_if_possible
    return made


def _files(function: Any, seen: set[Any]) -> set[str]:
    """The files of a function and of all compiled ones that are compiled into it."""
    seen.add(function)
    found = {function.__code__.co_filename}
    for name in function.__code__.co_names:
        called = function.__globals__.get(name)
        inner = getattr(called, "py_func", None) or getattr(called, "_defn", None)  # an intrinsic has the latter
        if hasattr(inner, "__code__") and inner not in seen:
            found |= _files(inner, seen)
    return found


def _digest(file: str) -> str:
    try:
        return hashlib.blake2b(Path(file).read_bytes(), digest_size=8).hexdigest()
    except OSError:  # of a frozen program, which never changes
        return ""
