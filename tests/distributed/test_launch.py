"""The whole command under real torchrun agents: every shape trains the same, a refusal is said once and ends all."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from disttrain.graph.files import parse_manifest, write_manifest

from ..agents import REPOSITORY, Ended, run_all, run_machines
from ..preloaded import Preloaded

EXPERIMENT = """\
name: tiny
data:
  source: generated
  nodes:
    paper: {num_nodes: 200, features: 6}
    author: {num_nodes: 90}
    field: {num_nodes: 12, features: 3}
  edges:
    "author,writes,paper": {num_edges: 400}
    "paper,has,field": {num_edges: 250}
  num_classes: 3
  num_communities: 6
task: {kind: node_classification}
model: {kind: hetero_conv, hidden: 8}
sampling: {fanout: [-1, -1], batch_size: 48, locality: false}
train: {epochs: 2, lr: 1e-2, timeout: 60, threads: 1}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("launch")
    (directory / "tiny.yaml").write_text(EXPERIMENT)
    return directory


def summary(directory: Path, name: str) -> dict[str, object]:
    return json.loads((directory / "runs" / name / "summary.json").read_text())


def losses(directory: Path, name: str) -> list[float]:
    """Training and validation losses, in order."""
    lines = [json.loads(line) for line in (directory / "runs" / name / "metrics.jsonl").read_text().splitlines()]
    return [
        line["metrics"]["loss"] if line["event"] == "evaluation" else line["loss"]
        for line in lines
        if line["event"] in ("epoch", "evaluation")
    ]


def alone(server: Preloaded, directory: Path, *arguments: str) -> Ended:
    return run_all([[sys.executable, "-m", "disttrain", *arguments]], [directory], server=server)[0]


@pytest.fixture(scope="module")
def straight(server: Preloaded, place: Path) -> list[float]:
    """The losses of one process without torchrun."""
    ended = alone(server, place, "tiny.yaml", "name=alone")
    assert ended.code == 0, ended.err
    found = summary(place, "alone")
    assert (found["world_size"], found["nodes"]) == (1, 1)
    assert found["num_evaluated"] == {"val": 40, "test": 40}
    return losses(place, "alone")


@pytest.mark.parametrize(
    ("machines", "procs", "parts", "batch_size"), [(1, 2, "auto", 24), (3, 1, 3, 16), (2, 1, 8, 24)]
)
def test_every_shape_trains_the_same(
    server: Preloaded, place: Path, straight: list[float], machines: int, procs: int, parts: int | str, batch_size: int
) -> None:
    name = f"{machines}x{procs}"
    overrides = [f"name={name}", f"partition.parts={parts}", f"sampling.batch_size={batch_size}"]
    overrides += [f"launch.nodes={machines}", f"launch.procs_per_node={procs}"]
    for ended in run_machines(["tiny.yaml", *overrides], place, machines, procs, server=server):
        assert ended.code == 0, ended.err
    found = summary(place, name)
    assert (found["world_size"], found["nodes"]) == (machines * procs, machines)
    assert found["num_evaluated"] == {"val": 40, "test": 40}
    assert losses(place, name) == pytest.approx(straight, rel=1e-4, abs=1e-5)


def test_a_run_goes_on_when_nobody_reads_its_output(place: Path) -> None:
    """As under `| head -1`: also what is left in the pipe's buffer must not end it."""
    command = [sys.executable, "-m", "disttrain", "tiny.yaml", "name=unread", "partition.dir=unread-cut"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, cwd=place, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        assert run.stdout is not None and run.stderr is not None
        assert run.stdout.readline()
        run.stdout.close()
        assert run.stderr.read() == b""
        assert run.wait(150) == 0
    assert (place / "runs" / "unread" / "DONE").exists()


def test_machines_without_a_shared_disk(server: Preloaded, tmp_path: Path, place: Path, straight: list[float]) -> None:
    directories = [tmp_path / "a", tmp_path / "b"]
    for directory in directories:
        directory.mkdir()
        shutil.copy(place / "tiny.yaml", directory)
    for ended in run_machines(["tiny.yaml", "sampling.batch_size=24"], directories, machines=2, server=server):
        assert ended.code == 0, ended.err
    assert losses(tmp_path / "a", "tiny") == pytest.approx(straight, rel=1e-4, abs=1e-5)
    assert not (tmp_path / "b" / "runs").exists()

    # The run is on the first machine, predictions are written where the nodes are.
    for ended in run_machines(["predict", "runs/tiny"], directories, machines=2, server=server):
        assert ended.code == 0, ended.err
    parts = [pq.read_table(file) for file in sorted(tmp_path.glob("*/runs/tiny/predictions/*.parquet"))]
    assert sorted(pa.concat_tables(parts)["id"].to_pylist()) == list(range(200))
    assert len(parts) == 2

    # Now they have different partitions: the checksum of one file stands for another graph.
    (manifest,) = (tmp_path / "b" / "partitions").glob("*/manifest.json")
    content = parse_manifest(manifest.parent)
    content["files"]["nodes/0/x.npy"]["blake2b"] = "0" * 32
    write_manifest(manifest.parent, content)
    text = refusal(
        run_machines(["tiny.yaml", "--fresh", "sampling.batch_size=24"], directories, machines=2, server=server)
    )
    assert "rank 1 on" in text
    assert "holds other partitions here" in text


def refusal(agents: list[Ended]) -> str:
    """What was said, by one rank only; all agents have failed and no rank shows a traceback of its own."""
    said = [line for agent in agents for line in agent.err.splitlines() if line.startswith("disttrain: ")]
    texts = [line for line in said if "rank 0 says why" not in line]
    assert len(texts) == 1, [agent.err for agent in agents]
    assert all(agent.code != 0 for agent in agents)
    err = agents[0].err
    assert "exitcode  : 2" in err
    return err[err.index("disttrain: ") :].split("\nE1")[0]


def test_a_wrong_file_is_refused_once(server: Preloaded, place: Path) -> None:
    text = refusal(run_machines(["tiny.yaml", "train.lr=-1", "sampling.fanot=[1]"], place, machines=2, server=server))
    assert "2 mistakes" in text
    assert "did you mean `fanout`?" in text


def test_a_file_that_is_wrong_on_one_machine_only_names_its_rank(server: Preloaded, place: Path) -> None:
    text = refusal(run_machines([["tiny.yaml"], ["tiny.yaml", "train.lr=-1"]], place, machines=2, server=server))
    assert "rank 1 on" in text
    assert "train.lr (override train.lr=-1): expected a number above 0, got -1" in text


def test_differing_experiments_are_refused_with_both_values(server: Preloaded, place: Path) -> None:
    text = refusal(
        run_machines(
            [["tiny.yaml"], ["tiny.yaml", "train.lr=0.02", "model.hidden=9"]], place, machines=2, server=server
        )
    )
    assert "rank 1 on" in text
    assert "model.hidden: 8 on rank 0, 9 there" in text
    assert "train.lr: 0.01 on rank 0, 0.02 there" in text


def test_missing_data_is_refused_once(server: Preloaded, place: Path) -> None:
    text = refusal(
        run_machines(["tiny.yaml", "data={source: file, path: nowhere/graph.pt}"], place, machines=2, server=server)
    )
    assert "nowhere/graph.pt" in text


def test_all_conflicts_with_the_world_are_said_together(server: Preloaded, place: Path) -> None:
    text = refusal(run_machines(["tiny.yaml", "launch.nodes=3", "partition.parts=1"], place, machines=2, server=server))
    assert "launch.nodes is 3, but 2 machines were started" in text
    assert "partition.parts is 1, fewer than the 2 machines" in text


def test_an_error_shows_its_traceback_headed_by_rank_and_host(server: Preloaded, place: Path) -> None:
    (place / "broken.py").write_text(
        "class Model:\n    def __init__(self, **_):\n        raise RuntimeError('no luck')\n"
    )
    ended = alone(server, place, "tiny.yaml", "model={kind: custom, module: 'broken:Model'}")
    assert ended.code == 1
    assert "disttrain: rank 0 on " in ended.err
    assert "Traceback (most recent call last):" in ended.err
    assert "RuntimeError: no luck" in ended.err
