"""Downloads that end, even when the other side falls silent: other ranks wait for the one that downloads."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

_SECONDS_OF_SILENCE = 120.0


@contextmanager
def bounded_sockets() -> Iterator[None]:
    """In the block, a new socket that has no timeout of its own raises `TimeoutError`, an `OSError`, after two silent
    minutes. Not for longer than a download: it is a setting of the whole process, which workers' lines must not have.
    """
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_SECONDS_OF_SILENCE if before is None else before)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
