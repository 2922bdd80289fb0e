"""Whole jobs about collections, under torchrun: shards, balanced batches and worker processes together, a worker that
is killed, files that are cut short, and additions from several ranks and starts at once."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

from tests.agents import agent_command
from tests.faults import Job, run_commands, run_job
from tests.ports import free_port
from tests.preloaded import Preloaded
from tests.training import events

EXPERIMENT = """\
name: job
data:
  source: python
  function: made_up:all_of_them
  reads: []
  store: store
  transforms: [made_up:met]
  split: {by: ratio, train: 0.6, val: 0.2, test: 0.2}
task: {kind: graph_classification}
model: {kind: gin, hidden: 4, layers: 1, norm: batch, dropout: 0}
sampling: {batch_size: 5}
train: {epochs: 3, threads: 1, device: cpu, timeout: 30, log_every: 1, checkpoint: {every_steps: 1}}
"""

MODULE = """\
import multiprocessing, os, signal
from pathlib import Path
import torch
from disttrain import guard
from tests.collections_of_graphs import rings

def all_of_them():
    return rings(61)

def new():
    return rings(17)

def newer():
    return rings(7)

def met(graph):
    '''Draws; and does what the folder says when it meets graph 18 in a later epoch.'''
    graph.x = graph.x + torch.rand(1)
    if 18 <= float(graph.x[0, 1]) < 19:
        if Path("kills").exists() and multiprocessing.current_process().name.startswith("loader worker"):
            with open("seen", "a") as file:  # the first batch may go through twice, until it is known that this draws
                file.write(".")
            if len(Path("seen").read_text()) > 2:
                Path("kills").unlink()
                os.kill(os.getpid(), signal.SIGKILL)
        if Path("cuts").exists() and guard.place().startswith(("training (epoch 2", "training (epoch 3")):
            Path("cuts").unlink()
            for file in Path("store").glob("*/*.npy"):
                os.truncate(file, 0)
    return graph
"""

TOGETHER = (
    "data.shard=true", "sampling.balance=size", "sampling.workers=1", "sampling.worker_kind=processes",
    "sampling.start_method=fork",
)  # fmt: skip


def laid_out(directory: Path, *files: str) -> Path:
    directory.mkdir(parents=True)
    (directory / "job.yaml").write_text(EXPERIMENT)
    (directory / "made_up.py").write_text(MODULE)
    for file in files:
        (directory / file).touch()
    return directory


def losses(directory: Path) -> list[float]:
    return [event["loss"] for event in events(directory / "runs" / "job") if event["event"] == "train"]


def sharded(server: Preloaded, *directories: Path) -> Job:
    return run_job(server, directories[0], ["job.yaml", *TOGETHER], machines=2, directories=list(directories))


def test_shards_balance_and_workers_together_and_a_worker_is_killed(server: Preloaded, tmp_path: Path) -> None:
    """On two machines without a shared disk. What goes on from a checkpoint is, to the bit, what is not interrupted."""
    straight = [laid_out(tmp_path / f"straight-{machine}") for machine in range(2)]
    job = sharded(server, *straight)
    assert [agent.code for agent in job.ended] == [0, 0], job.said
    summary = json.loads((straight[0] / "runs" / "job" / "summary.json").read_text())
    assert summary["num_evaluated"] == {"val": 11, "test": 10} and summary["nodes"] == 2
    assert len(losses(straight[0])) == summary["steps"] == 3 * -(-31 // 10), "each of 31 graphs once an epoch"
    assert len(list((straight[1] / "store").glob("[!.]*-*"))) == 1, "each machine has made it"

    killed = [laid_out(tmp_path / f"killed-{machine}", "kills") for machine in range(2)]
    job = sharded(server, *killed)
    assert all(agent.code == 1 for agent in job.ended), job.said
    said = (
        r"loader worker 0 \(process \d+\) of rank \d on \S+ was killed by SIGKILL at graph 18 \(epoch [23], step \d\)"
    )
    assert re.search(said, job.said), job.said
    assert re.search(r"rank \d on \S+ failed in \w+ \(epoch [23], step \d of it\)", job.said), job.said
    before = losses(killed[0])
    assert len(before) < len(losses(straight[0]))
    job = sharded(server, *killed)
    assert [agent.code for agent in job.ended] == [0, 0] and "resuming after step" in job.said, job.said
    assert losses(killed[0]) == losses(straight[0])
    again = json.loads((killed[0] / "runs" / "job" / "summary.json").read_text())
    assert (again["val"], again["test"]) == (summary["val"], summary["test"])


def test_files_that_are_cut_short_while_a_run_has_them_mapped(server: Preloaded, tmp_path: Path) -> None:
    directory = laid_out(tmp_path / "job", "cuts")
    command = ["job.yaml", "data.storage=mmap", "sampling.workers=0"]
    job = run_job(server, directory, command, machines=1, procs=2)
    assert job.ended[0].code == 1
    said = r"rank \d on \S+ crashed in training \(epoch [23].*: SIGBUS; a file that is mapped into memory was cut short"
    assert re.search(said, job.said), job.said
    (stored,) = (directory / "store").glob("[!.]*-*")
    job = run_job(server, directory, command, machines=1, procs=2)
    assert job.ended[0].code != 0 and "Traceback" not in job.said, job.said
    assert re.search(
        r"\d{4}.npy has 0 bytes, expected \d+; .*remove the directory, and the next run makes it", job.said
    )
    assert job.said.count("is damaged") == 1, "once for all ranks"
    shutil.rmtree(stored)
    job = run_job(server, directory, command, machines=1, procs=2)
    assert job.ended[0].code == 0 and "resuming after step" in job.said, job.said


def test_additions_from_two_starts_of_two_ranks_at_once(server: Preloaded, tmp_path: Path) -> None:
    directory = laid_out(tmp_path / "job")
    commands = [
        agent_command(["extend", "job.yaml", "--function", f"made_up:{name}"], 0, 1, 2, port=free_port())
        for name in ("new", "newer", "new")
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    job = run_commands(server, [server.start] * 2, commands[:2], [directory] * 2, environment)
    assert [agent.code for agent in job.ended] == [0, 0], job.said
    (stored,) = (directory / "store").glob("[!.]*-*")
    manifest = json.loads((stored / "manifest.json").read_text())
    sizes = [state["num_graphs"] for state in manifest["history"]]
    assert sizes in ([61, 78, 85], [61, 68, 85]), "both, one after the other"
    assert "17 graphs more in" in job.said and "7 graphs more in" in job.said and "85 by now" in job.said
    job = run_commands(server, [server.start], commands[2:], [directory], environment)
    last = manifest["history"][-1]["source"]
    assert ("nothing is added" in job.said) == last.endswith(":new"), job.said
    verify = [*commands[0][:2], "disttrain", "verify", str(stored)]
    job = run_commands(server, [server.start], [verify], [directory], environment)
    assert job.ended[0].code == 0 and "every file is as the manifest says" in job.said, job.said
