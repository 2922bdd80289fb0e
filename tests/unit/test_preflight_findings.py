"""What is said of made-up ranks: each finding, in its words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from disttrain.preflight.facts import Disk, Facts, Partitions
from disttrain.preflight.findings import Finding, findings, told
from disttrain.preflight.peers import Try

VERSIONS = {"python": "3.11.7", "disttrain": "0.1.0", "torch": "2.13.0+cpu", "torch_geometric": "2.8.1"}
CHOOSE = (
    "Set GLOO_SOCKET_IFNAME (and NCCL_SOCKET_IFNAME) on every machine to the interface by which it reaches the others "
    "(`disttrain submit` does it from launch.interface)"
)


def rank(number: int, per_machine: int = 1, **changed: Any) -> Facts:
    """A rank with which all is well."""
    machine = number // per_machine
    facts = Facts(
        rank=number,
        local_rank=number % per_machine,
        local_size=per_machine,
        machine=machine,
        host=f"host-{machine + 1}",
        nonce=f"{number:016x}",
        network=f"network {machine}",
        address=f"10.0.0.{machine + 1}",
        address_from="GLOO_SOCKET_IFNAME names eth0",
        port=4000,
        interfaces={"lo": ["127.0.0.1"], "eth0": [f"10.0.0.{machine + 1}"]},
        versions=VERSIONS,
        source="" if number % per_machine else "c0ffee",
        memory_free=1 << 34,
        memory_total=1 << 35,
        disks={"run": Disk("runs/a", 1 << 40)},
        shared_memory_free=1 << 34,
        open_files=1 << 20,
        experiment="e",
    )
    return replace(facts, **changed)


def gpu(number: int, per_machine: int = 1, **changed: Any) -> Facts:
    given = {"device": "cuda", "device_name": "NVIDIA A", "device_id": f"GPU-{number}", **changed}
    return rank(number, per_machine, **given)


def texts(ranks: list[Facts], tries: list[tuple[int, Try]] | None = None) -> list[str]:
    """Of all refusals; there are no warnings."""
    found = findings(ranks, tries or [])
    assert all(finding.refuses for finding in found), found
    return [finding.text for finding in found]


def warnings(ranks: list[Facts], tries: list[tuple[int, Try]] | None = None) -> list[str]:
    found = findings(ranks, tries or [])
    assert not any(finding.refuses for finding in found), found
    return [finding.text for finding in found]


def well(*pairs: tuple[int, int]) -> list[tuple[int, Try]]:
    return [(a, Try(b, seconds=0.001)) for a, b in pairs]


@pytest.mark.parametrize("per_machine", [1, 2])
def test_nothing_is_said_when_all_is_well(per_machine: int) -> None:
    assert findings([rank(number, per_machine) for number in range(4)], well((0, 1), (1, 0))) == []
    assert findings([gpu(number, per_machine) for number in range(4)], []) == []


def test_several_agents_on_one_machine_may_talk_by_the_loopback() -> None:
    ranks = [rank(n, host="laptop", network="one", address="127.0.0.1") for n in range(3)]
    assert findings(ranks, []) == []


def test_a_refusal_of_one_rank_names_it_and_one_of_all_is_said_as_it_is() -> None:
    assert texts([rank(0), rank(1, refused="no GPU")]) == ["rank 1 on host-2: no GPU"]
    assert texts([rank(0, refused="bad"), rank(1, refused="bad")]) == ["bad"]
    assert texts([rank(0, refused="bad"), rank(1, refused="worse")]) == [
        "rank 0 on host-1: bad\nrank 1 on host-2: worse"
    ]


def test_unequal_numbers_of_ranks() -> None:
    ranks = [rank(0, 2), rank(1, 2), replace(rank(2, 2), local_size=1)]
    assert texts(ranks) == [
        "every machine must run the same number of ranks (--nproc-per-node), got host-1: 2, host-2: 1"
    ]


def test_the_loopback_on_several_machines() -> None:
    own = "its own name host-1 stands for that"
    ranks = [rank(0, address="127.0.1.1", address_from=own), rank(1), rank(2)]
    # That nobody gets there is a consequence, and not said.
    tries = [(1, Try(0, "connect", "connection refused")), (2, Try(0, "stranger"))]
    assert texts(ranks, tries) == [
        "a loopback address, at which no other machine is reached, was chosen: host-1 would be 127.0.1.1 "
        f"({own}; it has eth0 (10.0.0.1)). {CHOOSE}, or let each machine's own name stand for its real address "
        "(/etc/hosts)"
    ]


def test_an_interface_that_one_machine_does_not_have() -> None:
    why = "the interface ib0, which GLOO_SOCKET_IFNAME names, is not there"
    assert texts([rank(0), rank(1, address="", address_from=why, port=0)]) == [
        f"no address to talk from: host-2 has eth0 (10.0.0.2), and {why}. {CHOOSE}"
    ]


def test_one_address_on_two_machines() -> None:
    named = "its own name box stands for that"
    ranks = [rank(n, host="box", address="172.17.0.1", address_from=named) for n in range(2)]
    assert texts(ranks, [(0, Try(1, "stranger"))]) == [
        f"box (machine 0) and box (machine 1) all have the address 172.17.0.1 ({named}): it belongs to a network "
        f"within each machine, as docker0 does. {CHOOSE}"
    ]


def test_a_firewall_on_one_side() -> None:
    tries = [(0, Try(1, "connect", "no answer in 5 s")), *well((1, 0))]
    assert texts([rank(0), rank(1)], tries) == [
        "host-1 cannot connect to host-2 at 10.0.0.2 (no answer in 5 s); host-2 does reach host-1. Let the firewalls "
        "of these machines pass TCP on all ports between them (gloo and NCCL take any that is free), mend the route, "
        "or choose another interface (GLOO_SOCKET_IFNAME, launch.interface)"
    ]


def test_neither_of_two_reaches_the_other() -> None:
    tries = [(0, Try(1, "connect", "no route to host")), (1, Try(0, "connect", "no answer in 5 s")), *well((0, 2))]
    (text,) = texts([rank(0), rank(1), rank(2)], tries)
    assert text.startswith(
        "host-1 cannot connect to host-2 at 10.0.0.2 (no route to host); host-2 cannot connect to host-1 at 10.0.0.1 "
        "(no answer in 5 s). Let the firewalls"
    )


def test_large_packets_are_lost() -> None:
    tries = [(0, Try(1, "large", "no answer in 5 s")), (1, Try(0, "large", "no answer in 5 s"))]
    (text,) = texts([rank(0), rank(1, address="fd00::2")], tries)
    assert text.startswith(
        "host-1 exchanges small messages only with host-2 at [fd00::2] (no answer in 5 s); host-2 exchanges small "
        "messages only with host-1 at 10.0.0.1 (no answer in 5 s). Large packets are lost on the way: the MTU"
    )


def test_something_else_answers() -> None:
    (text,) = texts([rank(0), rank(1)], [(0, Try(1, "stranger")), *well((1, 0))])
    assert text.startswith("host-1 reached something else than host-2 at 10.0.0.2; host-2 does reach host-1. That addr")


def test_many_pairs_are_counted() -> None:
    ranks = [rank(number) for number in range(5)]
    tries = [(a, Try(b, "connect", "no answer in 5 s")) for a in range(5) for b in range(5) if a != b]
    (text,) = texts(ranks, tries)
    assert "(and 12 more pairs). Let" in text


def test_a_rank_without_a_gpu() -> None:
    assert texts([gpu(0, 2), gpu(1, 2), gpu(2, 2), rank(3, 2)]) == [
        "rank 3 on host-2 found no GPU, the other ranks did: mend the driver there (nvidia-smi), or give the container "
        "its GPUs, or set train.device=cpu for all"
    ]


def test_two_ranks_on_one_gpu() -> None:
    assert texts([gpu(0, device_id="GPU-7"), gpu(1, device_id="GPU-7", network="network 0", host="host-1")]) == [
        "rank 0 on host-1 and rank 1 on host-1 would share one GPU (NVIDIA A, GPU-7), which NCCL refuses: start one "
        "torchrun agent a machine with as many ranks as it has GPUs (--nproc-per-node), or give each agent GPUs of its "
        "own (CUDA_VISIBLE_DEVICES), or set train.device=cpu"
    ]


def test_an_interface_for_nccl_that_is_not_there() -> None:
    problem = "no interface fits ib, which NCCL_SOCKET_IFNAME names"
    assert texts([gpu(0), gpu(1, nccl_problem=problem)]) == [
        f"host-2: {problem}; it has eth0 (10.0.0.2). Set it to one that is there, or leave it unset"
    ]
    assert texts([rank(0), rank(1, nccl_problem=problem)]) == []


@pytest.mark.parametrize(
    ("package", "version"), [("torch", "2.12.1+cpu"), ("disttrain", "0.2.0"), ("torch_geometric", "2.7.0")]
)
def test_versions_that_decide_are_refused(package: str, version: str) -> None:
    other = {**VERSIONS, package: version}
    assert texts([rank(0), rank(1, versions=other, source="other"), rank(2)])[0] == (
        f"{package} differs: {VERSIONS[package].partition('+')[0]} on host-1 and host-3, {version.partition('+')[0]} "
        "on host-2. Install the same version on all machines: what ranks compute, or send each other, would differ"
    )


@pytest.mark.parametrize(
    ("package", "here", "there", "shown"),
    [
        ("python", "3.11.7", "3.12.1", "3.11 on host-1, 3.12 on host-2"),
        ("numba", "0.68.1", "0.60.0", "0.68.1 on host-1, 0.60.0 on host-2"),
        ("torch", "2.13.0+cpu", "2.13.0+cu130", "2.13.0+cpu on host-1, 2.13.0+cu130 on host-2"),
    ],
)
def test_other_versions_are_warned_of(package: str, here: str, there: str, shown: str) -> None:
    ranks = [rank(n, versions={**VERSIONS, package: version}) for n, version in enumerate((here, there))]
    assert warnings(ranks) == [f"{package} differs: {shown}; results may differ a little"]


def test_patches_of_python_do_not_matter() -> None:
    assert findings([rank(0), rank(1, versions={**VERSIONS, "python": "3.11.9"})], []) == []


def test_the_version_of_nccl_matters_on_gpus() -> None:
    ranks = [gpu(n, versions={**VERSIONS, "nccl": version}) for n, version in enumerate(("2.27.3", "2.27.7"))]
    assert texts(ranks)[0].startswith("nccl differs: 2.27.3 on host-1, 2.27.7 on host-2. Install")


def test_other_files_of_the_same_version() -> None:
    assert texts([rank(0), rank(1, source="decaf0")]) == [
        "disttrain's own files differ: c0ffee on host-1, decaf0 on host-2 (checksums). Give all machines the same "
        "checkout or installation"
    ]


def test_other_partitions() -> None:
    here = Partitions("parts", "aaaaaaaabb", "1111111111112222", 2)
    ranks = [rank(0, partitions=here), rank(1, partitions=replace(here, digest="bbbbbbbbcc")), rank(2)]
    assert texts(ranks) == [
        "partition.dir (parts) holds other partitions here and there, cut differently (host-1: 2 partitions "
        "(aaaaaaaa), host-2: 2 partitions (bbbbbbbb)): remove it where it is wrong, and that machine is sent its "
        "share; or give every machine the same (a shared disk, or copies)"
    ]
    ranks[1] = rank(1, partitions=replace(here, digest="bbbbbbbbcc", data="333333333333444"))
    (text,) = texts(ranks)
    assert "made from different data (host-1: 111111111111, host-2: 333333333333)" in text
    assert texts([rank(0, partitions=here), rank(1, partitions=here)]) == []


def test_too_little_shared_memory_matters_to_nccl_alone() -> None:
    little = {"shared_memory_free": 1 << 20}
    assert texts([gpu(0, 2, **little), gpu(1, 2, **little)]) == [
        "host-1 has 1.0 MiB left in /dev/shm, and NCCL lays at least 20.0 MiB there for 2 ranks: give the container "
        "more (docker run --shm-size=1g, or --ipc=host), remove what earlier jobs left there, or set NCCL_SHM_DISABLE=1"
    ]
    assert texts([rank(0, 2, **little), rank(1, 2, **little)]) == []  # no GPUs
    assert texts([gpu(0, **little), gpu(1, **little)]) == []  # one rank a machine
    assert texts([gpu(n, 2, **little, nccl_shared_memory=False) for n in range(2)]) == []


def test_what_is_short() -> None:
    assert warnings([rank(0, 2, memory_free=1 << 28), rank(1, 2)]) == [
        "host-1 has 256.0 MiB of memory left for 2 ranks: start fewer (--nproc-per-node), or end what else runs there"
    ]
    full = {"run": Disk("runs/a", 1 << 20), "partitions": Disk("data", 1 << 20)}
    assert warnings([rank(0, disks=full), rank(1, disks=full)]) == [
        "host-1 has 1.0 MiB left on the disk of the run directory (runs/a)",
        "host-1 has 1.0 MiB left on the disk of the partitions (data)",
        "host-2 has 1.0 MiB left on the disk of the partitions (data)",
    ]
    assert warnings([rank(0), rank(1, open_files=100)]) == [
        "a process on host-2 may have 100 files open, and connections to 2 ranks take about 144: raise the limit "
        "(ulimit -n)"
    ]


def test_clocks_apart() -> None:
    tries = [(0, Try(1, clock=-90.0)), (1, Try(0, clock=90.0)), (2, Try(0, clock=-7.0)), (0, Try(2, "connect"))]
    found = findings([rank(0), rank(1), rank(2)], tries)
    assert [finding.text for finding in found if not finding.refuses] == [
        "clocks are apart: that of host-2 is 90 s behind, that of host-3 is 7 s ahead of host-1's. Nothing is decided "
        "by them, but logs are hard to compare, and files on a shared disk look newer or older than they are: let ntp "
        "or chrony set them"
    ]
    assert findings([rank(0), rank(1)], [(0, Try(1, clock=1.0))]) == []
    assert findings([rank(0), rank(1)], [(0, Try(1, clock=6.0, seconds=4.0))]) == []  # that may be the way there


def test_other_experiments() -> None:
    ranks = [rank(0, settings={"train": {"lr": 0.1}}), rank(1, settings={"train": {"lr": 0.2}}), rank(2)]
    assert texts(ranks) == [
        "rank 1 on host-2 read another experiment than rank 0 on host-1:\n"
        "  train.lr: 0.1 on rank 0, 0.2 there\n"
        "give every machine the same YAML file and the same overrides"
    ]


def test_without_the_preflight_only_experiments_are_compared() -> None:
    ranks = [
        rank(0, wanted=False, settings={"launch": {"preflight": False}}),
        rank(1, versions={}, address="127.0.0.1", settings={"launch": {"preflight": True}}),
    ]
    assert texts(ranks, [(0, Try(1, "connect"))]) == [
        "rank 1 on host-2 read another experiment than rank 0 on host-1:\n"
        "  launch.preflight: false on rank 0, true there\n"
        "give every machine the same YAML file and the same overrides"
    ]


def test_one_message_for_all_refusals() -> None:
    found = [Finding("first\n  more"), Finding("careful", refuses=False), Finding("second")]
    assert told(found) == (
        "2 things are to be mended before this can start:\n- first\n    more\n- second",
        ["careful"],
    )
    assert told(found[:1]) == ("first\n  more", [])
    assert told([]) == ("", [])


def test_facts_come_through_packed() -> None:
    facts = gpu(0, partitions=Partitions("parts", "aa", "bb", 2))
    assert Facts.unpacked(facts.packed()) == facts
    assert len(facts.packed()) < 1000
