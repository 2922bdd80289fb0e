"""Tries between machines, where gloo is going to connect: one listens for a moment, each other one connects."""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from .network import why

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 10.0
"""For a process on a busy machine; a connection is the kernel's affair."""
NONCE_BYTES = 8
_CLOCK = struct.Struct("<d")
_PAYLOAD = bytes(range(256)) * 256
"""64 KiB: many packets of full size, which a path that swallows those does not let through."""
_MOST_AT_ONCE = 64


@dataclass(frozen=True)
class Door:
    """Where a machine is to be found."""

    machine: int
    address: str
    port: int
    nonce: str
    """Hexadecimal; tells this machine in this attempt from whatever else may listen there."""


@dataclass(frozen=True)
class Try:
    """How one machine fared with the door of another."""

    machine: int
    """The other one."""
    failed: str = ""
    """Empty: it went well. `connect`; `stranger`: something else answered; `small`: nothing came over the connection;
    `large`: small messages came, 64 KiB did not."""
    detail: str = ""
    seconds: float = 0.0
    """Of a small message, there and back."""
    clock: float = 0.0
    """Seconds by which the other machine's clock is ahead, to within half of `seconds`."""


class Listener:
    """Answers tries, until it is closed.

    Raises:
        OSError: there is no listening on that address.
    """

    def __init__(self, address: str, nonce: str, clock: Callable[[], float] = time.time) -> None:
        self._nonce, self._clock = bytes.fromhex(nonce), clock
        self._socket = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._socket.bind((address, 0))
            self._socket.listen(128)
        except OSError:
            self._socket.close()
            raise
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._serve, name="preflight", daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):  # wakes the thread that accepts
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                line, _ = self._socket.accept()
                threading.Thread(target=self._answer, args=[line], name="preflight", daemon=True).start()

    def _answer(self, line: socket.socket) -> None:
        with contextlib.suppress(OSError, EOFError), line:
            line.settimeout(CONNECT_SECONDS + ANSWER_SECONDS)
            if _receive(line, NONCE_BYTES) == self._nonce:
                line.sendall(self._nonce + _CLOCK.pack(self._clock()))
                line.sendall(_receive(line, len(_PAYLOAD)))


def try_doors(doors: Sequence[Door], clock: Callable[[], float] = time.time) -> list[Try]:
    """Connect to all of them at once. Takes `CONNECT_SECONDS` and twice `ANSWER_SECONDS` at most, however many."""
    if not doors:
        return []
    with ThreadPoolExecutor(min(len(doors), _MOST_AT_ONCE)) as pool:
        return list(pool.map(lambda door: _try(door, clock), doors))


def _try(door: Door, clock: Callable[[], float]) -> Try:
    try:
        line = socket.create_connection((door.address, door.port), CONNECT_SECONDS)
    except OSError as error:
        return Try(door.machine, "connect", _said(error, CONNECT_SECONDS))
    with line:
        line.settimeout(ANSWER_SECONDS)
        stage, nonce = "small", bytes.fromhex(door.nonce)
        try:
            began, asked = time.monotonic(), clock()
            line.sendall(nonce)
            answer = _receive(line, NONCE_BYTES + _CLOCK.size)
            seconds, answered = time.monotonic() - began, clock()
            if answer[:NONCE_BYTES] != nonce:
                return Try(door.machine, "stranger")
            ahead = _CLOCK.unpack(answer[NONCE_BYTES:])[0] - (asked + answered) / 2
            stage = "large"
            line.sendall(_PAYLOAD)
            if _receive(line, len(_PAYLOAD)) != _PAYLOAD:
                return Try(door.machine, "large", "other bytes came back than were sent")
            return Try(door.machine, seconds=seconds, clock=ahead)
        except EOFError:
            # A listener that hears the wrong nonce hangs up.
            return Try(door.machine, "stranger" if stage == "small" else stage, "the connection was closed")
        except OSError as error:
            return Try(door.machine, stage, _said(error, ANSWER_SECONDS))


def _receive(line: socket.socket, count: int) -> bytes:
    """Raises:
    EOFError: the other side closed before that.
    """
    pieces = bytearray()
    while len(pieces) < count:
        piece = line.recv(count - len(pieces))
        if not piece:
            raise EOFError
        pieces += piece
    return bytes(pieces)


def _said(error: OSError, seconds: float) -> str:
    if isinstance(error, TimeoutError) or error.errno == errno.ETIMEDOUT:
        return f"no answer in {seconds:g} s"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    return why(error)
