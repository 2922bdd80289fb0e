"""What one machine can find out by itself, before torchrun is started: most of what torchrun would not say."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import NamedTuple

from ..config import Experiment, ExperimentError
from . import network
from .facts import Facts
from .findings import Finding
from .machines import listed

_CONNECT_SECONDS = 5.0
_PORT = 29400
"""torchrun's, where the endpoint names none."""


class Endpoint(NamedTuple):
    """Of torchrun's rendezvous: where the first machine holds its store."""

    host: str
    port: int

    @staticmethod
    def parse(text: str) -> Endpoint:
        """Raises:
        ExperimentError: it is not HOST:PORT.
        """
        host, colon, port = text.rpartition(":")
        if not colon or text.endswith("]"):
            host, port = text, str(_PORT)
        host = host.removeprefix("[").removesuffix("]")
        if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            raise ExperimentError(f"--endpoint: expected HOST:PORT, as torchrun's --rdzv-endpoint, got {text!r}")
        return Endpoint(host, int(port))

    @property
    def is_here_alone(self) -> bool:
        """Whether no other machine could mean this one by it."""
        return self.host == "localhost" or network.is_loopback(self.host)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def findings_alone(own: Facts, experiment: Experiment, endpoint: Endpoint | None) -> list[Finding]:
    """Findings about this machine that only matter, or can only be seen, before torchrun is started.

    Args:
        own: of this process.
    """
    launch = experiment.launch
    several = (launch.nodes or 1) > 1 or (endpoint is not None and not endpoint.is_here_alone)
    found = [*_address(own, several)]
    if endpoint is not None:
        found += _endpoint(own, endpoint)
    elif launch.port is not None and (busy := port_problem(launch.port)):
        found.append(
            Finding(
                f"launch.port is {launch.port}, and {busy} on {own.host}: name another, if this is the first machine"
            )
        )
    return found


def _address(own: Facts, several: bool) -> Iterator[Finding]:
    there = listed(own.interfaces)
    if network.is_loopback(own.address):
        yield Finding(
            f"the address that ranks here would give to others is {own.address} ({own.address_from}), at which no "
            f"other machine reaches them; there is {there}. Set GLOO_SOCKET_IFNAME (and NCCL_SOCKET_IFNAME) to the "
            "interface that leads to the others (`disttrain submit` does it from launch.interface), or let the name "
            "stand for the real address (/etc/hosts)"
            + ("" if several else ". With a single machine it does not matter"),
            refuses=several,
        )


def _endpoint(own: Facts, endpoint: Endpoint) -> Iterator[Finding]:
    addresses = network.resolve(endpoint.host, endpoint.port)
    if not addresses:
        yield Finding(
            f"{endpoint.host}, of the rendezvous {endpoint}, stands for no address on {own.host}; give an address, or "
            "make the name known (/etc/hosts)"
        )
        return
    here = [address for address in addresses if network.is_own(address, own.interfaces)]
    if not here:
        if problem := unreachable(addresses, endpoint.port):
            yield Finding(f"the rendezvous {endpoint} is not reached from {own.host}: {problem}")
        return
    if (
        all(network.is_loopback(address) for address in here)
        and not network.is_loopback(endpoint.host)
        and endpoint.host not in ("localhost", own.host)
    ):
        yield Finding(
            f"{endpoint.host}, of the rendezvous {endpoint}, stands for {here[0]} on {own.host}, which is this machine "
            "itself; if it is to be another one, mend its name here (/etc/hosts), or give its address"
        )
    if not network.torchrun_knows_itself(endpoint.host, own.host):
        named = network.resolve(own.host)
        stands = f"stands for {', '.join(named)}" if named else "stands for no address"
        yield Finding(
            f"torchrun on {own.host} would not see that {endpoint.host} is this machine, whose own name {stands}: "
            "nobody would hold the store, and all agents would wait for it. Give torchrun here --rdzv-conf is_host=1 "
            f"and --local-addr {here[0]}, and the other machines --rdzv-conf is_host=0 and their own --local-addr "
            "(`disttrain submit` does), or let the name stand for the real address (/etc/hosts)"
        )
    if busy := port_problem(endpoint.port):
        yield Finding(
            f"{busy} on {own.host}, of the rendezvous {endpoint}: end what listens there (an earlier job?), or choose "
            "another port; this machine is to listen on it"
        )


def port_problem(port: int) -> str:
    """Why torchrun could not listen on a port here; empty if it could."""
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    try:
        socket.create_server(("", port), family=family, dualstack_ipv6=family == socket.AF_INET6).close()
    except OSError as error:
        return f"port {port} cannot be listened on ({network.why(error)})"
    return ""


def unreachable(addresses: list[str], port: int) -> str:
    """Why nothing answers at any of the addresses; empty if something does, or could: a machine that says that nothing
    listens there yet can be reached."""
    problem = ""
    for address in addresses:
        try:
            socket.create_connection((address, port), _CONNECT_SECONDS).close()
            return ""
        except ConnectionRefusedError:
            return ""
        except TimeoutError:
            problem = (
                f"no answer from {address} in {_CONNECT_SECONDS:g} s; is that machine up, is the address right, and "
                "does its firewall pass TCP?"
            )
        except OSError as error:
            problem = (
                f"{address}: {(error.strerror or str(error)).lower()}; look at the address and the routes (ip route)"
            )
    return problem
