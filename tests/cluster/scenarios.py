"""What is done to machines while they train: slow cables, a machine that is lost, comes back, or is told to stop."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from ..agents import REPOSITORY
from ..faults import nothing_torn
from ..preloaded import Preloaded
from .hosts import Host, hosts
from .jobs import EXPERIMENT, Agent, Job, events, lay_out, set_pace, steps, wait

PACE = 1.0
"""Seconds that a batch takes while something is done to the machines."""
PACE_BEFORE = 6.0
"""And until all of them take part: some may be slow to start, and the run is not to be over before."""


def finished(job: Job, agents: list[Agent], *directories: Path) -> None:
    assert job.end(agents) == [0] * len(agents), job.said()
    for directory in directories:
        assert (directory / "runs" / "tiny" / "DONE").exists(), job.said()
        nothing_torn(directory)


def worlds(directory: Path) -> list[tuple[str, int]]:
    return [(e["event"], e["nodes"]) for e in events(directory) if e["event"] in ("start", "resume")]


def present(directory: Path) -> int:
    """Machines that take part; a job may begin with fewer, when some are slow to start."""
    return worlds(directory)[-1][1] if events(directory) else 0


def all_at_work(job: Job, count: int, *directories: Path) -> None:
    """Wait until so many machines take part, and three steps are done."""
    job.wait(lambda: all(present(directory) == count for directory in directories), f"{count} machines")
    for directory in directories:
        set_pace(directory, PACE)
    job.wait(lambda: all(steps(directory) >= 3 for directory in directories), f"three steps of {count} machines")
    assert all(present(directory) == count for directory in directories), job.said()


def train(
    server: Preloaded, directory: Path, number: int, count: int, change: Callable[..., Any] | None = None
) -> None:
    """On so many hosts, undisturbed but for what `change` does to their cables."""
    lay_out(directory)
    with hosts(count, f"10.79.{number}") as made, ExitStack() as undo:
        if change is not None:
            for host in made:
                change(host, undo)
        job = Job(server, str(count), (made[0].address, made[0]), [f"launch.nodes={count}"])
        finished(job, [job.join(host, directory) for host in made], directory)


def train_on_one(server: Preloaded, directory: Path, number: int, ranks: int) -> None:
    lay_out(directory)
    with hosts(1, f"10.79.{number}") as (host,):
        job = Job(server, "1", (host.address, host), ["sampling.locality=false"], procs=ranks)
        finished(job, [job.join(host, directory)], directory)


def train_anywhere(server: Preloaded, directory: Path, number: int, count: int) -> None:
    """With seeds that do not depend on the machines."""
    lay_out(directory)
    with hosts(count, f"10.79.{number}") as made:
        job = Job(server, str(count), (made[0].address, made[0]), ["sampling.locality=false"])
        finished(job, [job.join(host, directory) for host in made], directory)


@contextmanager
def elsewhere(host: Host, out: Path) -> Iterator[None]:
    """While the block runs, a host of its own holds the store."""
    command = [sys.executable, str(REPOSITORY / "launch" / "store.py")]
    with out.open("wb") as said:
        store = host.start(command, dict(os.environ), out.parent, said, said)
    try:
        wait(lambda: "--rdzv-endpoint=" in out.read_text(), "the store")
        yield
    finally:
        store.terminate()
        assert store.wait(20) == 0


def lose_the_first_rank(server: Preloaded, directory: Path, number: int) -> tuple[float, list[tuple[str, int]]]:
    """Three machines on a shared disk, the store on a fourth: rank 0's loses power, and comes back."""
    lay_out(directory, PACE_BEFORE)
    arguments = ["launch.nodes=3", "launch.min_nodes=2"]
    with hosts(4, f"10.79.{number}") as (*made, apart), elsewhere(apart, directory / "store.out"):
        job = Job(server, "2:3", (apart.address, None), arguments)
        agents = [job.join(host, directory) for host in made]
        all_at_work(job, 3, directory)
        holder = (directory / "runs" / "tiny" / ".lock").read_text()
        lost = next(host for host in made if host.name in holder)
        lost.lose_power()
        since = time.monotonic()
        job.wait(lambda: worlds(directory)[-1] == ("resume", 2), "two of the machines going on")
        took = time.monotonic() - since
        went_on = steps(directory)
        job.wait(lambda: steps(directory) >= went_on + 2, "two steps of two machines")
        lost.plug()
        agents = [agent for agent in agents if agent.host is not lost] + [job.join(lost, directory)]
        job.wait(lambda: worlds(directory)[-1] == ("resume", 3), "three machines going on")
        set_pace(directory, 0.0)
        finished(job, agents, directory)
    return took, worlds(directory)


def cut_off(server: Preloaded, directory: Path, number: int) -> dict[str, Any]:
    """Two machines, each with a disk of its own: the one that made the partitions is cut off, and comes back."""
    places = [lay_out(directory / f"disk-{k}", PACE_BEFORE) for k in (1, 2)]
    with hosts(3, f"10.79.{number}") as (*made, apart), elsewhere(apart, directory / "store.out"):
        job = Job(server, "1:2", (apart.address, None), ["launch.nodes=2", "launch.min_nodes=1"])
        agents = [job.join(host, place) for host, place in zip(made, places, strict=True)]
        all_at_work(job, 2, *places)
        first = next(k for k in (0, 1) if not (places[k] / "parts" / "holds.json").exists())
        other = 1 - first
        made[first].unplug()
        since = time.monotonic()
        job.wait(lambda: worlds(places[other])[-1] == ("resume", 1), "the other machine going on")
        took = time.monotonic() - since
        went_on = steps(places[other])
        job.wait(lambda: steps(places[other]) >= went_on + 1, "a step of one machine")
        cut = made[first].processes()
        made[first].lose_power()
        agents[first].process.wait(10)
        made[first].plug()
        again = job.join(made[first], places[first])
        job.wait(lambda: worlds(places[other])[-1] == ("resume", 2), "both machines going on")
        for place in places:
            set_pace(place, 0.0)
        finished(job, [agents[other], again], *places)
    return {"seconds": took, "places": places, "other": other, "said": job.said(), "cut": len(cut)}


def lose_the_parts(server: Preloaded, directory: Path, number: int) -> tuple[int, float, str]:
    """Only one machine has the data, and the other was sent its part: that alone cannot go on."""
    places = [lay_out(directory / f"disk-{k}", PACE_BEFORE) for k in (1, 2)]
    code = (
        "import pathlib\nfrom disttrain.config import ExperimentError\nfrom tests.graphs import zoo\n\n\ndef graph():\n"
        "    if not pathlib.Path('data').exists():\n        raise ExperimentError('there are no data here')\n"
        "    return zoo()\n"
    )
    for place in places:
        (place / "mine.py").write_text(code)
        text = re.sub(
            r"data:.*?(?=partition:)", "data: {source: python, function: 'mine:graph'}\n", EXPERIMENT, flags=re.S
        )
        (place / "tiny.yaml").write_text(text)
    (places[0] / "data").touch()
    arguments = ["task.node_type=paper", "launch.nodes=2", "launch.min_nodes=1"]
    with hosts(3, f"10.79.{number}") as (*made, apart), elsewhere(apart, directory / "store.out"):
        job = Job(server, "1:2", (apart.address, None), arguments, restarts=1)
        agents = [job.join(host, place) for host, place in zip(made, places, strict=True)]
        all_at_work(job, 2, *places)
        made[0].lose_power()
        since = time.monotonic()
        (code_of_it,) = job.end([agents[1]])
        return code_of_it, time.monotonic() - since, agents[1].said()


def lose_the_store(server: Preloaded, directory: Path, number: int) -> tuple[int, float, str]:
    """The machine that holds torchrun's store loses power: the job is over, on machines that would go on without."""
    lay_out(directory, PACE_BEFORE)
    arguments = ["launch.nodes=2", "launch.min_nodes=1"]
    with hosts(2, f"10.79.{number}") as made:
        job = Job(server, "1:2", (made[0].address, made[0]), arguments)
        # Not forked: its guard is to know torchrun by its command.
        started = [job.join(host, directory, forked=False) for host in made]
        all_at_work(job, 2, directory)
        made[0].lose_power()
        since = time.monotonic()
        (code,) = job.end([started[1]])
        took = time.monotonic() - since
        started[0].process.wait(10)
        return code, took, started[1].said()


def tell_one_to_stop(server: Preloaded, directory: Path, number: int) -> tuple[list[int], list[tuple[str, int]], str]:
    """One of two machines is wanted elsewhere: its agent gets SIGTERM, and the other goes on."""
    lay_out(directory, PACE_BEFORE)
    with hosts(2, f"10.79.{number}") as made:
        job = Job(server, "1:2", (made[0].address, made[0]), ["launch.nodes=2", "launch.min_nodes=1"])
        agents = [job.join(host, directory) for host in made]
        all_at_work(job, 2, directory)
        agents[1].process.send_signal(15)
        (stopped,) = job.end([agents[1]])
        job.wait(lambda: worlds(directory)[-1] == ("resume", 1), "the other machine going on")
        set_pace(directory, 0.0)
        finished(job, [agents[0]], directory)
        return [stopped], worlds(directory), job.said()


def kill_one(server: Preloaded, directory: Path, number: int) -> tuple[float, list[tuple[str, int]]]:
    """All that one of two machines runs is killed, and nobody starts it again: the other goes on to the end."""
    lay_out(directory, PACE_BEFORE)
    with hosts(2, f"10.79.{number}") as made:
        job = Job(server, "1:2", (made[0].address, made[0]), ["launch.nodes=2", "launch.min_nodes=1"])
        agents = [job.join(host, directory) for host in made]
        all_at_work(job, 2, directory)
        made[1].kill()
        since = time.monotonic()
        job.wait(lambda: worlds(directory)[-1] == ("resume", 1), "the other machine going on")
        took = time.monotonic() - since
        set_pace(directory, 0.0)
        finished(job, [agents[0]], directory)
    return took, worlds(directory)


def kill_one_of_those_needed(server: Preloaded, directory: Path, number: int) -> tuple[int, float, str]:
    """The same where none may be missing: the job is over, and started again goes on."""
    lay_out(directory, PACE_BEFORE)
    with hosts(2, f"10.79.{number}") as made:
        job = Job(server, "2", (made[0].address, made[0]), ["launch.nodes=2"], restarts=0)
        agents = [job.join(host, directory) for host in made]
        all_at_work(job, 2, directory)
        made[1].kill()
        since = time.monotonic()
        (code,) = job.end([agents[0]])
        took, said = time.monotonic() - since, agents[0].said()
        assert not (directory / "runs" / "tiny" / "DONE").exists()
        set_pace(directory, 0.0)
        finished(job, [job.join(host, directory) for host in made], directory)
    return code, took, said


def slow(host: Host, undo: ExitStack) -> None:
    host.limit("100mbit")


def late(host: Host, undo: ExitStack) -> None:
    undo.enter_context(host.late(2.5))


SCENARIOS: dict[str, Callable[..., Any]] = {
    "three lose one": lose_the_first_rank,
    "cut off": cut_off,
    "lost parts": lose_the_parts,
    "lost store": lose_the_store,
    "one stops": tell_one_to_stop,
    "one killed": kill_one,
    "needed one killed": kill_one_of_those_needed,
    "two": lambda server, directory, number: train(server, directory, number, 2),
    "three": lambda server, directory, number: train(server, directory, number, 3),
    "slow": lambda server, directory, number: train(server, directory, number, 2, slow),
    "late": lambda server, directory, number: train(server, directory, number, 2, late),
    "two anywhere": lambda server, directory, number: train_anywhere(server, directory, number, 2),
    "three anywhere": lambda server, directory, number: train_anywhere(server, directory, number, 3),
    "two on one": lambda server, directory, number: train_on_one(server, directory, number, 2),
    "three on one": lambda server, directory, number: train_on_one(server, directory, number, 3),
}
