"""Hosts with addresses of their own on this machine: network and UTS namespaces joined by a bridge. Needs root."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

import psutil

from ..agents import Start
from ..preloaded import Forked, Preloaded


def run(*command: str) -> None:
    """Run a command, and say what it said if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")


def ip(*arguments: str) -> None:
    run("ip", *arguments)


class Host:
    """One host: its name, its address, and how to run something on it."""

    def __init__(self, name: str, namespace: str, address: str, switch: str, port: str) -> None:
        self.name = name
        self.address = address
        self._namespace = namespace
        self._switch = switch
        self._port = port

    def link(self, state: str) -> None:
        """Set the host's own end of its cable "up" or "down"."""
        ip("-n", self._namespace, "link", "set", "eth0", state)

    def unplug(self) -> None:
        """At the switch: the host's link stays up, and whatever it sends or should get is dropped without a word."""
        ip("-n", self._switch, "link", "set", self._port, "nomaster")

    def plug(self) -> None:
        ip("-n", self._switch, "link", "set", self._port, "master", "br0")

    def limit(self, rate: str) -> None:
        """Let the cable carry no more than that, "100mbit" say, in either direction."""
        for namespace, device in ((self._namespace, "eth0"), (self._switch, self._port)):
            run("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", "tbf", "rate", rate,
                "burst", "64kb", "latency", "200ms")  # fmt: skip

    @contextmanager
    def late(self, milliseconds: float) -> Iterator[None]:
        """While the block runs, each frame on the cable takes so much longer, in either direction."""
        command = ["nsenter", f"--net=/run/netns/{self._switch}", sys.executable]
        command += [str(Path(__file__).with_name("delay.py")), self._port, f"/run/netns/{self._namespace}"]
        command += [str(milliseconds)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as relay:
            try:
                assert relay.stdout is not None
                assert relay.stdout.readline() == b"ready\n", f"the relay of {self.name} ended with {relay.wait(10)}"
                yield
            finally:
                relay.terminate()
                relay.wait(10)

    def processes(self) -> list[psutil.Process]:
        """All that runs on this host."""
        own, found = os.stat(f"/run/netns/{self._namespace}").st_ino, []
        for process in psutil.process_iter():
            try:
                if os.stat(f"/proc/{process.pid}/ns/net").st_ino == own and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (OSError, psutil.Error):
                continue
        return found

    def lose_power(self) -> None:
        """Nothing of it says another word: its cable is cut before its processes are killed."""
        self.unplug()
        self.kill()

    def kill(self) -> None:
        """All its processes, by SIGKILL; the host itself still answers for them: their connections are closed."""
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def forked(self, server: Preloaded) -> Start:
        """A way to start agents on this host that need not import torch again."""

        def start(
            command: list[str], environment: dict[str, str], directory: Path, out: IO[bytes], err: IO[bytes]
        ) -> Forked:
            # The server has mounts of its own, and does not see what is mounted later.
            network = f"/proc/{os.getpid()}/root/run/netns/{self._namespace}"
            here = {"GLOO_SOCKET_IFNAME": "eth0", "DISTTRAIN_TEST_HOST": f"{network} {self.name}"}
            return server.start(command, {**environment, **here}, directory, out, err)

        return start

    def start(
        self, command: list[str], environment: dict[str, str], directory: Path, out: IO[bytes], err: IO[bytes]
    ) -> subprocess.Popen[bytes]:
        """Start a command on this host (see `tests.agents.Start`)."""
        # The name is set in a namespace of its own: the machine that we are on keeps its own. Nobody resolves it, so
        # gloo is told which interface to use, as on a cluster without name service.
        named = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', self.name, *command]
        return subprocess.Popen(
            ["nsenter", f"--net=/run/netns/{self._namespace}", *named],
            env={**environment, "GLOO_SOCKET_IFNAME": "eth0"},
            cwd=directory,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )


@contextmanager
def hosts(count: int, network: str = "10.78.0") -> Iterator[list[Host]]:
    """`count` hosts on one switch, the k-th at `<network>.<k>`; the network of the machine itself is not touched."""
    prefix = f"dt{os.getpid()}-{network.rpartition('.')[2]}"
    with ExitStack() as undo:

        def namespace(name: str) -> str:
            ip("netns", "add", name)
            undo.callback(ip, "netns", "del", name)  # takes the interfaces within along
            return name

        switch = namespace(f"{prefix}-sw")
        ip("-n", switch, "link", "add", "br0", "type", "bridge", "forward_delay", "0")
        ip("-n", switch, "link", "set", "br0", "up")
        made = []
        for k in range(1, count + 1):
            own = namespace(f"{prefix}-{k}")
            ip("link", "add", f"port{k}", "netns", switch, "type", "veth", "peer", "name", "eth0", "netns", own)
            ip("-n", switch, "link", "set", f"port{k}", "master", "br0", "up")
            ip("-n", own, "link", "set", "lo", "up")
            ip("-n", own, "link", "set", "eth0", "up")
            ip("-n", own, "addr", "add", f"{network}.{k}/24", "dev", "eth0")
            made.append(Host(f"host-{k}", own, f"{network}.{k}", switch, f"port{k}"))
        yield made
