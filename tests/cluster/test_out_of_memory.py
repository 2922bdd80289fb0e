"""A rank that the kernel kills for its memory: the others end in time, and its guard says what it was."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ..fault_table import ALONE, SUMS
from ..faults import Fault, ended_cleanly, goes_on, lay_out, run_job
from ..preloaded import Preloaded

pytestmark = pytest.mark.cluster

LIMIT = 64 << 20


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group with little memory, of either version."""
    with suppress(OSError):
        Path("/sys/fs/cgroup/cgroup.subtree_control").write_text("+memory")
    for parent, limit in (("/sys/fs/cgroup", "memory.max"), ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")):
        made = Path(parent, f"disttrain-test-{os.getpid()}")
        if not Path(parent, "cgroup.procs").exists():
            continue
        made.mkdir(exist_ok=True)
        try:
            if (made / limit).exists():
                (made / limit).write_text(str(LIMIT))
                yield made
                return
        finally:
            made.rmdir()
    pytest.skip("there are no control groups for memory here")


def test_the_kernel_kills_a_rank_for_its_memory(
    group: Path, server: Preloaded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTTRAIN_TEST_GROUP", str(group))
    fault = Fault(
        kind="eat memory",
        says=(ALONE["the-kernel-kills-a-rank-for-its-memory"], rf"rank 0 on \S+ waited for rank 1 in {SUMS}"),
    )
    lay_out(tmp_path)
    ended_cleanly(fault, run_job(server, tmp_path, fault.arguments()), tmp_path)
    goes_on(server, fault, tmp_path)
