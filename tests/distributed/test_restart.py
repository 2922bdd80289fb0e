"""A rank that is killed in mid-epoch: torchrun restarts all ranks, and the run ends as if nothing had happened."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from disttrain.train.checkpoint import CheckpointDirectory

from ..agents import run_machines
from ..preloaded import Preloaded
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


def train(server: Preloaded, directory: Path, victim: int) -> tuple[dict[str, torch.Tensor], str]:
    """Two machines, three steps an epoch; the last checkpoint's tensors, and what was said. One is killed in its fifth
    step, unless no rank is the victim."""
    (directory / "tiny.yaml").write_text(EXPERIMENT)
    (directory / "killer.py").write_text(MODEL)
    program = [
        *("tiny.yaml", "sampling.batch_size=24", "sampling.fanout=[3,2]", "train.checkpoint.every_steps=1"),
        f"model={{kind: custom, module: 'killer:model', args: {{victim: {victim}}}}}",
    ]
    agents = run_machines(program, directory, machines=2, max_restarts=1, server=server)
    for ended in agents:
        assert ended.code == 0, ended.err
    checkpoints = CheckpointDirectory(directory / "runs" / "tiny" / "checkpoints")
    assert checkpoints.names()[0] == "step-0000000006"
    return checkpoints.read_tensors(checkpoints.names()[0]), "".join(ended.err for ended in agents)


Outcome = tuple[dict[str, torch.Tensor], list[float]]


@pytest.fixture(scope="module")
def straight(server: Preloaded, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Tensors and losses of a run that nobody disturbs."""
    directory = tmp_path_factory.mktemp("straight")
    return train(server, directory, victim=-1)[0], losses(directory, "tiny")


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_changes_nothing(server: Preloaded, tmp_path: Path, straight: Outcome, victim: int) -> None:
    tensors, figures = straight
    disturbed, said = train(server, tmp_path, victim)
    assert re.search(rf"rank {victim} on \S+ was killed in training \(epoch 2, ", said), said
    events = (tmp_path / "runs" / "tiny" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["event"] for line in events].count("resume") == 1
    assert disturbed.keys() == tensors.keys()
    assert all(torch.equal(disturbed[name], tensors[name]) for name in tensors)
    assert losses(tmp_path, "tiny") == figures
