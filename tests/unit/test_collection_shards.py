"""`data.shard`: each machine has only its own range of the graphs, and shuffles within it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from disttrain.collection.collated import collate
from disttrain.collection.loader import GraphLoader
from disttrain.collection.part import Part, in_memory, part_of
from disttrain.config import Sampling
from disttrain.graph.schema import GRAPH
from disttrain.world import World
from tests.collections_of_graphs import pairs
from tests.ranks import run_ranks
from tests.unit.test_collection_collated import same_batch
from tests.unit.test_collection_loader import WANTS, opened


def seen(
    world: World, directory: str, count: int, storage: str, sampling: dict[str, Any] | None = None
) -> dict[str, Any]:
    # No disk is shared: each machine makes and reads its own files.
    graphs = opened(
        f"{directory}/{world.machine}", "one_by_one", world, args={"count": count}, shard=True, storage=storage,
        split={"by": "stratified", "train": 0.6, "val": 0.2, "test": 0.2},
    )  # fmt: skip
    low, high = graphs.node_books[GRAPH].range_of(world.machine)
    if storage == "memory":
        access: Any = graphs.access
        assert isinstance(access, Part) and (access.first, len(access.held)) == (low, high - low)
    found: dict[str, Any] = {}
    for split in ("train", "val", "test"):
        settings = Sampling(**{"batch_size": 3, "workers": 1, **(sampling or {})})
        loader = GraphLoader(
            world, graphs, f"{split}_mask", sampling=settings, run_seed=3, wants=WANTS, training=split == "train"
        )
        batches = list(loader.batches(1))
        ids = [batch[GRAPH].n_id for batch in batches]
        assert all(((part >= low) & (part < high)).all() for part in ids)
        found[split] = np.flatnonzero(graphs.masks[f"{split}_mask"]).tolist()
        found[f"{split} ids"] = [part.tolist() for part in ids]
        found[f"{split} x"] = [batch["node"].x.sum().item() for batch in batches]
        loader.close()
    return found


def check(ranks: list[dict[str, Any]]) -> None:
    for split in ("train", "val", "test"):
        assert len({len(rank[f"{split} ids"]) for rank in ranks}) == 1, "equal steps"
        ids = [graph for rank in ranks for part in rank[f"{split} ids"] for graph in part]
        assert sorted(ids) == ranks[0][split], split


def test_each_graph_is_there_once_on_one_two_and_three_machines(tmp_path: Path) -> None:
    for ranks, machines, count, storage in ((1, 1, 20, "mmap"), (3, 3, 20, "memory"), (4, 2, 21, "mmap")):
        found = run_ranks(seen, ranks, str(tmp_path / f"{machines}"), count, storage, machines=machines)
        check(found)
        if machines == 1:
            (whole,) = found
    sizes = [[len(part) for part in rank["train ids"]] for rank in found]
    assert max(map(max, sizes)) <= 3 and whole["train"]


def test_storages_and_workers_agree_and_fewer_graphs_than_ranks(tmp_path: Path) -> None:
    memory, mapped = (
        run_ranks(seen, 2, str(tmp_path / storage), 18, storage, {"worker_kind": kind, "balance": "size"})
        for storage, kind in (("memory", "processes"), ("mmap", "threads"))
    )
    check(memory)
    assert memory == mapped
    check(run_ranks(seen, 3, str(tmp_path / "few"), 2, "memory"))


def test_a_part_is_cut_as_the_whole_is() -> None:
    graphs: list[Any] = pairs(9)
    for number, graph in enumerate(graphs):
        graph.text, graph.codes = f"g{number}", {"a": torch.arange(number), "b": [torch.ones(1)]}
        graph["a"].root_index = number % 2
        graph["a", "to", "b"].adj = torch.ones(len(graph["a"].x), len(graph["b"].x)).to_sparse_coo()
    whole = collate(graphs, "here")
    part = Part(in_memory(part_of(whole, 3, 8)), 3, whole)
    for ids in ([7, 3, 3], [0, 5], []):
        picked, at = part.pick(np.array(ids, np.int64))
        if ids:
            same_batch(picked.batch(at), whole.batch(np.array(ids)))
        assert (picked is whole) == (0 in ids)
    some = in_memory(part_of(whole, 3, 8), ["x"])
    same_batch(some.batch(np.array([4])), whole.batch(np.array([7])))
