"""Ranks, agents and machines that die, stop or hang: the others end soon and say why, and the run can go on."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from ..agents import REPOSITORY
from ..fault_table import PROCESSES
from ..faults import Job, ended_cleanly, goes_on, lay_out, run_job
from ..preloaded import Preloaded


@pytest.mark.parametrize("name", PROCESSES)
def test_fault(name: str, server: Preloaded, tmp_path: Path) -> None:
    fault = PROCESSES[name]
    lay_out(tmp_path)
    job = run_job(server, tmp_path, fault.arguments(), fault.machines, fault.procs)
    ended_cleanly(fault, job, tmp_path)
    goes_on(server, fault, tmp_path)
    if name == "a-rank-hangs":
        the_page_shows_what_is_said(job)


def the_page_shows_what_is_said(job: Job) -> None:
    section = (REPOSITORY / "docs" / "clusters.md").read_text().partition("## When it hangs: the watchdog")[2]
    shown, said = section.partition("```text\n")[2].partition("```")[0].splitlines(), _alike(job.said)
    assert len(shown) == 6
    for line in shown:
        assert _alike(line).removesuffix("...") in said, f"expected to read {_alike(line)!r} in\n{said}"


def _alike(text: str) -> str:
    """Without what differs from machine to machine."""
    text = re.sub(r"\((?:[^()\s]*/)?([\w.<>-]+):\d+\)", r"(\1)", text)
    text = re.sub(r"all stacks: \S*/runs/", "all stacks: runs/", text)
    return re.sub(r"host-\d\b", "host", text.replace(socket.gethostname(), "host"))
