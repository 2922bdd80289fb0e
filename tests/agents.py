"""Real torchrun agents, one per machine, and proof that nothing of them is left."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, NamedTuple

import psutil

from .ports import free_port
from .preloaded import Forked, Preloaded

REPOSITORY = Path(__file__).resolve().parent.parent

Start = Callable[[list[str], dict[str, str], Path, IO[bytes], IO[bytes]], "subprocess.Popen[bytes] | Forked"]
"""(command, environment, working directory, stdout, stderr) -> the process."""


class Ended(NamedTuple):
    """How one agent ended."""

    code: int
    out: str
    err: str


def start_here(
    command: list[str], environment: dict[str, str], directory: Path, out: IO[bytes], err: IO[bytes]
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, env=environment, cwd=directory, stdout=out, stderr=err, start_new_session=True)


def agent_command(
    program: Sequence[str],
    machine: int,
    machines: int,
    procs: int = 1,
    host: str = "localhost",
    address: str = "localhost",
    port: int = 29400,
    max_restarts: int = 0,
) -> list[str]:
    """torchrun on one machine; `host` is that of machine 0, `address` this machine's own."""
    return [
        *(sys.executable, "-m", "torch.distributed.run"),
        f"--nnodes={machines}",
        f"--nproc-per-node={procs}",
        f"--max-restarts={max_restarts}",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={host}:{port}",
        f"--rdzv-conf=is_host={int(machine == 0)}",
        f"--local-addr={address}",
        *("-m", "disttrain", *program),
    ]


def run_all(
    commands: Sequence[list[str]],
    directories: Sequence[Path],
    timeout: float = 150.0,
    start: Sequence[Start] | None = None,
    server: Preloaded | None = None,
) -> list[Ended]:
    """Run commands side by side to their end.

    Args:
        start: how each is started; as new processes here unless said otherwise.
        server: starts all of them instead, which saves the seconds in which each interpreter imports torch.

    Raises:
        AssertionError: they did not end within `timeout` seconds (they are killed), or left a process behind.
    """
    marker = uuid.uuid4().hex
    environment = {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY),
        "OMP_NUM_THREADS": "1",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "DISTTRAIN_TEST_MARKER": marker,
    }
    starters = start or [server.start if server else start_here] * len(commands)

    def alive() -> list[psutil.Process]:
        return server.descendants() if server else marked(marker)

    with contextlib.ExitStack() as stack:
        files = [[stack.enter_context(tempfile.TemporaryFile()) for _ in range(2)] for _ in commands]
        processes = [
            begin(command, environment, directory, out, err)
            for begin, command, directory, (out, err) in zip(starters, commands, directories, files)
        ]
        try:
            deadline = time.monotonic() + timeout
            for process in processes:
                process.wait(max(0.1, deadline - time.monotonic()))
            psutil.wait_procs(alive(), timeout=10)
            left = [process.pid for process in alive()]
        except subprocess.TimeoutExpired:
            left = None
        finally:
            for process in alive():
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            for process in processes:
                process.wait(10)
        texts = []
        for pair in files:
            for file in pair:
                file.seek(0)
            texts.append([file.read().decode(errors="replace") for file in pair])
    ended = [Ended(process.wait(10), out, err) for process, (out, err) in zip(processes, texts)]
    assert left is not None, f"still running after {timeout:g} s:\n{ended}"
    assert left == [], f"left behind: {left}\n{ended}"
    return ended


def marked(marker: str) -> list[psutil.Process]:
    """All processes that were started with this marker in their environment, and live."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("DISTTRAIN_TEST_MARKER") == marker and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def run_machines(
    program: Sequence[str] | Sequence[Sequence[str]],
    directory: Path | Sequence[Path],
    machines: int = 1,
    procs: int = 1,
    max_restarts: int = 0,
    timeout: float = 150.0,
    server: Preloaded | None = None,
) -> list[Ended]:
    """`-m disttrain <program>` under one torchrun agent per machine, all on this one.

    Args:
        program: arguments, the same for all agents or a list for each.
        directory: working directory, likewise.
    """
    programs = [program] * machines if isinstance(program[0], str) else program
    directories = [directory] * machines if isinstance(directory, Path) else directory
    port = free_port()
    commands = [
        agent_command(list(map(str, programs[machine])), machine, machines, procs, port=port, max_restarts=max_restarts)
        for machine in range(machines)
    ]
    return run_all(commands, directories, timeout, server=server)
