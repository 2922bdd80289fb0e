"""A machine's addresses, and the one that gloo, by which ranks talk, tells the others."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
from collections.abc import Mapping
from typing import NamedTuple

Interfaces = dict[str, list[str]]
"""Name -> addresses, IPv4 first, as gloo takes them."""


class Chosen(NamedTuple):
    """The address that gloo listens on and gives to others."""

    address: str
    """Empty: there is none, and gloo fails."""
    why: str
    """How it came to that, to be read after the address or in its stead."""


def interfaces() -> Interfaces:
    """Of this machine (or container): those that are up, the loopback too."""
    import psutil  # not before it is needed: the command line answers at once

    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    found: Interfaces = {}
    for name, addresses in psutil.net_if_addrs().items():
        if name in up:
            found[name] = [
                entry.address.partition("%")[0]
                for family in (socket.AF_INET, socket.AF_INET6)
                for entry in addresses
                if entry.family == family
            ]
    return found


def gloo_address(environment: Mapping[str, str], host: str, there: Interfaces) -> Chosen:
    """What gloo will choose on a machine, as torch's ProcessGroupGloo does it: the first address of the interface in
    GLOO_SOCKET_IFNAME; else the first one that the machine's own name resolves to and that can be listened on; else
    the loopback.

    Args:
        host: the machine's own name.
        there: its interfaces.
    """
    named = environment.get("GLOO_SOCKET_IFNAME", "")
    if len(named) > 1:  # torch looks at no shorter one
        names = named.split(",")
        for name in names:
            if not there.get(name):
                state = "is not there" if name not in there else "has no address"
                return Chosen("", f"the interface {name}, which GLOO_SOCKET_IFNAME names, {state}")
        return Chosen(there[names[0]][0], f"GLOO_SOCKET_IFNAME names {names[0]}")
    addresses = resolve(host)
    for address in addresses:
        if _can_be_listened_on(address):
            return Chosen(address, f"its own name {host} stands for that")
    if addresses:
        return Chosen("127.0.0.1", f"its own name {host} stands for {addresses[0]}, which is no address of it")
    return Chosen("127.0.0.1", f"its own name {host} stands for no address")


def nccl_problem(environment: Mapping[str, str], there: Interfaces) -> str:
    """What is wrong with NCCL_SOCKET_IFNAME on a machine; empty if it is not set or some interface fits.

    It lists beginnings of names; `=` before the list asks for whole names, `^` for all but these.
    """
    named = environment.get("NCCL_SOCKET_IFNAME", "")
    exact, wanted = named.startswith("="), [name for name in named.lstrip("=^").split(",") if name]
    if not wanted or named.startswith("^"):
        return ""
    fitting = [name for name in there if any(name == want if exact else name.startswith(want) for want in wanted)]
    return "" if fitting else f"no interface fits {named}, which NCCL_SOCKET_IFNAME names"


def resolve(name: str, port: int | None = None) -> list[str]:
    """Addresses that a name stands for here, in the system's order; none if it cannot be resolved."""
    try:
        found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def is_loopback(address: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    return False


def is_own(address: str, there: Interfaces) -> bool:
    """Whether an address is one of the machine's."""
    return is_loopback(address) or any(address in addresses for addresses in there.values())


def outward(there: Interfaces) -> Interfaces:
    """Interfaces by which other machines might be reached: with addresses that are not for this machine alone."""
    found: Interfaces = {}
    for name, addresses in there.items():
        if kept := [a for a in addresses if not is_loopback(a) and not ipaddress.ip_address(a).is_link_local]:
            found[name] = kept
    return found


def torchrun_knows_itself(endpoint: str, host: str) -> bool:
    """Whether torchrun, on the machine `host`, sees that the rendezvous endpoint is that machine itself, and so holds
    the store. It compares names and what they resolve to, not the addresses of interfaces.

    Args:
        endpoint: without the port.
        host: the machine's own name.
    """
    if endpoint in ("localhost", host) or is_loopback(endpoint):
        return True
    theirs = set(resolve(endpoint)) | {endpoint}
    try:
        own = socket.getaddrinfo(host, None, proto=socket.IPPROTO_TCP, flags=socket.AI_CANONNAME)
    except (OSError, UnicodeError):
        return False
    return any(entry[3] == endpoint or entry[4][0] in theirs for entry in own)


def why(error: OSError) -> str:
    """What the system says, without what Python adds to it."""
    return os.strerror(error.errno).lower() if error.errno else str(error)


def identity() -> str:
    """The same for two processes exactly if they share one network: one machine, and one container on it."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        parts[0] = file.read().strip()
    with contextlib.suppress(OSError):
        parts.append(os.readlink("/proc/self/ns/net"))
    return " ".join(parts)


def _can_be_listened_on(address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind((address, 0))
        return True
    return False
