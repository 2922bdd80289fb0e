"""Which address gloo chooses, held to what torch really does; and tries between listeners."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch.distributed as dist
from torch.distributed.elastic.rendezvous import utils

from disttrain.config import ExperimentError
from disttrain.preflight import network, peers
from disttrain.preflight.alone import Endpoint, port_problem, unreachable
from disttrain.preflight.peers import Door, Listener, Try, try_doors

from ..ports import free_port

NONCE, OTHER = "00112233445566ff", "ff66554433221100"
THERE = {"lo": ["127.0.0.1", "::1"], "eth0": ["10.0.0.1", "fd00::1"], "ib0": ["10.1.0.1"], "down": []}


def taken_by_gloo() -> str:
    """The address that gloo gives to other ranks, read from what it leaves in the store for them."""
    store = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
    dist.ProcessGroupGloo(store, 0, 1, timedelta(seconds=20))  # pyright: ignore[reportPrivateImportUsage]
    content = bytes(store.get("0/0"))
    (length,) = struct.unpack_from(
        "<Q", content
    )  # of the host's name; after it and the size of what follows, a sockaddr
    family, _, address = struct.unpack_from("<HH4s", content, 8 + length + 8)
    assert family == socket.AF_INET
    return socket.inet_ntoa(address)


@pytest.mark.parametrize("named", ["lo", None])
def test_the_address_is_the_one_that_gloo_takes(named: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    if named is not None:
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", named)
    chosen = network.gloo_address(os.environ, socket.gethostname(), network.interfaces())
    assert chosen.address == taken_by_gloo()


def test_an_interface_that_gloo_cannot_take() -> None:
    def chosen(names: str) -> network.Chosen:
        return network.gloo_address({"GLOO_SOCKET_IFNAME": names}, "nobody.invalid", THERE)

    assert chosen("ib0,eth0") == ("10.1.0.1", "GLOO_SOCKET_IFNAME names ib0")
    assert chosen("eth7") == ("", "the interface eth7, which GLOO_SOCKET_IFNAME names, is not there")
    assert chosen("eth0,down") == ("", "the interface down, which GLOO_SOCKET_IFNAME names, has no address")


def test_a_name_that_stands_for_nothing_leaves_the_loopback() -> None:
    chosen = network.gloo_address({}, "nobody.invalid", THERE)
    assert chosen == ("127.0.0.1", "its own name nobody.invalid stands for no address")


@pytest.mark.parametrize(
    ("named", "problem"),
    [("", False), ("eth", False), ("=eth", True), ("=eth0,xx", False), ("ens", True), ("^lo", False)],
)
def test_interfaces_for_nccl(named: str, problem: bool) -> None:
    assert bool(network.nccl_problem({"NCCL_SOCKET_IFNAME": named}, THERE)) is problem


def test_interfaces_that_lead_outward() -> None:
    assert network.outward({**THERE, "link": ["169.254.0.9", "fe80::1"]}) == {
        "eth0": ["10.0.0.1", "fd00::1"],
        "ib0": ["10.1.0.1"],
    }


@pytest.mark.parametrize(
    "endpoint", ["localhost", "127.0.0.1", "127.0.1.1", "::1", socket.gethostname(), "192.0.2.77", "nobody.invalid"]
)
def test_whether_torchrun_holds_the_store_is_what_torchrun_finds(endpoint: str) -> None:
    theirs = utils._matches_machine_hostname(endpoint)
    assert network.torchrun_knows_itself(endpoint, socket.gethostname()) is theirs


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [("a:1", ("a", 1)), ("10.0.0.1", ("10.0.0.1", 29400)), ("[fd00::1]:7", ("fd00::1", 7)), ("[::1]", ("::1", 29400))],
)
def test_endpoints(text: str, endpoint: tuple[str, int]) -> None:
    assert Endpoint.parse(text) == endpoint


@pytest.mark.parametrize("text", ["", ":1", "a:", "a:b", "a:0", "a:65536"])
def test_endpoints_that_are_none(text: str) -> None:
    with pytest.raises(ExperimentError, match="--endpoint: expected HOST:PORT"):
        Endpoint.parse(text)


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert port_problem(port) == f"port {port} cannot be listened on (address already in use)"
        assert unreachable(["127.0.0.1"], port) == ""
    assert port_problem(port) == ""
    assert unreachable(["127.0.0.1"], port) == ""  # the machine answers that nobody listens


@pytest.fixture
def listener() -> Iterator[Listener]:
    found = Listener("127.0.0.1", NONCE, clock=lambda: time.time() + 100)
    yield found
    found.close()


def test_tries(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "ANSWER_SECONDS", 0.5)
    closed = free_port()
    with socket.create_server(("127.0.0.1", 0)) as mute:
        doors = [
            Door(1, "127.0.0.1", listener.port, NONCE),
            Door(2, "127.0.0.1", closed, NONCE),
            Door(3, "127.0.0.1", listener.port, OTHER),
            Door(4, "127.0.0.1", mute.getsockname()[1], NONCE),
        ]
        good, refused, stranger, silent = try_doors(doors)
    assert (good.machine, good.failed) == (1, "")
    assert abs(good.clock - 100) <= good.seconds / 2 + 0.01
    assert refused == Try(2, "connect", "connection refused")
    assert (stranger.machine, stranger.failed) == (3, "stranger")
    assert silent == Try(4, "small", "no answer in 0.5 s")
    assert try_doors([]) == []


def test_a_listener_that_is_closed_listens_no_more() -> None:
    listener = Listener("127.0.0.1", NONCE)
    listener.close()
    (tried,) = try_doors([Door(0, "127.0.0.1", listener.port, NONCE)])
    assert tried.failed == "connect"
    assert not [thread for thread in threading.enumerate() if thread.name == "preflight" and _lasts(thread)]


def _lasts(thread: threading.Thread) -> bool:
    thread.join(5)
    return thread.is_alive()
