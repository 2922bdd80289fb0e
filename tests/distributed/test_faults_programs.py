"""The user's own code and data that fail, and splits and shapes at their edges."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ..fault_table import PROGRAMS
from ..faults import ended_cleanly, goes_on, lay_out, run_job
from ..preloaded import Preloaded


@pytest.fixture(scope="module")
def server() -> Iterator[Preloaded]:
    with Preloaded() as server:
        yield server


@pytest.mark.parametrize("name", PROGRAMS)
def test_fault(name: str, server: Preloaded, tmp_path: Path) -> None:
    fault = PROGRAMS[name]
    lay_out(tmp_path)
    ended_cleanly(fault, run_job(server, tmp_path, fault.arguments(), fault.machines, fault.procs), tmp_path)
    goes_on(server, fault, tmp_path)
