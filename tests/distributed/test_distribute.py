"""Machines without a shared disk: each is sent its share of the partitions, and nothing else changes."""

from __future__ import annotations

import json
import os
import resource
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import HeteroData

from disttrain.config import Experiment, ExperimentError
from disttrain.config.data import GeneratedData
from disttrain.data.generated import generate
from disttrain.graph.graph import Graph
from disttrain.graph.holds import HOLDS, Holds
from disttrain.graph.verify import verify
from disttrain.train.job import prepare_graph, run
from disttrain.world import World
from tests.ranks import exit_codes, run_ranks

PARTS = Path("data/partitions/graph")


def _save_graph(path: Path) -> None:
    """12 MB, most of it features."""
    graph = generate(
        GeneratedData.model_validate(
            {
                "source": "generated",
                "nodes": {"paper": {"num_nodes": 30_000, "features": 64}, "author": {"num_nodes": 9_000}},
                "edges": {"author,writes,paper": {"num_edges": 90_000}},
                "num_classes": 3,
                "target": "paper",
            }
        )
    )
    path.parent.mkdir(parents=True)
    torch.save(HeteroData.from_dict(graph.to_dict()), path)


def experiment(distribute: str = "auto", **partition: Any) -> Experiment:
    return Experiment.model_validate(
        {
            "name": "sent",
            "data": {
                "source": "file", "path": "data/graph.pt",
                "split": {"by": "ratio", "train": 0.02, "val": 0.01, "test": 0.01},
            },
            "partition": {"parts": 3, "dir": str(PARTS), "distribute": distribute, **partition},
            "task": {"kind": "node_classification", "metrics": ["accuracy"]},
            "model": {"kind": "hetero_conv", "hidden": 8},
            "sampling": {"fanout": [3, 3], "batch_size": 100},
            "train": {"epochs": 1, "device": "cpu"},
        }
    )  # fmt: skip


def taken(directory: Path) -> int:
    """Bytes on the disk."""
    return sum(path.stat().st_blocks * 512 for path in directory.rglob("*") if path.is_file())


def metrics(directory: str) -> list[Any]:
    lines = [json.loads(line) for line in Path(directory, "runs/sent/metrics.jsonl").read_text().splitlines()]
    return [line.get("loss", line.get("metrics")) for line in lines]


def train_everywhere(world: World, base: str) -> dict[str, Any]:
    """Trains on a shared disk, then on disks of their own, of which only the first machine's has data."""
    os.chdir(f"{base}/shared")
    run(experiment("shared"), world)
    os.chdir(f"{base}/{world.machine}")
    run(experiment(), world)
    found: dict[str, Any] = {"taken": taken(PARTS), "problems": verify(PARTS)}
    before = (PARTS / HOLDS).read_bytes() if world.machine else b""
    prepare_graph(experiment("shared"), world)  # each has what it needs
    found["untouched"] = not world.machine or (PARTS / HOLDS).read_bytes() == before
    return found


def topology(world: World, base: str) -> int:
    """Now each machine needs all edges."""
    os.chdir(f"{base}/{world.machine}")
    graph = prepare_graph(experiment("send", topology="replicated"), world)
    own = [graph.csc(edge_type).row.sum() + graph.csc(edge_type).edge_id.sum() for edge_type in graph.schema.edges]
    return int(sum(own))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("distribute")
    for name in ("shared", "0"):
        _save_graph(base / name / "data" / "graph.pt")
    for machine in ("1", "2", "x"):
        (base / machine).mkdir()
    return base


@pytest.fixture(scope="module")
def three(base: Path) -> list[dict[str, Any]]:
    return run_ranks(train_everywhere, 3, str(base), timeout=120.0)


def test_training_is_that_on_a_shared_disk_bit_for_bit(base: Path, three: list[dict[str, Any]]):
    assert metrics(str(base / "0")) == metrics(str(base / "shared"))
    assert not (base / "1" / "data" / "graph.pt").exists()


def test_a_machine_takes_room_for_its_share_only(base: Path, three: list[dict[str, Any]]):
    whole, *others = (there["taken"] for there in three)
    for room in others:
        assert 0.2 * whole < room < 0.45 * whole
    sizes = {p.relative_to(base / "0"): p.stat().st_size for p in (base / "0" / PARTS).rglob("*.npy")}
    assert sizes == {p.relative_to(base / "1"): p.stat().st_size for p in (base / "1" / PARTS).rglob("*.npy")}


def test_what_is_there_is_verified_and_not_sent_again(three: list[dict[str, Any]]):
    assert all(there["problems"] == [] and there["untouched"] for there in three)


def test_other_machines_and_another_topology_are_sent_what_is_missing(base: Path, three: list[dict[str, Any]]):
    """Two machines instead of three, which see all edges; the last one is the first now, and has no data."""
    order = {"0": "1", "1": "0"}
    for new, old in order.items():
        (base / "x" / new).symlink_to(base / old, target_is_directory=True)
    sums = run_ranks(topology, 2, str(base / "x"), timeout=120.0)
    assert sums[0] == sums[1] > 0
    assert verify(base / "1" / PARTS) == []
    assert taken(base / "1" / PARTS) < 0.8 * taken(base / "0" / PARTS)


def test_a_part_is_not_taken_for_the_whole(base: Path, three: list[dict[str, Any]]):
    with pytest.raises(ExperimentError, match="holds only what this machine was sent"):
        Graph.open(base / "2" / PARTS)
    holds = Holds.read(base / "2" / PARTS)
    assert holds is not None
    start, stop, _ = max(holds.pieces["nodes/0/x.npy"], key=lambda piece: piece.stop)
    with (base / "2" / PARTS / "nodes/0/x.npy").open("r+b") as file:
        file.seek((start + stop) // 2)
        file.write(b"\xff\xff\xff\xff")
    (problem,) = verify(base / "2" / PARTS)
    assert problem == f"nodes/0/x.npy: bytes {start} to {stop - 1} are not those that were received"


def refused(world: World, base: str, distribute: str, limit: int | None) -> str:
    """What all ranks say; machine 1 may write no file larger than `limit`."""
    os.chdir(f"{base}/{world.machine}")
    if limit is not None and world.machine == 1:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    with pytest.raises(ExperimentError) as raised:
        prepare_graph(experiment(distribute), world)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return str(raised.value)


def killed(world: World, base: str) -> bool:
    """Machine 1 dies in the middle of the second of two files."""
    from disttrain.graph import sending

    os.chdir(f"{base}/{world.machine}")
    if world.machine == 1:
        take = sending._Taker.take

        def mortal(taker: Any, name: str, block: Any, data: bytes) -> None:
            if name == "nodes/0/x.npy":
                os.kill(os.getpid(), signal.SIGKILL)
            take(taker, name, block, data)

        sending._Taker.take = mortal  # type: ignore[method-assign]
    try:
        prepare_graph(experiment("send"), world)
    except Exception as error:
        Path("said").write_text(f"{type(error).__name__} {error}")
        os._exit(0)
    return True


@pytest.fixture
def two(base: Path, tmp_path: Path, three: list[dict[str, Any]]) -> Path:
    """Machine 0 has data and partitions, machine 1 nothing."""
    (tmp_path / "0").symlink_to(base / "0", target_is_directory=True)
    (tmp_path / "1").mkdir()
    return tmp_path


def test_a_machine_that_does_not_see_a_shared_disk_is_named(two: Path):
    texts = run_ranks(refused, 2, str(two), "shared", None)
    assert texts[0] == texts[1]
    assert "machine 1 of 2 (from 0) does not see all of data/partitions/graph" in texts[0]
    assert not (two / "1" / "data").exists()


def test_a_full_disk_is_said_on_all_ranks_and_the_next_run_goes_on(two: Path):
    texts = run_ranks(refused, 2, str(two), "send", 100_000)
    assert texts[0] == texts[1]
    assert "Make room, or name a directory elsewhere (partition.dir)" in texts[0]
    assert not (two / "1" / PARTS / "manifest.json").exists()
    run_ranks(topology, 2, str(two))
    assert verify(two / "1" / PARTS) == []


def test_other_partitions_are_refused(two: Path):
    (two / "1" / PARTS).mkdir(parents=True)
    (two / "1" / PARTS / "manifest.json").write_text("{}")
    texts = run_ranks(refused, 2, str(two), "send", None)
    assert "rank 1 on" in texts[0]
    assert "holds other partitions here" in texts[0]


def test_a_receiver_that_is_killed_ends_the_sender_and_the_next_run_sends_the_rest(two: Path):
    assert exit_codes(killed, 2, str(two)) == [0, -signal.SIGKILL]
    said = (two / "0" / "said").read_text()
    (two / "0" / "said").unlink()
    assert said.startswith("PeerError")
    assert "rank 1" in said
    before = Holds.read(two / "1" / PARTS)
    assert before is not None
    assert not (two / "1" / PARTS / "manifest.json").exists()
    assert before.pieces["nodes/0/original_id.npy"] and not before.pieces["nodes/0/x.npy"]
    (two / "1" / PARTS / "edges/0/row.npy").unlink()  # what is lost is sent again, not made up of zeros
    run_ranks(topology, 2, str(two))
    after = Holds.read(two / "1" / PARTS)
    assert after is not None
    assert after.pieces["nodes/0/original_id.npy"][0] == before.pieces["nodes/0/original_id.npy"][0]
    assert verify(two / "1" / PARTS) == []
    x = [np.load(two / machine / PARTS / "nodes/0/x.npy", mmap_mode="r") for machine in ("0", "1")]
    assert np.array_equal(x[0][-1000:], x[1][-1000:])
