"""Ports for tests that run at the same time."""

from __future__ import annotations

import secrets
import socket

_LOW, _HIGH = 15_000, 32_000
"""Below those that the system gives to connections (32768 and on, on Linux), of which any may be taken before the port
is listened on."""


def free_port() -> int:
    while True:
        port = _LOW + secrets.randbelow(_HIGH - _LOW)
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
