"""`disttrain partition` killed half way, then started twice at once: one goes on with what is there, both end well."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from disttrain.graph.files import read_manifest
from disttrain.graph.verify import verify
from tests.agents import REPOSITORY

EXPERIMENT = """\
name: killed
data:
  source: generated
  nodes: {paper: {num_nodes: 3000, features: 16}, author: {num_nodes: 2000}}
  edges:
    "author,writes,paper": {num_edges: 20_000}
    "paper,cites,paper": {num_edges: 20_000}
partition: {method: ldg, parts: 3, dir: parts}
task: {kind: node_classification}
model: {kind: hetero_conv, hidden: 8}
train: {threads: 1, device: cpu}
"""


def start(place: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "disttrain", "partition", "killed.yaml"],
        cwd=place,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_killed_then_started_twice_at_once(tmp_path: Path) -> None:
    (tmp_path / "killed.yaml").write_text(EXPERIMENT)
    said = []
    with start(tmp_path) as first:
        assert first.stdout is not None
        for line in first.stdout:
            said.append(line)
            if "writing edge type 3 of 4" in line:
                first.kill()
    assert first.returncode == -9, said
    assert not (tmp_path / "parts").exists()
    left = {path.relative_to(tmp_path) for path in tmp_path.glob("*.partial-*/nodes/*/*.npy")}
    assert left

    both = [start(tmp_path), start(tmp_path)]
    texts = [process.communicate(timeout=300)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], texts
    # The other was there too late, or had to begin on its own beside the living one.
    assert sum("going on where an earlier run ended: the cut and" in text for text in texts) == 1, texts
    assert all("training seeds per partition" in text for text in texts)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["killed.yaml", "parts"]
    assert verify(tmp_path / "parts") == []
    assert read_manifest(tmp_path / "parts")["settings"] == {"parts": 3, "method": "ldg", "seed": 0, "passes": 10}
