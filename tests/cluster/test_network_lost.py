"""Networks that are taken away in mid-training, and a machine that freezes: every process of the job is gone in time,
torchrun's agents too, each side says whom it missed and where, and the run goes on when all is well again."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from disttrain.train.checkpoint import CheckpointDirectory

from ..agents import REPOSITORY, agent_command, marked
from ..fault_table import NETWORK
from ..faults import MARGIN, TIMEOUT, Fault, lay_out, nothing_torn
from .hosts import Host, hosts

pytestmark = pytest.mark.cluster

AGENT_SECONDS = 80.0
"""An agent that hangs is ended so long after its last sign of life, where `train.timeout` is shorter."""
MOST_SECONDS = 300.0


class Side(NamedTuple):
    """How one host's part of the job ended."""

    code: int
    said: str
    seconds: float
    """From the fault until its last process was gone."""


@dataclass
class Machine:
    """One host's part of a job that is going on."""

    host: Host
    agent: subprocess.Popen[bytes]
    marker: str
    out: Path
    gone: float = 0.0
    left: list[psutil.Process] = field(default_factory=list)

    def look(self) -> None:
        if not self.gone:
            self.left = marked(self.marker)
            self.gone = 0.0 if self.left else time.time()


def begin(directory: Path, both: list[Host], arguments: list[str], shared_store: bool) -> list[Machine]:
    made = []
    for number, host in enumerate(both):
        command = agent_command(arguments, number, machines=2, host=both[0].address, address=host.address)
        marker, out = uuid.uuid4().hex, Path(tempfile.mkstemp(dir=directory)[1])
        environment = {
            **os.environ,
            "PYTHONPATH": str(REPOSITORY),
            "OMP_NUM_THREADS": "1",
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": str(int(not shared_store)),
            "DISTTRAIN_TEST_MARKER": marker,
        }
        with out.open("wb") as said:
            made.append(Machine(host, host.start(command, environment, directory, said, said), marker, out))
    return made


def wait(condition: Callable[[], object], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.2)


def end(machines: list[Machine], since: float) -> list[Side]:
    """Wait for all of it to be gone by itself."""

    def all_gone() -> bool:
        for machine in machines:
            machine.look()
        return all(machine.gone for machine in machines)

    wait(all_gone, MOST_SECONDS)
    left = [process for machine in machines for process in machine.left]
    for process in left:
        process.kill()
    said = [machine.out.read_text(errors="replace") for machine in machines]
    assert not left, f"still there after {MOST_SECONDS:g} s: {left}\n{said}"
    return [
        Side(machine.agent.wait(10), text, machine.gone - since) for machine, text in zip(machines, said, strict=True)
    ]


def freeze(machines: list[Machine]) -> None:
    for process in marked(machines[0].marker):
        process.send_signal(signal.SIGSTOP)


def thaw(machines: list[Machine]) -> None:
    """Once the other host has noticed, and ended."""

    def other_gone() -> bool:
        machines[1].look()
        return bool(machines[1].gone)

    wait(other_gone, MOST_SECONDS)
    for process in marked(machines[0].marker):
        process.send_signal(signal.SIGCONT)


class Cut(NamedTuple):
    """What is done to the job, afterwards, and to mend it."""

    cause: Callable[[list[Machine]], None]
    afterwards: Callable[[list[Machine]], None]
    mend: Callable[[list[Host]], None]
    shared_store: bool
    """Whether torchrun shares its store with the ranks, as it does unless it is told not to."""


CUTS: dict[str, Cut] = {
    "the-network-of-a-machine-goes-down": Cut(
        lambda machines: machines[1].host.link("down"),
        lambda machines: None,
        lambda both: both[1].link("up"),
        shared_store=True,
    ),
    "the-network-of-the-machine-with-the-store-swallows-everything": Cut(
        lambda machines: machines[0].host.unplug(),
        lambda machines: None,
        lambda both: both[0].plug(),
        shared_store=False,
    ),
    "the-machine-with-the-store-freezes": Cut(freeze, thaw, lambda both: None, shared_store=True),
}


class Outcome(NamedTuple):
    directory: Path
    lost: list[Side]
    newest: str
    """Checkpoint that the fault left."""
    again: list[Side]


def lose(name: str, number: int, directory: Path) -> Outcome:
    cut = CUTS[name]
    lay_out(directory)
    arguments = Fault(kind="be slow", rank=0).arguments()
    with hosts(2, f"10.78.{number}") as both:
        began = time.time()
        machines = begin(directory, both, arguments, cut.shared_store)
        wait((directory / "fault").exists, MOST_SECONDS)
        cut.cause(machines)
        since = time.time()
        cut.afterwards(machines)
        lost = end(machines, since)
        assert (directory / "fault").exists(), f"nothing was caused in {since - began:.0f} s: {lost}"
        newest = CheckpointDirectory(directory / "runs" / "tiny" / "checkpoints").names()[0]
        nothing_torn(directory)
        cut.mend(both)
        return Outcome(directory, lost, newest, end(begin(directory, both, arguments, cut.shared_store), time.time()))


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Outcome]]]:
    """All at once: most of their time is waiting."""
    with ThreadPoolExecutor() as pool:
        yield {
            name: pool.submit(lose, name, number, tmp_path_factory.mktemp(f"lost-{number}"))
            for number, name in enumerate(CUTS, start=1)
        }


@pytest.mark.parametrize("name", CUTS)
def test_fault(name: str, outcomes: dict[str, Future[Outcome]]) -> None:
    outcome = outcomes[name].result()
    first, second = outcome.lost
    print(f"{name}: gone after {first.seconds:.0f} s and {second.seconds:.0f} s")
    assert first.code != 0 and second.code != 0, outcome.lost
    for side, pattern in zip((first, second), NETWORK[name], strict=True):
        assert re.search(pattern, side.said), f"expected to read {pattern!r} in\n{side.said}"
    assert second.seconds < max(TIMEOUT, AGENT_SECONDS) + MARGIN, outcome.lost
    assert CUTS[name].cause is freeze or first.seconds < max(TIMEOUT, AGENT_SECONDS) + MARGIN, outcome.lost

    assert [side.code for side in outcome.again] == [0, 0], outcome.again
    run = outcome.directory / "runs" / "tiny"
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    resumed = [event["step"] for event in events if event["event"] == "resume"]
    assert resumed == [int(outcome.newest.removeprefix("step-"))]
    assert (run / "DONE").exists()
    nothing_torn(outcome.directory)
