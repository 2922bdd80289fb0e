"""Real torchrun agents: a fresh start that is restarted, and an agent that is told to stop."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from disttrain.train.checkpoint import CheckpointDirectory

from ..agents import agent_command, run_all, run_machines
from ..ports import free_port
from ..preloaded import Preloaded
from .test_launch import EXPERIMENT

MODEL = """\
import os, signal, time
from pathlib import Path
from disttrain.config import HeteroConvModel
from disttrain.models import build_model
from disttrain.stop import StopRequest


def model(schema, target, out_channels, whom):
    made = build_model(HeteroConvModel(kind="hetero_conv", hidden=8), schema, target, out_channels, lambda *_: None)
    calls = 0

    def hook(module, _):
        nonlocal calls
        calls += module.training
        if calls == 5 and not Path("done").exists():
            Path("done").touch()
            if whom == "self":
                os.kill(os.getpid(), signal.SIGKILL)
            os.kill(os.getppid(), signal.SIGTERM)
            while not StopRequest.asked():  # or training would be over before anybody notices
                time.sleep(0.1)

    made.register_forward_pre_hook(hook)
    return made
"""


def program(directory: Path, whom: str, *more: str) -> list[str]:
    (directory / "tiny.yaml").write_text(EXPERIMENT)
    (directory / "hooked.py").write_text(MODEL)
    model = f"model={{kind: custom, module: 'hooked:model', args: {{whom: {whom}}}}}"
    return ["tiny.yaml", "sampling.batch_size=12", "sampling.fanout=[3,2]", "train.log_every=1", model, *more]


def events(directory: Path) -> list[tuple[str, int]]:
    lines = (directory / "runs" / "tiny" / "metrics.jsonl").read_text().splitlines()
    return [(line["event"], line["step"]) for line in map(json.loads, lines)]


@pytest.mark.parametrize("by", ["torchrun", "a script"])
def test_a_fresh_start_is_not_fresh_again_when_it_is_restarted(tmp_path: Path, by: str) -> None:
    """Under torchrun itself: a restart is known by what started the ranks, or the script that starts them."""
    run = tmp_path / "runs" / "tiny"
    run.mkdir(parents=True)
    (run / "DONE").touch()
    (run / ".lock").touch()  # as each run leaves one
    (run / "metrics.jsonl").write_text('{"event": "old", "step": 1}\n')
    arguments = program(tmp_path, "self", "train.checkpoint.every_steps=1", "--fresh")
    command = agent_command([], 0, 1, procs=2, port=free_port(), max_restarts=1)
    if by == "a script":
        (tmp_path / "start").write_text('#!/bin/sh\n"$PYTHON" -m disttrain "$@"\nexit $?\n')
        (tmp_path / "start").chmod(0o755)
        command[-2:] = ["--no-python", "env", f"PYTHON={sys.executable}", "./start"]
    (ended,) = run_all([[*command, *arguments]], [tmp_path])
    assert ended.code == 0, ended.err
    found = events(tmp_path)
    assert found[0] == ("start", 0)
    assert ("resume", 4) in found
    assert "old" not in dict(found)


def test_an_agent_that_is_told_to_stop_leaves_a_checkpoint(server: Preloaded, tmp_path: Path) -> None:
    arguments = program(tmp_path, "agent")
    (ended,) = run_machines(arguments, tmp_path, procs=2, server=server)
    assert ended.code != 0
    assert "stopped by SIGTERM after step " in ended.out
    assert "Traceback" not in ended.out
    name = CheckpointDirectory(tmp_path / "runs" / "tiny" / "checkpoints").names()[0]
    step = int(name.removeprefix("step-"))
    assert step >= 5
    (ended,) = run_machines(arguments, tmp_path, procs=2, server=server)
    assert ended.code == 0, ended.err
    assert ("resume", step) in events(tmp_path)
