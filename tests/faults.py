"""Faults caused on purpose: what each is, and the proof that a job which meets it ends cleanly."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from disttrain.graph.files import MANIFEST
from disttrain.graph.verify import verify
from disttrain.train.checkpoint import CheckpointDirectory

from .agents import Ended, agent_command
from .ports import free_port
from .preloaded import Preloaded

TIMEOUT = 15.0
"""`train.timeout` of these jobs."""
MARGIN = 60.0
"""Seconds beyond `train.timeout` that a job may take to be gone: its own bound is about 10, the rest is for machines
that are busy with other things."""
MOST_SECONDS = 200.0

EXPERIMENT = f"""\
name: tiny
data: {{source: python, function: 'saboteur:graph', split: {{by: ratio, train: 0.6, val: 0.2, test: 0.2}}}}
partition: {{dir: parts}}
task: {{kind: node_classification, node_type: paper}}
model: {{kind: hetero_conv, hidden: 8}}
sampling: {{fanout: [3, 2], batch_size: 8}}
train:
  {{epochs: 2, lr: 1e-2, timeout: {TIMEOUT:g}, threads: 1, log_every: 1, device: cpu, checkpoint: {{every_steps: 1}}}}
"""


_TORCHRUN = re.compile(
    r"(?:\n?The above exception was the direct cause of the following exception:\n\n)?"
    r"Traceback \(most recent call last\):\n(?: .*\n)+torch\.distributed\.\S+: .*\n"
    r"(?:={20,}\n(?:.*\n)*?={20,}\n)?"
    r"|^\[?[WE]\d{4} \d\d:\d\d:\d\d.*\n",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Fault:
    """A job of `machines` x `procs` ranks in which something goes wrong."""

    where: str = "training"
    """"data", "building", "training", "evaluation", or a function of the product: see `tests/saboteur.py`."""
    kind: str = "raise"
    """What happens there; "": the fault lies in the arguments."""
    rank: int = 1
    call: int = 3
    """Which call of what is at `where`."""
    says: tuple[str, ...] = ()
    """Patterns, each of which is found in what the job says."""
    never: tuple[str, ...] = ("Traceback",)
    """Patterns that are not."""
    machines: int = 2
    procs: int = 1
    more: tuple[str, ...] = ()
    """Further arguments."""
    mended: tuple[str, ...] = ()
    """Arguments that mend it, where it lies in the arguments."""
    code: int = 1
    """Of every agent that is not killed; 0: the job goes on to its end."""
    killed_agents: tuple[int, ...] = ()
    stacks: tuple[int, ...] = ()
    """Ranks whose stacks are written down, and no others'."""
    in_stacks: str = ""
    """A pattern that is found in those of `rank`."""
    leaves_what: str = ""
    """The row that leaves the same behind, and shows that a run goes on from there; this one does not show it again."""

    def arguments(self) -> list[str]:
        if not self.kind:
            return ["tiny.yaml", *self.more]
        args = f"{{where: '{self.where}', kind: {self.kind}, rank: {self.rank}, call: {self.call}}}"
        if self.where == "data" or self.where.startswith(("disttrain.graph", "disttrain.data")):
            planted = f"data.args={args}"
        else:
            planted = f"model={{kind: custom, module: 'saboteur:model', args: {args}}}"
        return ["tiny.yaml", planted, *self.more]


@dataclass
class Job:
    """How a job ended."""

    ended: list[Ended]
    seconds: float
    """From the fault, or where there was none from the start, until every process was gone."""
    said: str = field(init=False)
    """What the ranks and their guards said; without what torchrun adds."""

    def __post_init__(self) -> None:
        self.said = _TORCHRUN.sub("", "\n".join(text for one in self.ended for text in (one.err, one.out)))


def lay_out(directory: Path) -> None:
    (directory / "tiny.yaml").write_text(EXPERIMENT)
    shutil.copy(Path(__file__).with_name("saboteur.py"), directory)


def run_job(
    server: Preloaded,
    directory: Path,
    arguments: list[str],
    machines: int = 2,
    procs: int = 1,
    directories: list[Path] | None = None,
) -> Job:
    """Run a job to its end, under one torchrun agent per machine.

    Args:
        directories: of each machine, where they share none.

    Raises:
        AssertionError: it did not end, or left processes behind, or something in /dev/shm.
    """
    port = free_port()
    commands = [agent_command(arguments, machine, machines, procs, port=port) for machine in range(machines)]
    temporary = directory / "tmp"
    temporary.mkdir(exist_ok=True)
    own = {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "TMPDIR": str(temporary)}
    environment = {**os.environ, **own}
    return run_commands(server, [server.start] * machines, commands, directories or [directory] * machines, environment)


def run_commands(
    server: Preloaded,
    starters: Sequence[Callable[..., Any]],
    commands: list[list[str]],
    directories: list[Path],
    environment: dict[str, str],
) -> Job:
    shared_memory = server.shared_memory()
    began = time.time()
    pipes = [_Pipe() for _ in range(2 * len(commands))]
    agents = []
    for number, (start, command, directory) in enumerate(zip(starters, commands, directories)):
        out, err = pipes[2 * number : 2 * number + 2]
        with os.fdopen(out.writing, "wb") as stdout, os.fdopen(err.writing, "wb") as stderr:
            agents.append(start(command, environment, directory, stdout, stderr))
    deadline = time.monotonic() + MOST_SECONDS
    while (left := server.descendants()) and time.monotonic() < deadline:
        time.sleep(0.1)
    ended_at = time.time()
    for process in left:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            pass
    codes = [agent.wait(20.0) for agent in agents]
    texts = [pipe.text() for pipe in pipes]
    ended = [Ended(code, texts[2 * n], texts[2 * n + 1]) for n, code in enumerate(codes)]
    fault = directories[0] / "fault"
    fresh = fault.exists() and float(fault.read_text()) > began
    job = Job(ended, ended_at - (float(fault.read_text()) if fresh else began))
    assert not left, f"still there after {MOST_SECONDS:g} s: {left}\n{job.said}"
    assert server.shared_memory() <= shared_memory, "something was left in /dev/shm"
    return job


def ended_cleanly(fault: Fault, job: Job, directory: Path) -> None:
    """The job said what it should and nothing that it should not, failed, in time, and tore nothing."""
    assert not fault.kind or (directory / "fault").exists(), f"the fault was not caused\n{job.said}"
    for machine, agent in enumerate(job.ended):
        expected = -9 if machine in fault.killed_agents else fault.code
        assert agent.code == expected, f"agent {machine} ended with {agent.code}, not {expected}\n{job.said}"
    for pattern in fault.says:
        assert re.search(pattern, job.said), f"expected to read {pattern!r} in\n{job.said}"
    for pattern in fault.never:
        assert not re.search(pattern, job.said), f"expected not to read {pattern!r} in\n{job.said}"
    assert fault.code == 0 or job.seconds < TIMEOUT + MARGIN, f"took {job.seconds:.0f} s\n{job.said}"
    stacks = {int(path.name.split("-")[1]): path for path in (directory / "runs" / "tiny" / "watchdog").glob("*.txt")}
    assert set(stacks) == set(fault.stacks), f"stacks of {set(stacks)}, not {fault.stacks}\n{job.said}"
    for path in stacks.values():
        assert f"all stacks: {path}" in job.said, job.said
    if fault.in_stacks:
        assert re.search(fault.in_stacks, stacks[fault.rank].read_text()), stacks[fault.rank].read_text()
    nothing_torn(directory)
    temporary = directory / "tmp"  # of the first machine, where they share no disk
    assert not temporary.exists() or left_in(temporary) == []


def left_in(temporary: Path) -> list[str]:
    """What a job has left among temporary files, but for torch's logs and cache."""
    return [path.name for path in temporary.iterdir() if not path.name.startswith(("torchelastic", "torchinductor"))]


def nothing_torn(directory: Path, run: str = "tiny") -> None:
    """What is there is whole: partitions, checkpoints, lines of figures, settings."""
    if (directory / "parts" / MANIFEST).exists():
        assert verify(directory / "parts") == []
    checkpoints = CheckpointDirectory(directory / "runs" / run / "checkpoints")
    for name in checkpoints.names():
        checkpoints.read_state(name)
        checkpoints.read_tensors(name)
    metrics = directory / "runs" / run / "metrics.jsonl"
    if metrics.exists():
        for line in metrics.read_text().splitlines(keepends=True):
            assert not line.endswith("\n") or json.loads(line)


def goes_on(server: Preloaded, fault: Fault, directory: Path) -> None:
    """Once mended, the same command goes on from the newest checkpoint to the end, and leaves nothing lying about.

    Where the job went to its end in spite of the fault, the same command finds nothing to do.
    """
    checkpoints = CheckpointDirectory(directory / "runs" / "tiny" / "checkpoints")
    newest, run = checkpoints.names()[:1], directory / "runs" / "tiny"
    if fault.leaves_what:
        assert newest, "no checkpoint was left"
        assert fault.leaves_what != "a-rank-is-killed" or newest == ["step-0000000002"]
        assert (run / "DONE").exists() == (fault.code == 0)
        with (run / ".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    finished = (run / "metrics.jsonl").read_text() if (run / "DONE").exists() else None
    (directory / "mended").touch()
    job = run_job(server, directory, [*fault.arguments(), *fault.mended], fault.machines, fault.procs)
    assert [agent.code for agent in job.ended] == [0] * fault.machines, job.said
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert (run / "DONE").exists()
    if finished is not None:
        assert (run / "metrics.jsonl").read_text() == finished, "a finished run was gone on with"
    elif newest:
        resumed = [event for event in events if event["event"] == "resume"]
        assert resumed[-1]["step"] == int(newest[0].removeprefix("step-")), job.said
    steps = [event["step"] for event in events if event["event"] == "train"]
    assert steps == sorted(set(steps)), "a step was written down twice"
    nothing_torn(directory)
    left = [*directory.glob("*.partial-*"), *run.glob("**/.*.tmp"), *checkpoints.directory.glob(".*")]
    assert left == []


class _Pipe:
    """What a process says, gathered while it runs."""

    def __init__(self) -> None:
        self._reading, self.writing = os.pipe()
        self._said: list[bytes] = []
        self._thread = threading.Thread(target=self._gather, daemon=True)
        self._thread.start()

    def _gather(self) -> None:
        while said := os.read(self._reading, 1 << 16):
            self._said.append(said)
        os.close(self._reading)

    def text(self) -> str:
        self._thread.join(10)
        return b"".join(self._said).decode(errors="replace")
