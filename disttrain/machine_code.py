"""Functions compiled by numba; their machine code is kept for the processes to come where the disk takes it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from numba import njit


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """`numba.njit` without the interpreter's lock, and with a cache that is never needed.

    The cache lies in $NUMBA_CACHE_DIR, else beside this package or in the user's own folder. Where none of these may
    be written to, or the disk is full, each process compiles for itself (some seconds); numba alone would fail there.
    """
    try:
        made: Any = njit(nogil=True, cache=True)(function)
    except RuntimeError:  # no folder can be written to
        return njit(nogil=True)(function)
    cache = made._cache
    save = cache.save_overload

    def save_if_possible(*arguments: Any) -> None:
        with suppress(OSError):
            save(*arguments)

    cache.save_overload = save_if_possible
    return made
