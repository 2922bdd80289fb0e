"""Memory by the system's own accounts: what two processes map is there once in PSS, and twice in RSS."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from disttrain.report.memory_monitor import Memory
from tests.agents import REPOSITORY

MIB = 1 << 20
WATCHED = """
import json, subprocess, sys, time
import numpy as np
import torch
from disttrain.report.memory_monitor import MemoryMonitor, look, pss_of

mapped = np.memmap(sys.argv[1], np.uint8, mode="r")
assert mapped[::4096].sum(dtype=np.int64) == 64 * 256
monitor = MemoryMonitor(torch.device("cpu"), seconds=0.01)
before = monitor.latest()
command = [sys.executable, "-S", "-c", sys.argv[2], sys.argv[1]]
with monitor, subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
    assert worker.stdout.readline() == b"16384\\n"
    deadline = time.monotonic() + 60
    while monitor.latest().rss < before.rss + (90 << 20) and time.monotonic() < deadline:
        time.sleep(0.01)
    during = monitor.latest()
    worker.stdin.close()
    worker.wait()
monitor.look()
try:
    pss_of(worker.pid)
except OSError as error:
    of_the_dead = str(error)
print(json.dumps([*map(vars, (before, during, monitor.latest())), monitor.peak_pss, look(worker.pid), of_the_dead]))
"""
"""In a process of its own: what is left of other tests, such as processes that were forked, would be in its figures."""
WORKER = """
import mmap, sys
with open(sys.argv[1], "r+b") as file:
    mapped = mmap.mmap(file.fileno(), 0)
    own = bytearray(b"x" * (32 << 20))
    print(sum(mapped[::4096]), flush=True)
    sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="PSS is Linux's")
def test_worker_processes_count_and_what_is_shared_counts_once(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"\1" * (64 * MIB))
    command = [sys.executable, "-c", WATCHED, str(tmp_path / "data"), WORKER]
    before, during, after, peak, dead, error = json.loads(subprocess.check_output(command, cwd=REPOSITORY))
    assert before["pss"] <= before["rss"]
    assert during["rss"] - before["rss"] > 90 * MIB, "64 that are mapped, and 32 of its own"
    assert 30 * MIB < during["pss"] - before["pss"] < 60 * MIB, "what is mapped was there before"
    assert peak >= during["pss"] > after["pss"] + 30 * MIB
    assert dead in ([0, 0], [0, None]), "it is gone"
    assert any(map(str.isdigit, error)), "which process"


def test_a_few_words() -> None:
    gib = 2.0**30
    assert Memory(3 * gib, 1.25 * gib, 0).shown() == "PSS 1.2, RSS 3.0 GiB"
    assert Memory(3 * gib, None, 2 * gib).shown() == "RSS 3.0, GPU 2.0 GiB"
    assert Memory(3.0, None, 0).figures() == {"rss": 3}
    assert Memory(3.0, 2.0, 1.0).figures() == {"rss": 3, "pss": 2, "gpu": 1}
