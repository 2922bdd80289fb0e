"""Graphs on memory-mapped arrays: the same files as from memory, and no memory for edges or attributes."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import HeteroData

from disttrain.config import Partition
from disttrain.graph import partitioner
from disttrain.graph.files import read_manifest
from disttrain.graph.verify import verify
from tests.graphs import zoo
from tests.unit.test_graph_partitioner import nasty

REPOSITORY = Path(__file__).resolve().parents[2]


def mapped(data: HeteroData, folder: Path) -> HeteroData:
    """The same graph, every tensor and array with rows on a file of its own."""
    folder.mkdir()
    number = 0
    for store in data.stores:
        for name, value in dict(store.items()).items():
            array = value.detach().numpy() if isinstance(value, torch.Tensor) else value
            if isinstance(array, np.ndarray) and array.size:
                number += 1
                file = folder / f"{number}.npy"
                np.save(file, array)
                on_disk = np.load(file, mmap_mode="r")
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
                    store[name] = torch.from_numpy(on_disk) if isinstance(value, torch.Tensor) else on_disk
    return data


def write(data: HeteroData, target: Path, parts: int, method: Any = "ldg") -> dict[Path, bytes]:
    settings = Partition(parts=parts, method=method)
    partitioner.partition(data, {}, {}, settings, parts, target, "f", lambda line: None)
    assert verify(target) == []
    return {path.relative_to(target): path.read_bytes() for path in target.rglob("*") if path.is_file()}


@pytest.mark.parametrize("parts", [1, 2, 3, 8])
def test_mapped_and_sorted_in_small_buckets_gives_the_same_files(
    parts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    method = "fennel" if parts == 2 else "ldg"
    data = nasty()
    in_memory = write(data, tmp_path / "memory", parts, method)
    # Blocks of 128 bytes, and buckets of 64 rows: every relation goes through the disk.
    monkeypatch.setattr("disttrain.graph.blocks._BLOCK_BYTES", 1 << 7)
    monkeypatch.setattr("disttrain.graph.writer.ROWS_AT_ONCE", 64)
    monkeypatch.setattr("disttrain.graph.streaming_cut.ROWS_AT_ONCE", 64)
    assert write(mapped(copy.deepcopy(data), tmp_path / "arrays"), tmp_path / "mapped", parts, method) == in_memory


def test_torch_load_with_mmap(tmp_path: Path):
    in_memory = write(zoo(), tmp_path / "memory", 3)
    torch.save(zoo(), tmp_path / "graph.pt")
    loaded = torch.load(tmp_path / "graph.pt", mmap=True, weights_only=False)
    assert write(loaded, tmp_path / "mapped", 3) == in_memory


_BOUNDED = textwrap.dedent(
    """
    import resource, sys, warnings
    from pathlib import Path
    warnings.simplefilter("ignore")
    import numpy as np, torch
    from torch_geometric.data import HeteroData
    from disttrain.config import Partition
    from disttrain.graph.partitioner import partition
    from disttrain.graph.verify import verify
    from tests.graphs import zoo

    folder = Path(sys.argv[1])

    def graph(num_nodes, num_edges):
        rng = np.random.default_rng(0)
        def array(name, shape, dtype, draw):
            file = folder / f"{name}-{num_edges}.npy"
            mapped = np.lib.format.open_memmap(file, "w+", dtype, shape)
            rows = mapped.reshape(-1)
            for start in range(0, rows.size, 1 << 18):
                rows[start : start + (1 << 18)] = draw(min(1 << 18, rows.size - start))
            mapped.flush()
            return torch.from_numpy(np.load(file, mmap_mode="r"))
        data = HeteroData()
        data["a"].x = array("x", (num_nodes, 256), np.float32, rng.random)
        data["a"].train_mask = torch.arange(num_nodes) % 3 == 0
        data["a", "to", "a"].edge_index = array("e", (2, num_edges), np.int64, lambda n: rng.integers(0, num_nodes, n))
        data["a", "to", "a"].edge_attr = array("f", (num_edges, 2), np.float32, rng.random)
        return data

    def cut(data, target):
        partition(data, {}, {}, Partition(parts=2, method="ldg", passes=2), 2, target, "f", lambda line: None)
        assert verify(target) == []

    def data_bytes():
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmData"):
                return int(line.split()[1]) * 1024

    # Compiled, loaded and warm: with buckets on the disk, too.
    import disttrain.graph.external_order, disttrain.graph.streaming_cut as streaming, disttrain.graph.writer as writer
    streaming.ROWS_AT_ONCE = writer.ROWS_AT_ONCE = 1 << 18
    cut(graph(1_000, 600_000), folder / "small")
    nodes, edges = 20_000, 4_000_000
    large = graph(nodes, edges)
    # Edges take 64 MB, edge attributes 32 MB, features 20 MB: none of them fits into what is allowed beside blocks and
    # buckets (38 bytes for each of 2**18 rows, and blocks of 8 MB), which do not grow with the graph.
    room = 40_000_000 + 100 * nodes
    assert room < 16 * edges
    resource.setrlimit(resource.RLIMIT_DATA, (data_bytes() + room, resource.RLIM_INFINITY))
    cut(large, folder / "large")
    try:
        np.ones(2 * edges)
    except MemoryError:
        print("done")
    """
)


def test_memory_is_for_the_nodes_and_not_for_the_edges(tmp_path: Path):
    """With a limit on anonymous memory, set after imports: an array of the length of the edges cannot be had."""
    result = subprocess.run(
        [sys.executable, "-c", _BOUNDED, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"},
    )
    assert result.stdout.split() == ["done"], result.stderr
    assert read_manifest(tmp_path / "large")["edge_types"][0]["num_edges"] == 4_000_000
