"""Stacks of threads and processes, of those that can speak and of those that cannot."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from disttrain import watchdog

REPOSITORY = Path(watchdog.__file__).parent.parent

PROGRAM = """\
import ctypes, sys, threading, time
from disttrain import watchdog

def stuck():
    print("ready", flush=True)
    if sys.argv[1] == "in C":
        ctypes.PyDLL(None).sleep(60)  # without letting go of the interpreter
    elif sys.argv[1] == "in Python":
        while True:
            pass
    elif sys.argv[1] == "crashing":
        ctypes.string_at(0)

def beside():
    time.sleep(60)

if sys.argv[1] != "not listening":
    watchdog.listen()
threading.Thread(target=beside, daemon=True).start()
stuck()
time.sleep(60)
"""


@pytest.mark.parametrize("how", ["in C", "in Python", "not listening"])
def test_another_process_is_asked(how: str) -> None:
    command = [sys.executable, "-c", PROGRAM, how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            time.sleep(0.2)
            text = watchdog.stacks_of(process.pid)
            if how == "not listening":
                assert text == ""
                assert process.poll() is None  # the signal would have ended it
                return
            assert "in stuck" in text and "in beside" in text
            assert "in beside" in watchdog.stacks_of(process.pid), "only once"
            (line,) = watchdog.shown_of(text, "process 1")
            assert line.startswith("process 1: stuck (<string>:")
            assert process.pid in watchdog.descendants(os.getpid())
        finally:
            process.kill()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(watchdog, "_directory", str(tmp_path / "run"))
    monkeypatch.setattr(watchdog, "_place", "rank 3 on host/1")
    monkeypatch.setattr(watchdog, "_dumped", [])
    return tmp_path / "run" / "watchdog" / "rank-3-on-host-1.txt"


def test_a_process_writes_down_its_own_threads_once(place: Path) -> None:
    over = threading.Event()

    def waits_for_what_never_comes() -> None:
        over.wait()

    for name in ("loader worker 77", "notes"):
        threading.Thread(target=waits_for_what_never_comes, name=name, daemon=True).start()
    shown = watchdog.dump("rank 3 waited in vain", "training (step 7)")
    again = watchdog.dump("once more", "training (step 7)")
    over.set()
    assert again == shown
    lines = shown.splitlines()
    assert lines[0] == "" and lines[1].startswith("  MainThread: test_a_process_writes_down_its_own_threads_once (")
    (worker,) = (line for line in lines if "loader worker 77: " in line)
    assert "waits_for_what_never_comes (unit/test_watchdog.py:" in worker
    assert "notes" not in shown  # one of our own, that only watches
    assert lines[-1] == f"  all stacks: {place}"
    text = place.read_text()
    assert "rank 3 on host/1, in training (step 7):\nrank 3 waited in vain\n" in text
    assert "thread notes\n" in text and "over.wait()" in text


def test_what_has_thrown_the_main_thread_out_is_its_stack(place: Path) -> None:
    def hung_here() -> None:
        raise ValueError

    try:
        hung_here()
    except ValueError as error:
        shown = watchdog.dump("told to end", "training", error)
    assert "MainThread: hung_here (" in shown


def test_files_are_bounded_and_those_of_an_earlier_job_are_put_aside(place: Path) -> None:
    directory = str(place.parent.parent)
    for _ in range(4):
        watchdog.write(directory, "rank 3 on host/1", "m", "w", ["x" * (1 << 19)], [])
    assert place.stat().st_size < 2 * watchdog._MOST_BYTES
    watchdog.begin(directory, time.time() - 60)
    assert place.exists()
    watchdog.begin(directory, time.time() + 60)
    assert not place.exists() and (place.parent / "earlier" / place.name).exists()
    place.write_text("another\n")
    watchdog.begin(directory, time.time() + 60)
    assert (place.parent / "earlier" / place.name).read_text() == "another\n"
    watchdog.begin(directory + "/none", time.time())


def test_a_directory_that_cannot_be_written_to_is_said() -> None:
    assert "could not be written to /proc/none/watchdog" in watchdog.write(
        "/proc/none", "rank 0 on h", "m", "w", [], []
    )


@pytest.mark.parametrize(
    "stopped_in",
    [
        "guard._SECONDS_TO_START = 2.0\nguard.start('rank 1 on here', 0, True)\nos.kill(os.getpid(), signal.SIGSTOP)\n",
        "guard.start('rank 1 on here', 0)\nfrom disttrain import world\n"
        "world._find_store = lambda *_: os.kill(os.getpid(), signal.SIGSTOP)\n"
        "with world.World.start('cpu', timeout=2.0):\n    pass\n",
    ],
    ids=["starting", "joining"],
)
def test_a_rank_that_is_stopped_before_it_has_joined_is_ended_too(stopped_in: str) -> None:
    code = f"import os, signal\nfrom disttrain import guard\n{stopped_in}"
    ranks = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "9"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=REPOSITORY, timeout=120,
        env={**os.environ, **ranks},
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL
    assert "rank 1 on here showed no sign of life for 2 s (it was stopped, as by SIGSTOP) in starting" in done.stderr


def test_a_guard_survives_that_its_rank_writes_stacks_down() -> None:
    """It holds the rank's memory, and has no answer."""
    code = (
        "import os, time\nfrom disttrain import guard, watchdog\n"
        "guard.start('rank 0 on here', 0)\n(process,) = watchdog.descendants(os.getpid())\n"
        "watchdog.dump('somebody waits', 'training')\ntime.sleep(0.5)\n"
        "print(watchdog._state(process), flush=True)\nguard.leave(0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=REPOSITORY, timeout=120)
    assert done.stdout.strip() in ("S", "R"), done.stderr
