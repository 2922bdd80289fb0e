"""The way to the store that rank 0 or its torchrun agent holds: before that, nothing can be said to other ranks."""

from __future__ import annotations

import errno
import socket
import sys
import time

from ..config import ExperimentError
from ..refusal import Leave, PeerError
from . import network

SECONDS_TO_RESOLVE = 10.0
"""For a name service that comes up with the machine."""
SECONDS_TO_ANSWER = 15.0
"""A machine that is up answers, if only to say that nothing listens there yet."""
_SECONDS_TO_SAY = 15.0
_CONNECT_SECONDS = 5.0
_DOWN = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN)


def reach_store(address: str, port: int, timeout: float, who: str, *, holds: bool, aloud: bool) -> None:
    """Wait until the store can be connected to; rank 0 may still be starting.

    Args:
        address: of the machine of rank 0, as torchrun says it (MASTER_ADDR).
        timeout: seconds to wait for a machine that answers and does not listen yet.
        who: this rank and host.
        holds: this rank is going to hold the store: there is only the name to resolve.
        aloud: whether this rank is to say what is wrong; else it leaves in silence.

    Raises:
        ExperimentError: the name cannot be resolved, or nothing ever answers there.
        PeerError: rank 0 did not listen in time.
        Leave: the same, for a rank that is not to speak.
    """
    began, said, problem = time.monotonic(), False, ""
    answered = began  # when that machine last showed that it is there
    while True:
        try:
            if holds:
                socket.getaddrinfo(address, port)
                return
            socket.create_connection((address, port), min(_CONNECT_SECONDS, max(timeout, 0.1))).close()
            return
        except socket.gaierror:
            problem, limit, since = _unresolved(address), SECONDS_TO_RESOLVE, began
        except OSError as error:
            answers = isinstance(error, ConnectionRefusedError)
            now = time.monotonic()
            answered = now if answers else answered
            problem = _refused(address, port) if answers else _silent(address, port, error)
            limit, since = (timeout, began) if answers else (SECONDS_TO_ANSWER, answered)
        now = time.monotonic()
        if now - since > min(limit, timeout):
            if not aloud:
                raise Leave(1 if limit == timeout else 2)
            if limit == timeout:
                raise PeerError(f"{who} waited {timeout:g} s for rank 0: {problem}")
            raise ExperimentError(f"{who} does not reach rank 0: {problem}")
        if aloud and not said and now - began > _SECONDS_TO_SAY:
            print(f"[preflight] {who} still waits for rank 0: {problem}", file=sys.stderr, flush=True)
            said = True
        time.sleep(min(1.0, 0.02 + (now - began) / 10))


_NAMED = (
    "Give torchrun on that machine --local-addr with an address that all machines can reach (`disttrain submit` does), "
    "or make its name known to all (/etc/hosts)"
)


def _unresolved(address: str) -> str:
    return f"the name of its machine, {address}, stands for no address here. {_NAMED}"


def _refused(address: str, port: int) -> str:
    found = network.resolve(address)
    if found and all(network.is_loopback(one) for one in found) and not network.is_loopback(address):
        return f"the name of its machine, {address}, stands for {found[0]} here, which is this machine itself. {_NAMED}"
    return f"nothing listens at {address}:{port}{_meaning(address, found)}: it has not started, or has ended"


def _silent(address: str, port: int, error: OSError) -> str:
    why = "no answer" if error.errno not in _DOWN else network.why(error)
    return (
        f"{address}:{port}{_meaning(address, network.resolve(address))}: {why}. torchrun itself got through, to the "
        "port of its rendezvous; this one it has chosen for the ranks. Let the firewalls between these machines pass "
        "TCP on all ports, or choose another interface (--local-addr, launch.interface)"
    )


def _meaning(address: str, found: list[str]) -> str:
    return "" if found in ([], [address]) else f" ({found[0]})"
