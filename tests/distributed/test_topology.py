"""With all edges on every machine batches are the same, and a machine reads nothing but what `needed_rows` says."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from disttrain.config import Sampling
from disttrain.graph.graph import Graph, Topology
from disttrain.graph.needed import needed_rows
from disttrain.sampling import NodeLoader, split_seeds
from disttrain.world import World
from tests.distributed.test_sampling import WANTS, _content
from tests.graphs import write_parts, zoo
from tests.ranks import run_ranks


def _contents(world: World, directories: list[str], topology: Topology) -> list[dict]:
    """Batches of training and evaluation, and what the exchanges came to."""
    graph = Graph.open(directories[world.machine], world.machine, world.num_machines, topology)
    contents = []
    for split in ("train", "val"):
        loader = NodeLoader(
            world,
            graph,
            "paper",
            split_seeds(world, graph, "paper", f"{split}_mask"),
            sampling=Sampling(fanout=(4, 3), batch_size=12, workers=2, locality=False),
            run_seed=5,
            wants=WANTS,
            training=split == "train",
        )
        contents += [_content(batch) for batch in loader.batches(0)]
        hops = 2 if topology == "partitioned" else 0
        expected = 2 * hops + 2 if world.num_machines > 1 else 0
        assert loader.traffic.exchanges == expected * loader.traffic.batches
    return contents


def _bare_copy(directory: Path, copy: Path, machine: int, machines: int, topology: Topology) -> str:
    """The partition directory as `machine` needs it: all other rows are garbage."""
    shutil.copytree(directory, copy)
    for file, ranges in needed_rows(Graph.open(directory, machine, machines, topology)).items():
        if ranges is None:
            continue
        array = np.load(copy / file, mmap_mode="r+")
        keep = np.zeros(len(array), bool)
        for low, high in ranges:
            keep[low:high] = True
        whole = array.copy()
        whole.view(np.uint8).reshape(-1)[:] = 0x55
        whole[keep] = array[keep]
        array[:] = whole
        array.flush()
    return str(copy)


@pytest.mark.parametrize(("num_parts", "machines", "ranks"), [(2, 2, 4), (3, 3, 3)])
def test_batches_are_the_same_whatever_the_topology(tmp_path, num_parts, machines, ranks):
    directory = write_parts(zoo(), tmp_path / "whole", num_parts)
    topologies: tuple[Topology, ...] = ("partitioned", "replicated")
    found = {
        topology: run_ranks(
            _contents,
            ranks,
            [_bare_copy(directory, tmp_path / f"{topology}-{m}", m, machines, topology) for m in range(machines)],
            topology,
            machines=machines,
        )
        for topology in topologies
    }
    assert found["partitioned"] == found["replicated"]
    assert found["partitioned"] == run_ranks(
        _contents, ranks, [str(directory)] * machines, "partitioned", machines=machines
    )


def test_one_machine_needs_everything(tmp_path):
    graph = Graph.open(write_parts(zoo(), tmp_path / "parts", 3))
    for file, ranges in needed_rows(graph).items():
        rows = len(np.load(graph.directory / file, mmap_mode="r"))
        assert ranges is None or ranges == (((0, rows),) if rows else ()), file


def test_machines_need_each_row_once_but_for_the_topology(tmp_path):
    graph = Graph.open(write_parts(zoo(), tmp_path / "parts", 8))
    views = [needed_rows(graph.seen_by(m, 3)) for m in range(3)]
    for file in views[0]:
        ranges = [rows for view in views if (rows := view[file]) is not None]
        if not ranges:
            continue
        rows = len(np.load(graph.directory / file, mmap_mode="r"))
        times = np.zeros(rows, int)
        for low, high in (r for of_machine in ranges for r in of_machine):
            times[low:high] += 1
        assert (times >= 1).all() and (file.endswith("colptr.npy") or (times == 1).all()), file
