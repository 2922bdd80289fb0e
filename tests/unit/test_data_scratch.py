"""What does not fit into memory goes through the disk: equal, bounded, and nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

from disttrain.config import ExperimentError
from disttrain.data.scratch import Scratch
from disttrain.data.table_database import default_limit

MIB = 1 << 20
NODES, EDGES = 200_000, 4_000_000
READ = """
import json, sys, threading, time
from pathlib import Path
import numpy as np
from disttrain.config import NodeClassification, TablesData
from disttrain.data import load

root, limit = sys.argv[1], int(sys.argv[2])
nodes = {"v": {"file": "v.parquet", "key": "id", "label": "y"}}
edges = {"v,to,v": {"file": "e*.parquet", "src": "a", "dst": "b", "features": {"numeric": "w"}, "time": "t"}}
data = TablesData.model_validate({
    "source": "tables", "root": root, "nodes": nodes, "edges": edges, "dangling": "drop", "memory_bytes": limit,
    "split": {"by": "ratio", "train": 0.5, "val": 0.2, "test": 0.2},
})

def held():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))

def watch():
    while not done.wait(0.002):
        peak[0] = max(peak[0], held())

task = NodeClassification(kind="node_classification")
import torch, torch_geometric.data, duckdb, pyarrow.compute, disttrain.data.tables
before = held()
peak, done = [before], threading.Event()
watcher = threading.Thread(target=watch)
watcher.start()
graph = load(data, task, root).data
done.set()
watcher.join()
size = sum(value.nbytes for store in graph.edge_stores for value in store.values())

edge = np.arange(%(edges)d)
edge = edge[edge %% 1000 != 999]  # the others name nobody
source, destination = edge * 7919 %% %(nodes)d, edge * 31 %% %(nodes)d
store, back = graph["v", "to", "v"], graph["v", "rev_to", "v"]
weight = edge %% 1000 / 8
all_weights = np.arange(%(edges)d) %% 1000 / 8
scaled = ((weight - all_weights.mean()) / all_weights.std()).astype(np.float32)
print(json.dumps({
    "grown": peak[0] - before, "size": size,
    "edges": bool((store.edge_index.numpy() == %(nodes)d - 1 - np.stack([source, destination])).all()),
    "back": bool((back.edge_index.numpy() == store.edge_index.numpy()[::-1]).all()),
    "time": bool((store.time.numpy() == edge * 3).all()),
    "weight": float(np.abs(store.edge_attr[:, 0].numpy() - scaled).max()),
}))
"""


def python(code: str, *arguments: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_tables_larger_than_memory(tmp_path: Path):
    half = EDGES // 2
    for part in range(2):
        duckdb.sql(
            f"COPY (SELECT 'n' || (i * 7919 % {NODES}) AS a, CASE WHEN i % 1000 = 999 THEN 'nobody' ELSE "
            f"'n' || (i * 31 % {NODES}) END AS b, (i % 1000) / 8 AS w, i * 3 AS t "
            f"FROM range({part * half}, {(part + 1) * half}) r(i)) TO '{tmp_path}/e{part}.parquet'"
        )
    # node v is in row NODES - 1 - v
    duckdb.sql(
        f"COPY (SELECT 'n' || ({NODES} - 1 - i) AS id, i % 3 AS y FROM range({NODES}) r(i)) TO '{tmp_path}/v.parquet'"
    )
    ended = python(READ % {"edges": EDGES, "nodes": NODES}, tmp_path, 64 * MIB)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout.splitlines()[-1])
    assert found["edges"] and found["back"] and found["time"] and found["weight"] < 1e-6
    # the edges alone are 160 MB, and as much again while they are joined
    assert found["size"] > 200 * MIB
    assert found["grown"] < 160 * MIB, found["grown"] / MIB
    assert sorted(path.name for path in tmp_path.iterdir()) == ["e0.parquet", "e1.parquet", "v.parquet"]


def test_memory_for_tables_is_a_share_of_what_there_is():
    gib = 1 << 30
    shares = {total: default_limit(total * gib) / gib for total in (1, 2, 6, 16, 32, 256)}
    assert shares == {1: 0.5, 2: 1, 6: 1, 16: 2, 32: 4, 256: 4}


def test_arrays_outlive_their_folder(tmp_path: Path):
    with Scratch(tmp_path) as scratch:
        made = scratch.array((5, 2), np.int32)
        made.write(3, np.array([[6, 7], [8, 9]]))
        made.write(0, np.arange(6).reshape(3, 2))
        array = made.open()
        empty = scratch.filled((0, 3), np.float32, [])
        assert len(list(tmp_path.iterdir())) == 1
    assert list(tmp_path.iterdir()) == []
    assert array.tolist() == np.arange(10).reshape(5, 2).tolist()
    assert empty.shape == (0, 3)


DIE = """
import os, signal, sys
from disttrain.data.scratch import Scratch
from disttrain.data.table_database import default_limit
with Scratch(sys.argv[1]) as scratch:
    scratch.array((1000,), "i8")
    print(scratch.folder, flush=True)
    if sys.argv[2] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.stdin.read()
"""


def test_what_a_killed_reader_left_is_removed_and_what_a_living_one_uses_is_not(tmp_path: Path):
    dead = python(DIE, tmp_path, "die")
    assert dead.returncode == -signal.SIGKILL
    (tmp_path / "disttrain-reading-of-mine").mkdir()
    (left,) = tmp_path.glob("disttrain-reading-*-*-*")
    living = subprocess.Popen(
        [sys.executable, "-c", DIE, str(tmp_path), "live"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert living.stdout is not None and living.stdin is not None
    used = Path(living.stdout.readline().strip())
    assert not left.exists() and used.exists()
    with Scratch(tmp_path):
        assert used.exists()
    living.stdin.close()
    assert living.wait(60) == 0
    living.stdout.close()
    assert not used.exists()


FULL = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
from disttrain.config import ExperimentError, NodeClassification, TablesData
from disttrain.data import load
from disttrain.data.scratch import Scratch
from disttrain.data.table_database import default_limit
try:
    if sys.argv[2] == "array":
        with Scratch(sys.argv[1]) as scratch:
            scratch.array((1 << 20,), "i8")
    else:
        data = TablesData.model_validate({
            "source": "tables", "root": sys.argv[1], "nodes": {"v": {"file": "v.parquet", "key": "id", "label": "y"}},
            "split": {"by": "ratio", "train": 0.5, "val": 0.2, "test": 0.2},
        })
        load(data, NodeClassification(kind="node_classification"), sys.argv[1])
except ExperimentError as error:
    print(error)
"""


@pytest.mark.parametrize("what", ["array", "table"])
def test_a_full_disk(tmp_path: Path, what: str):
    duckdb.sql(f"COPY (SELECT i AS id, i % 3 AS y FROM range(300000) r(i)) TO '{tmp_path}/v.parquet'")
    ended = python(FULL, tmp_path, what)
    assert f"data: the disk of {tmp_path} is full" in ended.stdout, ended.stdout + ended.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["v.parquet"]


def test_a_place_where_nothing_can_be_made(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ExperimentError, match="name a place elsewhere"), Scratch(tmp_path / "file"):
        pass
