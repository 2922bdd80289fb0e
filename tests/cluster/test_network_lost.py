"""A host whose network is taken away in mid-training: both sides end in time, and say whom they missed."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from ..agents import agent_command, run_all
from ..fault_table import NETWORK
from ..faults import MARGIN, TIMEOUT, Fault, lay_out, nothing_torn
from .hosts import hosts

pytestmark = pytest.mark.cluster

TORCHRUN_SECONDS = 60.0
"""An agent that has lost the rendezvous waits so long for it before it ends; its ranks are gone by then."""


def test_the_network_is_taken_away(tmp_path: Path) -> None:
    lay_out(tmp_path)
    with hosts(2) as both:
        commands = [
            agent_command(
                Fault(kind="take the network away").arguments(),
                machine,
                machines=2,
                host=both[0].address,
                address=host.address,
            )
            for machine, host in enumerate(both)
        ]
        first, second = run_all(commands, [tmp_path] * 2, timeout=400.0, start=[host.start for host in both])
    seconds = time.time() - float((tmp_path / "fault").read_text())
    assert first.code != 0 and second.code != 0
    assert re.search(NETWORK[0], first.err), first.err
    assert re.search(NETWORK[1], second.err), second.err
    assert seconds < TIMEOUT + TORCHRUN_SECONDS + MARGIN
    nothing_torn(tmp_path)
