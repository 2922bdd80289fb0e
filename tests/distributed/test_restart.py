"""A rank that is killed in mid-epoch: torchrun restarts all ranks, and the run ends as if nothing had happened."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from disttrain.train.checkpoint import CheckpointDirectory

from ..agents import run_machines
from .test_launch import EXPERIMENT, losses

MODEL = """\
import os, signal
from pathlib import Path
import torch.distributed as dist
from disttrain.config import HeteroConvModel
from disttrain.models import build_model


class Killer:
    calls = 0

    def __init__(self, victim):
        self.victim = victim

    def __call__(self, module, args):
        self.calls += module.training
        if self.calls == 5 and dist.get_rank() == self.victim and not Path("killed").exists():
            Path("killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)


def model(schema, target, out_channels, victim):
    made = build_model(
        HeteroConvModel(kind="hetero_conv", hidden=8, dropout=0.3), schema, target, out_channels, lambda *_: None
    )
    made.register_forward_pre_hook(Killer(victim))
    return made
"""


def train(directory: Path, victim: int, disturbed: bool) -> dict[str, torch.Tensor]:
    """Two machines, three steps an epoch; the last checkpoint's tensors. One is killed in its fifth step."""
    directory.mkdir()
    (directory / "tiny.yaml").write_text(EXPERIMENT)
    (directory / "killer.py").write_text(MODEL)
    if not disturbed:
        (directory / "killed").touch()
    program = [
        *("tiny.yaml", "sampling.batch_size=24", "sampling.fanout=[3,2]", "train.checkpoint.every_steps=1"),
        f"model={{kind: custom, module: 'killer:model', args: {{victim: {victim}}}}}",
    ]
    for ended in run_machines(program, directory, machines=2, max_restarts=1):
        assert ended.code == 0, ended.err
    checkpoints = CheckpointDirectory(directory / "runs" / "tiny" / "checkpoints")
    assert checkpoints.names()[0] == "step-0000000006"
    return checkpoints.read_tensors(checkpoints.names()[0])


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_changes_nothing(tmp_path: Path, victim: int) -> None:
    straight = train(tmp_path / "straight", victim, disturbed=False)
    disturbed = train(tmp_path / "disturbed", victim, disturbed=True)
    events = (tmp_path / "disturbed" / "runs" / "tiny" / "metrics.jsonl").read_text().splitlines()
    assert "resume" in [json.loads(line)["event"] for line in events]
    assert disturbed.keys() == straight.keys()
    assert all(torch.equal(disturbed[name], straight[name]) for name in straight)
    assert losses(tmp_path / "disturbed", "tiny") == losses(tmp_path / "straight", "tiny")
