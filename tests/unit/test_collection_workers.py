"""Batches made by worker processes: the same as ever, without a copy of the data, and no process is left or waited for
in vain, whatever happens."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from disttrain.collection.loader import GraphLoader, worker_processes
from disttrain.collection.parcel import pack, shared
from disttrain.collection.processes import WorkerError
from disttrain.config import ExperimentError, Sampling
from disttrain.graph.schema import GRAPH
from disttrain.world import World
from tests.ranks import run_ranks
from tests.unit.test_collection_loader import WANTS, opened

NOISE: dict[str, Any] = {"transforms": ["tests.collections_of_graphs:noise"]}


def loader(world: World, graphs: Any, split: str = "train_mask", **sampling: Any) -> GraphLoader:
    settings = Sampling(**{"batch_size": 3, "workers": 2, "prefetch": 2, **sampling})
    return GraphLoader(
        world, graphs, split, sampling=settings, run_seed=3, wants=WANTS, training=split == "train_mask"
    )  # fmt: skip


def contents(batches: Any) -> list[list[Any]]:
    return [
        [
            batch.epoch, batch.step, batch.num_global_seeds, batch[GRAPH].input_id.tolist(), batch[GRAPH].n_id.tolist(),
            batch[GRAPH].y.tolist(), batch["node"].x.tolist(), batch["node"].ptr.tolist(),
            batch["node", "edge", "node"].edge_index.tolist(), batch["node", "edge", "node"].edge_attr.shape,
        ]
        for batch in batches
    ]  # fmt: skip


KINDS: dict[str, dict[str, Any]] = {
    "the training thread": {"workers": 0},
    "threads": {"worker_kind": "threads"},
    "a process": {"worker_kind": "processes", "workers": 1, "start_method": "spawn"},
    "processes": {"worker_kind": "processes"},
    "forked": {"worker_kind": "processes", "start_method": "fork"},
}


def made_by_each(world: World, directory: str) -> None:
    for settings in ({}, {"storage": "memory"}, NOISE):
        graphs = opened(directory, world=world, **settings)
        expected = None
        for name, sampling in KINDS.items():
            if (name == "threads" and settings is NOISE) or (name == "a process" and settings is not NOISE):
                continue
            train = loader(world, graphs, **sampling)
            found = [contents(train.batches(epoch, start)) for epoch, start in ((0, 0), (1, 0), (1, 4), (1, 99))]
            found.append(contents(loader(world, graphs, "val_mask", **sampling).batches(0)))
            expected = expected or found
            assert found == expected, name
            assert found[2] == found[1][4:] and not found[3] and len(found[0]) == train.num_steps > 5
            train.close()


def test_batches_are_the_same_whoever_makes_them(tmp_path: Path) -> None:
    run_ranks(made_by_each, 1, str(tmp_path))


def left_early(world: World, directory: str) -> None:
    graphs = opened(directory, world=world)
    sampling = Sampling(batch_size=3, workers=2, prefetch=2, worker_kind="processes")
    processes = worker_processes(world, graphs, sampling)
    train, val = (
        GraphLoader(world, graphs, f"{split}_mask", sampling=sampling, run_seed=3, wants=WANTS,
                    training=split == "train", processes=processes)
        for split in ("train", "val")
    )  # fmt: skip
    straight = contents(train.batches(0))
    assert processes is not None
    first = [worker.process.pid for worker in processes.workers]
    with closing(train.batches(0)) as batches:
        begun = contents([next(batches), next(batches)])
        evaluated = contents(val.batches(0))
        begun += contents([next(batches)])
    assert begun == straight[:3] and evaluated == contents(val.batches(0))
    assert contents(train.batches(0, 3)) == straight[3:]
    assert [worker.process.pid for worker in processes.workers] == first, "they stay"
    kept = next(train.batches(0))
    processes.close()
    assert contents([kept]) == straight[:1], "a batch is there for as long as it is held"
    assert contents(train.batches(0)) == straight, "others start where they are needed again"
    del processes, train, val


def test_an_epoch_may_be_left_early_and_gone_on_with(tmp_path: Path) -> None:
    run_ranks(left_early, 1, str(tmp_path))


def gone(process: int) -> bool:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state in "ZX":
            return True
        time.sleep(0.05)
    return False


def trouble(world: World, directory: str, how: str, at: int, **sampling: Any) -> tuple[str, str]:
    transforms = [{"tests.collections_of_graphs:troubled": {"at": at, "how": how}}]
    train = loader(world, opened(directory, world=world, transforms=transforms), **sampling)
    processes = train._processes
    assert processes is not None
    seen: list[Any] = []
    with pytest.raises((WorkerError, ExperimentError)) as caught:
        for batch in train.batches(0):
            seen.append(batch[GRAPH].n_id.tolist())
            workers = [worker.process.pid for worker in processes.workers]
            pids = [os.getpid(), *workers]
            processes.timeout = 5.0 if how == "stop" else processes.timeout
    assert seen and at not in sum(seen, []) and not processes.workers  # noqa: RUF017
    assert all(gone(process) for process in workers)
    assert not [
        name for name in os.listdir("/dev/shm") if any(f"_{pid}_" in name or f"-{pid}-" in name for pid in pids)
    ]
    return type(caught.value).__name__, str(caught.value)


TROUBLES = {
    "raise": r"loader worker \d \(process \d+\) of rank 0 on \S+ failed at graph AT \(epoch 1, step \d\): .*no way",
    "differ": "graph AT is not like the others",
    "kill": r"loader worker \d \(process \d+\) of rank 0 on \S+ was killed by SIGKILL at graph AT \(epoch 1, step \d\)",
    "stop": r"has shown no sign of life for 5 s \(train.timeout\) at graph AT \(epoch 1, step \d\)"
    r".*\n  process \d+: troubled \(tests/collections_of_graphs\.py:\d+\) < ",
}


def troubles(world: World, directory: str) -> tuple[int, dict[str, tuple[str, str]]]:
    *_, last = loader(world, opened(directory, world=world), workers=0).batches(0)
    at = int(last[GRAPH].n_id[0])
    found = {how: trouble(world, directory, how, at) for how in TROUBLES}
    return at, {**found, "forked": trouble(world, directory, "kill", at, start_method="fork")}


def test_trouble_is_told_with_worker_and_graph_and_nothing_is_left(tmp_path: Path) -> None:
    ((at, found),) = run_ranks(troubles, 1, str(tmp_path))
    for how, message in {**TROUBLES, "forked": TROUBLES["kill"]}.items():
        kind, text = found[how]
        assert re.search(message.replace("AT", str(at)), text, re.DOTALL), text
        assert kind == ("ExperimentError" if how == "differ" else "WorkerError")


def test_workers_end_with_a_rank_that_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys; from tests.unit.test_collection_workers import *\n"
        "with World.start(device='cpu', timeout=30) as world:\n"
        "    graphs = opened(sys.argv[1], transforms=[{'tests.collections_of_graphs:troubled': {'how': 'stop'}}],\n"
        "        world=world)\n"
        "    train = loader(world, graphs, start_method='fork', batch_size=30)\n"
        "    train._processes._start()\n"
        "    print('pids', *(worker.process.pid for worker in train._processes.workers), flush=True)\n"
        "    next(train.batches(0))\n"
    )
    with subprocess.Popen([sys.executable, "-W", "ignore", "-c", code, str(tmp_path)], stdout=subprocess.PIPE) as rank:
        assert rank.stdout is not None
        workers = next(line.split()[1:] for line in rank.stdout if line.startswith(b"pids"))
        rank.send_signal(signal.SIGKILL)
        assert len(workers) == 2 and all(gone(int(worker)) for worker in workers)


def own_bytes(process: int) -> int:
    """That no other process shares, and no file backs."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) << 10


def without_copies(world: World, directory: str) -> None:
    for storage, start_method in (("mmap", "forkserver"), ("memory", "forkserver"), ("memory", "fork")):
        settings = {"batch_size": 1, "workers": 1, "worker_kind": "processes", "start_method": start_method}
        sampling = Sampling.model_validate(settings)
        graphs = opened(directory, "large", world, storage=storage, sampling=sampling)
        train = loader(world, graphs, **sampling.model_dump())
        before = None
        for batch in train.batches(0):
            assert batch["node"].x.shape == (1 << 14, 16)
            assert train._processes is not None
            size = own_bytes(train._processes.workers[0].process.pid)
            before = before or size
            assert size - before < 16 << 20, "of 51 MiB that go through its hands"
        train.close()


def test_no_worker_has_a_copy_of_the_data(tmp_path: Path) -> None:
    run_ranks(without_copies, 1, str(tmp_path))


@pytest.mark.filterwarnings("ignore:Sparse")
def test_parcels_hold_what_was_packed(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(3000.0).reshape(-1, 3))
    mapped = np.asarray(np.load(tmp_path / "x.npy", mmap_mode="r"))
    whole = torch.randn(5, 7)
    things = {
        "sparse": torch.eye(3).to_sparse_coo(), "csr": torch.eye(3).to_sparse_csr(), "bf16": whole.bfloat16(),
        "transposed": whole.T, "none": torch.empty(0, 4), "one": torch.tensor(True), "text": ["a", None, {"b": 2}],
        "small": np.arange(3), "wide": np.arange(600, dtype=np.int32)[::2], "empty": np.empty((0, 2)), "same": whole,
    }  # fmt: skip
    found = pack({**things, "again": things["same"], "file": mapped, "part": mapped[10:20]}).opened()
    for name, value in things.items():
        if isinstance(value, torch.Tensor):
            assert found[name].dtype == value.dtype and torch.equal(found[name].to_dense(), value.to_dense()), name
        elif isinstance(value, np.ndarray):
            assert found[name].dtype == value.dtype and np.array_equal(found[name], value), name
    assert found["again"] is not None and found["text"] == things["text"]
    assert np.array_equal(found["part"], mapped[10:20]) and isinstance(found["file"].base, np.memmap)
    descriptors = len(os.listdir("/proc/self/fd"))
    held = shared({"x": mapped, "y": np.arange(1000)}, files=True)
    parcel = pack(held)
    assert sum(os.fstat(memory).st_size for memory in parcel.memory[:1]) == 0, "nothing is copied again"
    again = parcel.opened()
    del held
    assert np.array_equal(again["x"], mapped) and again["y"].sum() == 499500
    again["y"][:] = 0  # its own memory as well
    del again, parcel
    assert len(os.listdir("/proc/self/fd")) == descriptors
