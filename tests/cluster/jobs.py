"""Jobs over hosts that are looked at, disturbed and helped while they go on."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..agents import REPOSITORY, agent_command
from ..preloaded import Forked, Preloaded
from .hosts import Host

TIMEOUT = 12.0
"""`train.timeout` of these jobs."""
MOST_SECONDS = 280.0

EXPERIMENT = f"""\
name: tiny
data:
  source: generated
  nodes: {{paper: {{num_nodes: 200, features: 6}}, author: {{num_nodes: 90}}, field: {{num_nodes: 12, features: 3}}}}
  edges: {{"author,writes,paper": {{num_edges: 400}}, "paper,has,field": {{num_edges: 250}}}}
  num_classes: 3
partition: {{parts: 3, dir: parts}}
task: {{kind: node_classification}}
model: {{kind: custom, module: 'paced:model'}}
sampling: {{fanout: [3, 2], batch_size: 8}}
train:
  {{epochs: 4, lr: 1e-2, timeout: {TIMEOUT:g}, threads: 1, log_every: 1, device: cpu, checkpoint: {{every_steps: 1}}}}
"""

MODEL = """\
import time
from pathlib import Path

from disttrain.config import HeteroConvModel
from disttrain.models import build_model


def model(schema, target, out_channels):
    settings = HeteroConvModel(kind="hetero_conv", hidden=8, dropout=0.3)
    made = build_model(settings, schema, target, out_channels, lambda *_: None)

    def wait(module, _):
        if module.training:
            try:
                time.sleep(float(Path("pace").read_text()))
            except (OSError, ValueError):
                pass

    made.register_forward_pre_hook(wait)
    return made
"""


def lay_out(directory: Path, pace: float = 0.0) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "tiny.yaml").write_text(EXPERIMENT)
    (directory / "paced.py").write_text(MODEL)
    set_pace(directory, pace)
    return directory


def set_pace(directory: Path, seconds: float) -> None:
    """How long each batch takes from now on."""
    (directory / "pace.part").write_text(str(seconds))
    os.replace(directory / "pace.part", directory / "pace")


def wait(condition: Callable[[], object], what: str, seconds: float = MOST_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {what}"
        time.sleep(0.1)


def events(directory: Path) -> list[dict[str, Any]]:
    try:
        lines = (directory / "runs" / "tiny" / "metrics.jsonl").read_text().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def steps(directory: Path) -> int:
    """Steps that are written down."""
    return max((event["step"] for event in events(directory) if event["event"] == "train"), default=0)


def losses(directory: Path) -> dict[tuple[str, int], float]:
    return {
        (e["event"], e["step"]): e["metrics"]["loss"] if e["event"] == "evaluation" else e["loss"]
        for e in events(directory)
        if e["event"] in ("train", "epoch", "evaluation")
    }


@dataclass
class Agent:
    host: Host
    process: subprocess.Popen[bytes] | Forked
    out: Path

    def said(self) -> str:
        return self.out.read_text(errors="replace")


@dataclass
class Job:
    """A job of one torchrun agent a host.

    Args:
        nodes: as torchrun takes it: "2", or "1:2".
        store: the address that the agents' store is at, and the host that holds it, if that is one of theirs.
    """

    server: Preloaded
    nodes: str
    store: tuple[str, Host | None]
    arguments: list[str] = field(default_factory=list)
    procs: int = 1
    restarts: int = 4
    agents: list[Agent] = field(default_factory=list)

    def join(self, host: Host, directory: Path, forked: bool = True) -> Agent:
        """Start an agent on a host.

        Args:
            forked: without importing torch again.
        """
        address, holder = self.store
        command = agent_command(["tiny.yaml", *self.arguments], 0, 1, self.procs, address, host.address)
        changed = {
            "--nnodes": self.nodes,
            "--max-restarts": str(self.restarts),
            # What it takes until a machine that is gone is done without, which is half a minute by itself.
            "--rdzv-conf": f"is_host={int(host is holder)},join_timeout=120,last_call_timeout=20",
        }
        command = [f"{word.partition('=')[0]}={changed.get(word.partition('=')[0], '')}"
                   if word.partition("=")[0] in changed else word for word in command]  # fmt: skip
        command.insert(3, "--rdzv-id=tiny-job")
        environment = {
            **os.environ,
            "PYTHONPATH": str(REPOSITORY),
            "OMP_NUM_THREADS": "1",
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        }
        out = Path(tempfile.mkstemp(dir=directory, prefix=f"{host.name}-", suffix=".out")[1])
        with out.open("wb") as said:
            start = host.forked(self.server) if forked else host.start
            agent = Agent(host, start(command, environment, directory, said, said), out)
        self.agents.append(agent)
        return agent

    def said(self) -> str:
        return "\n".join(f"--- {agent.host.name}\n{agent.said()}" for agent in self.agents)

    def wait(self, condition: Callable[[], object], what: str) -> None:
        try:
            wait(condition, what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.said()}") from None

    def end(self, agents: list[Agent]) -> list[int]:
        """Wait until nothing is left of these agents on their hosts; their exit codes."""

        def over() -> bool:
            # An agent that was only just started is not on its host yet: that it has ended is asked first.
            return all(agent.process.poll() is not None for agent in agents) and not any(
                agent.host.processes() for agent in agents
            )

        self.wait(over, "processes to be gone")
        return [agent.process.wait(10) for agent in agents]
