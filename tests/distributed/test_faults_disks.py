"""Disks that are full, forbidden or damaged, and run directories that are in use."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..fault_table import DISKS
from ..faults import ended_cleanly, goes_on, lay_out, run_job
from ..preloaded import Preloaded


@pytest.mark.parametrize("name", DISKS)
def test_fault(name: str, server: Preloaded, tmp_path: Path) -> None:
    fault = DISKS[name]
    lay_out(tmp_path)
    ended_cleanly(fault, run_job(server, tmp_path, fault.arguments(), fault.machines, fault.procs), tmp_path)
    goes_on(server, fault, tmp_path)
