"""The guard of a rank that has ended, and the agent: torchrun is ended if it hangs, all others are left alone.

Agents here are small programs of that name; `tests/cluster` has the real ones, with networks that go away.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from disttrain import watchman

AGENT = """\
import os, signal, subprocess, sys, time

def python(seconds):
    return subprocess.Popen([sys.executable, "-I", "-S", "-c", f"import time; time.sleep({seconds})"])

how, since = sys.argv[1], time.monotonic()
rank = python(4)
page = os.memfd_create("where")
os.truncate(page, 4096)
reading, writing = os.pipe()
arguments = [str(rank.pid), str(os.getpid()), "0", str(page), str(page), "rank 0 on here"]
guard = subprocess.Popen([sys.executable, "-I", "-S", "guard.py", *arguments], stdin=reading, pass_fds=[page])
os.close(reading)
print(guard.pid, flush=True)
while time.monotonic() - since < 24:
    time.sleep(0.1)  # it looks after its rank
    guard.poll()
    if rank.poll() is not None and how == "starts another":
        rank, how = python(60), "well"
    if "hangs" in how and time.monotonic() - since > 3.5:
        if how == "hangs for good":  # as a call of C++ does that begins again after a signal
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.read(os.pipe()[0], 1)
rank.kill()
rank.wait()
"""
GUARD = f"""\
import sys
sys.path.append({str(Path(watchman.__file__).parent)!r})
import watchman
watchman._AGENT_SECONDS, watchman._AGENT_SECONDS_TO_STOP = 4.0, 2.0
watchman._Guard(*map(int, sys.argv[1:6]), place=sys.argv[6]).watch()
"""
HANGS = r"rank 0 on here has ended, and its torchrun agent \(process \d+\) shows no sign of life for 4 s"
KILLED = r"rank 0 on here has ended, and its torchrun agent \(process \d+\) does not: it is killed"


class Expected(NamedTuple):
    name: str
    how: str
    code: int
    stays: bool
    """Whether the guard lives as long as the agent."""
    says: tuple[str, ...] = ()


CASES = [
    Expected("torchrun", "is well", 0, stays=True),
    Expected("torchrun", "starts another", 0, stays=False),
    Expected("torchrun", "hangs", -15, stays=True, says=(HANGS,)),
    Expected("torchrun", "hangs for good", -9, stays=True, says=(HANGS, KILLED)),
    Expected("mine.py", "is well", 0, stays=False),
]


def run(directory: Path, name: str, how: str) -> tuple[int, bool, list[str]]:
    """The agent's exit code, whether its guard stayed to the end, and what was said."""
    (directory / name).write_text(AGENT)
    (directory / "guard.py").write_text(GUARD)
    command = [sys.executable, "-I", "-S", name, how]
    with subprocess.Popen(command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as agent:
        assert agent.stdout is not None and agent.stderr is not None
        guard = psutil.Process(int(agent.stdout.readline()))
        last = time.monotonic()
        while agent.poll() is None:
            if lives(guard):
                last = time.monotonic()
            time.sleep(0.1)
        stayed = time.monotonic() - last < 2
        said = agent.stderr.read().splitlines()  # until the guard has let go of it too
    guard_ends = time.monotonic() + 10
    while lives(guard):
        assert time.monotonic() < guard_ends, "the guard outlives the agent"
        time.sleep(0.1)
    return agent.returncode, stayed, said


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Expected, Future[tuple[int, bool, list[str]]]]]:
    """All at once: they do nothing but wait."""
    with ThreadPoolExecutor() as pool:
        yield {case: pool.submit(run, tmp_path_factory.mktemp("agent"), case.name, case.how) for case in CASES}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name} {case.how}".replace(" ", "-"))
def test_agent(case: Expected, outcomes: dict[Expected, Future[tuple[int, bool, list[str]]]]) -> None:
    code, stayed, said = outcomes[case].result()
    assert code == case.code, said
    assert stayed == case.stays
    assert len(said) == len(case.says) + 1, said  # that the rank ended without a word
    for line, pattern in zip(said[1:], case.says):
        assert re.search(pattern, line), said


RANK = """\
import sys, threading, time
sys.path.insert(0, sys.argv[1])
from disttrain import guard, watchdog
watchdog.listen()

def never_ends():
    time.sleep(120)

threading.Thread(target=never_ends).start()
print("ready", flush=True)
"""


def test_a_rank_that_does_not_end_is_ended_and_its_temporary_files_go_with_it(tmp_path: Path) -> None:
    """All its work is done, and a thread of the user's own keeps it: it has stopped to beat."""
    guard_code = GUARD.replace("watchman._Guard", "watchman._SECONDS_TO_END = 2.0\nwatchman._Guard")
    folder, file = tmp_path / "pymp-1", tmp_path / "a file.py"
    folder.mkdir()
    file.touch()
    program = [sys.executable, "-c", RANK, str(Path(watchman.__file__).parents[1])]
    page = os.memfd_create("where")
    os.truncate(page, 4096)
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as rank:
        assert rank.stdout is not None and rank.stdout.readline() == "ready\n"
        arguments = [str(rank.pid), "0", "0", str(page), str(page), "rank 0 on here"]
        command = [sys.executable, "-I", "-S", "-c", guard_code, *arguments]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE, "pass_fds": [page]}
        with subprocess.Popen(command, text=True, **pipes) as guard:
            assert guard.stdin is not None and guard.stderr is not None
            guard.stdin.write(f"run {tmp_path}\nown {folder}\nown {file}\nbye done\n")
            guard.stdin.flush()
            said = guard.stderr.read()
        assert "it is killed" in said, said
        assert rank.wait(60) == -9
    os.close(page)
    assert "rank 0 on here showed no sign of life for 2 s in starting: it is killed" in said
    assert re.search(r"\n  process \d+: .*_shutdown \(", said), said
    assert "never_ends" in (tmp_path / "watchdog" / "rank-0-on-here.txt").read_text()
    assert not folder.exists() and not file.exists()


def lives(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
