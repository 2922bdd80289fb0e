"""Training over two hosts that have addresses and names of their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ..agents import agent_command, run_all
from ..distributed.test_launch import EXPERIMENT, losses
from .hosts import hosts

pytestmark = pytest.mark.cluster


def test_two_hosts_train_as_one_process_does(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(EXPERIMENT)
    with hosts(2) as (first, second):
        commands = [
            agent_command(
                ["tiny.yaml", "name=two", "sampling.batch_size=12", "partition.parts=4"],
                machine,
                machines=2,
                procs=2,
                host=first.address,
                address=host.address,
            )
            for machine, host in enumerate((first, second))
        ]
        for ended in run_all(commands, [tmp_path] * 2, start=[first.start, second.start]):
            assert ended.code == 0, ended.err

        refused = run_all(
            [[*command, "train.lr=0.5"] if i else command for i, command in enumerate(commands)],
            [tmp_path] * 2,
            start=[first.start, second.start],
        )
        assert all(ended.code != 0 for ended in refused)
        assert "rank 2 on host-2, rank 3 on host-2 read another experiment than rank 0 on host-1" in refused[0].err

        alone = agent_command(["tiny.yaml", "name=one"], 0, machines=1)
        assert run_all([alone], [tmp_path], start=[first.start])[0].code == 0
    summary = json.loads((tmp_path / "runs" / "two" / "summary.json").read_text())
    assert (summary["world_size"], summary["nodes"]) == (4, 2)
    assert losses(tmp_path, "two") == pytest.approx(losses(tmp_path, "one"), rel=1e-4, abs=1e-5)
