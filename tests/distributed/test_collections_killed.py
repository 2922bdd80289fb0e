"""Collections that are killed in the making or while they are extended: nothing is lost, and nothing half made is taken
for whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.agents import REPOSITORY

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


@pytest.mark.parametrize(
    ("what", "stride"),
    [
        ("making-graphs", 13),  # by a function that can start at a graph
        ("making-iterator,making-listed", 47),
        ("extending_killed", 11),
        ("disk_full,at_once", 1),
    ],
)
def test_killed_at_many_moments(tmp_path: Path, what: str, stride: int) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "tests.killed_collections", what, str(tmp_path), str(stride)]
    done = subprocess.run(
        command, cwd=REPOSITORY, env=ENVIRONMENT, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


EXPERIMENT = """\
data:
  source: python
  function: slow_graphs:all_of_them
  reads: [slow_graphs.py]
  store: store
  split: {by: ratio, train: 0.5, val: 0.25, test: 0.25}
task: {kind: graph_classification}
model: {kind: gin, hidden: 4, layers: 1}
train: {epochs: 1, threads: 1, device: cpu}
"""

GRAPHS = """\
import time
from tests.collections_of_graphs import rings

def all_of_them(start=0):
    for number, graph in enumerate(rings(6200)[start:], start):
        if number in (4090, 4600) and start == 0:
            time.sleep(1.5 if number == 4090 else 600)  # it is killed in the second
        yield graph

def new():
    return rings(30)
"""


def run(place: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "disttrain", *arguments]
    done = subprocess.run(command, cwd=place, env=ENVIRONMENT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_command_that_is_killed_goes_on_and_others_wait(tmp_path: Path) -> None:
    (tmp_path / "experiment.yaml").write_text(EXPERIMENT)
    (tmp_path / "slow_graphs.py").write_text(GRAPHS)
    store = tmp_path / "store"
    with subprocess.Popen(
        [sys.executable, "-m", "disttrain", "experiment.yaml"], cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.DEVNULL
    ) as first:
        # Two batches are whole.
        while not any('"next": 4096' in path.read_text() for path in store.glob(".making-*/draft/manifest.json")):
            assert first.poll() is None
            time.sleep(0.1)
        first.send_signal(signal.SIGKILL)
    said = run(tmp_path, "extend", "experiment.yaml", "--function", "slow_graphs:new")
    assert "going on at graph 4,096, to which an earlier start came" in said
    assert "30 graphs more in" in said and "6,230 by now" in said
    (directory,) = store.glob("[!.]*")
    assert "every file is as the manifest says" in run(tmp_path, "verify", str(directory))
    content = (directory / "0003.npy").read_bytes()
    (directory / "0003.npy").write_bytes(content[:-3] + b"\xff" + content[-2:])
    command = [sys.executable, "-m", "disttrain", "verify", str(directory)]
    done = subprocess.run(
        command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 2 and "0003.npy: its checksum differs from the manifest's" in done.stderr
