"""Memory by the system's own accounts: what two processes map is there once in PSS, and twice in RSS."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from disttrain.report.memory_monitor import Memory, MemoryMonitor, look, pss_of

MIB = 1 << 20
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
    mapped = np.memmap(tmp_path / "data", np.uint8, mode="r")
    assert mapped[::4096].sum(dtype=np.int64) == 64 * 256
    monitor = MemoryMonitor(torch.device("cpu"), seconds=0.01)
    before = monitor.latest()
    assert before.pss is not None and before.pss <= before.rss
    command = [sys.executable, "-S", "-c", WORKER, str(tmp_path / "data")]
    with monitor, subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None and worker.stdin is not None
        assert worker.stdout.readline() == b"16384\n"
        deadline = time.monotonic() + 60
        while monitor.latest().rss < before.rss + 90 * MIB and time.monotonic() < deadline:
            time.sleep(0.01)
        during = monitor.latest()
        worker.stdin.close()
        worker.wait()
    monitor.look()
    after = monitor.latest()
    assert during.pss is not None and after.pss is not None and monitor.peak_pss is not None
    assert during.rss - before.rss > 90 * MIB, "64 that are mapped, and 32 of its own"
    assert 30 * MIB < during.pss - before.pss < 60 * MIB, "what is mapped was there before"
    assert monitor.peak_pss >= during.pss > after.pss + 30 * MIB
    with pytest.raises(OSError, match=r"\d"):
        pss_of(worker.pid)
    rss, pss = look(worker.pid)
    assert (rss, pss) in ((0, 0), (0, None)), "it is gone"
    assert os.getpid() != worker.pid


def test_a_few_words() -> None:
    gib = 2.0**30
    assert Memory(3 * gib, 1.25 * gib, 0).shown() == "PSS 1.2, RSS 3.0 GiB"
    assert Memory(3 * gib, None, 2 * gib).shown() == "RSS 3.0, GPU 2.0 GiB"
    assert Memory(3.0, None, 0).figures() == {"rss": 3}
    assert Memory(3.0, 2.0, 1.0).figures() == {"rss": 3, "pss": 2, "gpu": 1}
