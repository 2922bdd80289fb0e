"""The user's own code and data that fail, and splits and shapes at their edges."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..fault_table import ALONE, HEADED, PROGRAMS
from ..faults import Fault, ended_cleanly, goes_on, lay_out, nothing_torn, run_job
from ..preloaded import Preloaded


@pytest.mark.parametrize("name", PROGRAMS)
def test_fault(name: str, server: Preloaded, tmp_path: Path) -> None:
    fault = PROGRAMS[name]
    lay_out(tmp_path)
    ended_cleanly(fault, run_job(server, tmp_path, fault.arguments(), fault.machines, fault.procs), tmp_path)
    goes_on(server, fault, tmp_path)


def test_a_data_function_raises_on_another_machine(server: Preloaded, tmp_path: Path) -> None:
    """The only one that has the data: the machines share no disk."""
    machines = [tmp_path / "first", tmp_path / "second"]
    for machine in machines:
        machine.mkdir()
        lay_out(machine)
    (machines[0] / "saboteur.py").unlink()
    says = (HEADED % 1, ALONE["a-data-function-raises-on-another-machine"])
    fault = Fault(where="data", says=says, never=())
    ended_cleanly(fault, run_job(server, tmp_path, fault.arguments(), directories=machines), machines[1])
    (machines[1] / "mended").touch()
    job = run_job(server, tmp_path, fault.arguments(), directories=machines)
    assert [agent.code for agent in job.ended] == [0, 0], job.said
    assert (machines[0] / "runs" / "tiny" / "DONE").exists()
    for machine in machines:
        nothing_torn(machine)
        assert list(machine.glob("**/*.partial-*")) == []
