"""Hosts on a network of a given speed, on this machine: network namespaces, joined by a wire. Needs root, ip and tc."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

_CLONE_NEWNET = 0x40000000


class NetworkError(RuntimeError):
    """Such a network cannot be had here. The message says why."""


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise NetworkError(f"{' '.join(command)}: {done.stderr.strip()}")


def enter(namespace: str) -> None:
    """Move this thread, and those that it starts, into a network namespace."""
    with open(f"/run/netns/{namespace}") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _CLONE_NEWNET) != 0:
            raise NetworkError(f"setns: {os.strerror(ctypes.get_errno())}")


@contextmanager
def two_hosts(rate: str) -> Iterator[list[tuple[str, str]]]:
    """The namespaces of two hosts, and their addresses, on a wire that carries `rate` (as tc writes it) each way.

    Raises:
        NetworkError: not on this machine.
    """
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        raise NetworkError("network namespaces need root")
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            raise NetworkError(f"there is no `{tool}` here (iproute2)")
    names = [f"dtbench{os.getpid()}-{number}" for number in (1, 2)]
    with ExitStack() as undo:
        for name in names:
            _run("ip", "netns", "add", name)
            undo.callback(_run, "ip", "netns", "del", name)  # takes the interfaces within along
        first, second = names
        _run("ip", "link", "add", "eth0", "netns", first, "type", "veth", "peer", "name", "eth0", "netns", second)
        hosts = []
        for number, name in enumerate(names, 1):
            address = f"10.79.0.{number}"
            _run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _run("ip", "-n", name, "link", "set", device, "up")
            shaped = ["rate", rate, "burst", "256kb", "latency", "50ms"]
            _run("tc", "-n", name, "qdisc", "add", "dev", "eth0", "root", "tbf", *shaped)
            hosts.append((name, address))
        yield hosts
