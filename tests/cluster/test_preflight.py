"""Broken clusters, made on purpose: each ends with its one message, with exit code 2, soon, and without a traceback."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from ..agents import REPOSITORY, agent_command, marked
from ..distributed.test_launch import EXPERIMENT
from ..fault_table import PREFLIGHT
from .hosts import Host, hosts

pytestmark = pytest.mark.cluster

MOST_SECONDS = 240.0
DOCTOR = ("doctor", "tiny.yaml", "train.timeout=60")


class Said(NamedTuple):
    """How one process ended."""

    code: int
    out: str
    err: str
    seconds: float


class Part(NamedTuple):
    """A host, and what is peculiar to it."""

    host: Host
    interface: str | None = "eth0"
    """GLOO_SOCKET_IFNAME."""
    etc_hosts: str = ""
    """Instead of the machine's own."""
    shared_memory: str = ""
    """Size of its own /dev/shm."""
    arguments: tuple[str, ...] = ()

    def wrapped(self, command: Sequence[str], directory: Path) -> list[str]:
        """The command, with the host's own files over those of the machine."""
        steps = []
        if self.etc_hosts:
            file = Path(tempfile.mkstemp(dir=directory, suffix=".hosts")[1])
            file.write_text(self.etc_hosts)
            steps.append(f"mount --bind {file} /etc/hosts")
        if self.shared_memory:
            steps.append(f"mount -t tmpfs -o size={self.shared_memory} tmpfs /dev/shm")
        names = ["env", "-u", "GLOO_SOCKET_IFNAME"]
        if self.interface is not None:
            names.append(f"GLOO_SOCKET_IFNAME={self.interface}")
        return ["unshare", "--mount", "sh", "-c", " && ".join([*steps, 'exec "$@"']), "sh", *names, *command]


def start(commands: Sequence[tuple[Part, Sequence[str], dict[str, str]]], directory: Path) -> list[Said]:
    """Run a command on each host, side by side, to their end; nothing is left behind."""
    marker = uuid.uuid4().hex
    with ExitStack() as stack:
        began, made = time.monotonic(), []
        for part, command, more in commands:
            out, err = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(2))
            environment = {
                **os.environ,
                "PYTHONPATH": str(REPOSITORY),
                "OMP_NUM_THREADS": "1",
                "DISTTRAIN_TEST_MARKER": marker,
                **more,
            }
            made.append((part.host.start(part.wrapped(command, directory), environment, directory, out, err), out, err))
        seconds: dict[int, float] = {}
        while len(seconds) < len(made) and time.monotonic() - began < MOST_SECONDS:
            for process, _, _ in made:
                if process.pid not in seconds and process.poll() is not None:
                    seconds[process.pid] = time.monotonic() - began
            time.sleep(0.1)
        left = marked(marker)
        while left and time.monotonic() - began < MOST_SECONDS:  # guards end after their ranks
            time.sleep(0.2)
            left = marked(marker)
        for process in left:
            process.kill()
        said = []
        for process, out, err in made:
            code = process.wait(10)
            texts = []
            for file in (out, err):
                file.seek(0)
                texts.append(file.read().decode(errors="replace"))
            said.append(Said(code, texts[0], texts[1], seconds.get(process.pid, MOST_SECONDS)))
    assert not left, f"left: {left}\n{said}"
    return said


def ranks(
    parts: Sequence[Part],
    directory: Path,
    program: Sequence[str] = DOCTOR,
    size: int | None = None,
    master: str | None = None,
) -> list[Said]:
    """One rank of disttrain on each host, placed as torchrun would place it.

    Args:
        size: as many are expected, where some do not come.
        master: the name of the first host, as it tells the others; its address unless said otherwise.
    """
    (directory / "tiny.yaml").write_text(EXPERIMENT)
    command = [sys.executable, "-m", "disttrain", *program]
    of_all = {
        "WORLD_SIZE": str(size or len(parts)),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": master or parts[0].host.address,
        "MASTER_PORT": "29500",
    }
    return start(
        [
            (part, [*command, *part.arguments], {**of_all, "RANK": str(n), "GROUP_RANK": str(n)})
            for n, part in enumerate(parts)
        ],
        directory,
    )


def own_name(host: Host, address: str) -> str:
    return f"127.0.0.1 localhost\n{address} {host.name}\n"


def iptables(host: Host, *rule: str) -> None:
    if shutil.which("iptables") is None:
        pytest.skip("there is no iptables, by which packets are lost")
    command = ["nsenter", f"--net=/run/netns/{host._namespace}", "iptables", "-w", *rule]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr


def one_way(both: list[Host]) -> list[Part]:
    iptables(both[1], "-A", "INPUT", "-p", "tcp", "--syn", "-j", "DROP")
    return [Part(host) for host in both]


def small_packets_only(both: list[Host]) -> list[Part]:
    iptables(both[1], "-A", "INPUT", "-p", "tcp", "-m", "length", "--length", "1300:65535", "-j", "DROP")
    return [Part(host) for host in both]


class Broken(NamedTuple):
    """A way for two hosts to be wrong; `fault_table.PREFLIGHT` has what is said."""

    parts: Callable[[list[Host]], list[Part]]
    code: int = 2
    size: int | None = None
    master: str | None = None
    speaker: int = 0
    program: Sequence[str] = DOCTOR


BROKEN: dict[str, Broken] = {
    "the-loopback-is-chosen": Broken(lambda both: [Part(host, interface="lo") for host in both]),
    "an-interface-is-missing": Broken(lambda both: [Part(both[0]), Part(both[1], interface="ib0")]),
    "own-names-stand-for-the-loopback": Broken(
        lambda both: [Part(host, interface=None, etc_hosts=own_name(host, "127.0.1.1")) for host in both]
    ),
    "own-names-stand-for-nothing": Broken(lambda both: [Part(host, interface=None) for host in both]),
    "a-firewall-on-one-side": Broken(one_way),
    "large-packets-are-lost": Broken(small_packets_only),
    "the-first-machine-has-an-unknown-name": Broken(
        lambda both: [Part(both[0], etc_hosts=own_name(both[0], both[0].address)), Part(both[1])],
        master="host-1",
        speaker=1,
        program=("doctor", "tiny.yaml", "train.timeout=20"),
    ),
    "experiments-differ": Broken(
        lambda both: [Part(both[0]), Part(both[1], arguments=("train.lr=0.5",))], program=("tiny.yaml",)
    ),
    "a-rank-does-not-come": Broken(
        lambda both: [Part(host) for host in both], code=1, size=3, program=("tiny.yaml", "train.timeout=20")
    ),
}


def lose(name: str, number: int, directory: Path) -> list[Said]:
    broken = BROKEN[name]
    with hosts(2, f"10.79.{number}") as both:
        return ranks(broken.parts(both), directory, broken.program, broken.size, broken.master)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[list[Said]]]]:
    """A few at a time: half of their time is waiting."""
    with ThreadPoolExecutor(3) as pool:
        yield {
            name: pool.submit(lose, name, number, tmp_path_factory.mktemp(f"broken-{number}"))
            for number, name in enumerate(BROKEN, start=1)
        }


def messages(said: Sequence[Said]) -> list[str]:
    """What is said of what is wrong, by all ranks together: beside it, only that rank 0 says why."""
    lines = [line for one in said for line in one.err.splitlines() if line.startswith("disttrain: ")]
    return [line for line in lines if "rank 0 says why" not in line]


@pytest.mark.parametrize("name", BROKEN)
def test_broken(name: str, outcomes: dict[str, Future[list[Said]]]) -> None:
    broken, said = BROKEN[name], outcomes[name].result()
    speaker = said[broken.speaker]
    print(f"{name}: {[(one.code, round(one.seconds)) for one in said]}\n{speaker.err}")
    assert re.search(f"^disttrain: .*{PREFLIGHT[name]}", speaker.err, re.MULTILINE), speaker.err
    assert speaker.code == broken.code
    assert "Traceback" not in "".join(one.err for one in said)
    assert len(messages([one for one in said if one.code == broken.code])) == 1, said
    if name == "the-loopback-is-chosen":  # the page has it as an example
        page = (REPOSITORY / "docs" / "clusters.md").read_text(encoding="utf-8")
        shown = re.sub(r"10\.79\.\d+\.", "10.0.0.", messages(said)[0])
        assert " ".join(shown.split()) in " ".join(page.split())
    if broken.speaker == 0:
        assert {one.code for one in said} == {broken.code}


def test_what_machines_find_out_alone(tmp_path: Path) -> None:
    """Before torchrun: what would make it wait for ever, or fail in its own words."""
    with hosts(2, "10.79.101") as (first, second):
        (tmp_path / "tiny.yaml").write_text(EXPERIMENT)
        port, program = 29444, tmp_path / "program.py"
        at_head = f"--endpoint={first.address}:{port}"
        tries = [
            ["doctor", "tiny.yaml", at_head],
            ["doctor", "tiny.yaml", f"--endpoint={second.address}:{port}"],
            ["doctor", "tiny.yaml", "--endpoint=10.79.101.77:1"],
            ["doctor", "tiny.yaml", "--endpoint=nobody.invalid:1"],
            ["doctor", "tiny.yaml", "launch.interface=eth7"],
            ["doctor", "tiny.yaml", f"launch.port={port}"],
            ["doctor", "tiny.yaml", "--json"],
        ]
        program.write_text(ALONE)
        named = Part(first, interface=None, etc_hosts=own_name(first, "127.0.1.1"), shared_memory="1m")
        (said,) = start([(named, [sys.executable, str(program), str(port), json.dumps(tries)], {})], tmp_path)
        assert said.code == 0, said.err
        head, other, nobody, unknown, interface, busy, well = (json.loads(line) for line in said.out.splitlines())
    assert [code for code, _, _ in (head, other, nobody, unknown, interface, busy)] == [2] * 6
    assert (
        f"torchrun on host-1 would not see that {first.address} is this machine, whose own name stands for 127.0.1.1: "
        "nobody would hold the store, and all agents would wait for it. Give torchrun here --rdzv-conf is_host=1 and "
        f"--local-addr {first.address}, "
    ) in head[1]
    assert f"port {port} cannot be listened on (address already in use) on host-1" in head[1]
    assert head[1].startswith("disttrain: 3 things are to be mended before this can start:\n- the address that ranks")
    assert "is not reached" not in other[1]  # it answers that nobody listens yet
    assert "the rendezvous 10.79.101.77:1 is not reached from host-1: 10.79.101.77: no route to host" in nobody[1]
    assert "nobody.invalid, of the rendezvous nobody.invalid:1, stands for no address on host-1" in unknown[1]
    assert "the interface eth7, which GLOO_SOCKET_IFNAME names, is not there" in interface[1]
    assert f"launch.port is {port}, and port {port} cannot be listened on (address already in use)" in busy[1]

    code, err, out = well
    assert code == 0 and "disttrain: warning: the address that ranks here would give" in err
    assert json.loads(out)["ranks"][0]["shared_memory_free"] == 1 << 20  # which only NCCL would mind


ALONE = """\
import contextlib, io, json, socket, sys
from disttrain import cli
from disttrain.config import ExperimentError
from disttrain.refusal import Leave

with socket.create_server(("", int(sys.argv[1]))):
    for words in json.loads(sys.argv[2]):
        err, out = io.StringIO(), io.StringIO()
        with contextlib.redirect_stderr(err), contextlib.redirect_stdout(out):
            try:
                code = cli.run(words)
            except ExperimentError as error:
                code = 2
                print("disttrain:", error, file=err)
            except Leave as leave:
                code = leave.code
        print(json.dumps([code, err.getvalue(), out.getvalue()]))
"""

AS_TORCH_DOES = """\
import os, socket, sys
sys.path.insert(0, os.environ["PYTHONPATH"])
from tests.unit.test_preflight_network import network, taken_by_gloo, utils

chosen = network.gloo_address(os.environ, socket.gethostname(), network.interfaces())
assert chosen.address == taken_by_gloo(), (chosen, taken_by_gloo())
for endpoint in sys.argv[1:]:
    try:
        theirs = utils._matches_machine_hostname(endpoint)
    except socket.gaierror:  # its own name stands for nothing: torchrun fails with a traceback
        theirs = False
    assert network.torchrun_knows_itself(endpoint, socket.gethostname()) is theirs, endpoint
print(chosen.address)
"""


def test_what_gloo_and_torchrun_choose_is_foreseen(tmp_path: Path) -> None:
    with hosts(1, "10.79.102") as (host,):
        parts = {
            host.address: Part(host, interface=None, etc_hosts=own_name(host, host.address)),
            "127.0.1.1": Part(host, interface=None, etc_hosts=own_name(host, "127.0.1.1")),
            "127.0.0.1": Part(host, interface=None, etc_hosts=own_name(host, "10.79.102.9")),  # another's address
        }
        command = [sys.executable, "-c", AS_TORCH_DOES, host.address, host.name, "127.0.1.1", "10.79.102.9"]
        said = start([(part, command, {}) for part in parts.values()], tmp_path)
    assert [(one.code, one.out.strip()) for one in said] == [(0, address) for address in parts], said


def test_under_torchrun_machines_whose_names_stand_for_the_loopback_can_be_well(tmp_path: Path) -> None:
    """As `disttrain submit` starts them: with is_host, --local-addr and the interface."""
    (tmp_path / "tiny.yaml").write_text(EXPERIMENT)
    with hosts(2, "10.79.103") as both:
        parts = [Part(host, etc_hosts=own_name(host, "127.0.1.1")) for host in both]
        commands = [
            agent_command([*DOCTOR, "--json"], n, machines=2, host=both[0].address, address=host.address)
            for n, host in enumerate(both)
        ]
        said = start([(part, command, {}) for part, command in zip(parts, commands)], tmp_path)
    assert [one.code for one in said] == [0, 0], said
    found = json.loads(said[0].out)
    assert [(rank["host"], rank["address"]) for rank in found["ranks"]] == [(h.name, h.address) for h in both]
    assert sorted((tried["from"], tried["machine"], tried["failed"]) for tried in found["tries"]) == [
        (0, 1, ""),
        (1, 0, ""),
    ]
    assert abs(found["clocks"]["1"]) < 1.0
    assert found["findings"] == []
