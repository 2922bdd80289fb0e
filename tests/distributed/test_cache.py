"""Hot rows are kept on each machine: batches and losses stay the same bit for bit, and less is sent."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from disttrain.config import ExperimentError, Sampling
from disttrain.graph.graph import Graph, Topology
from disttrain.graph.schema import Wants
from disttrain.sampling import NodeLoader, split_seeds
from disttrain.sampling.cache import Draws, count_demand, fill_cache
from disttrain.sampling.columns import Columns
from disttrain.sampling.machine_memory import machine_memory
from disttrain.world import World
from tests.distributed.test_sampling import WANTS, _content
from tests.graphs import write_parts, zoo
from tests.ranks import RankFailed, run_ranks

HALVED = Wants(nodes={"paper": ("x",)}, edges={("paper", "cites", "paper"): ("edge_attr",)})


def _loaders(world: World, directory: str, topology: Topology, halved: Wants, workers: int = 2) -> list[NodeLoader]:
    graph = Graph.open(directory, world.machine, world.num_machines, topology)
    columns = Columns.of(graph, WANTS, halved)
    return [
        NodeLoader(
            world,
            graph,
            "paper",
            split_seeds(world, graph, "paper", mask),
            sampling=Sampling(fanout=(4, 3), batch_size=12, workers=workers, prefetch=2, locality=False),
            run_seed=5,
            wants=WANTS,
            training=mask == "train_mask",
            columns=columns,
        )
        for mask in ("train_mask", "val_mask")
    ]


def _run(
    world: World, directory: str, num_bytes: int, topology: Topology = "partitioned", halved: Wants | None = None
) -> dict[str, Any]:
    """The batches of two epochs and an evaluation, with so large a cache, and what they cost."""
    train, val = _loaders(world, directory, topology, halved or Wants())
    columns = train.columns
    fill_cache(world, columns, [Draws(train, range(2), 1), Draws(val, [0], 2)], num_bytes)
    contents = [_content(batch) for epoch in (0, 1) for batch in train.batches(epoch)]
    contents += [_content(batch) for batch in val.batches(0)]
    hops = 2 if topology == "partitioned" else 0
    for loader in (train, val):
        assert loader.traffic.exchanges == (2 * hops + 2 if world.num_machines > 1 else 0) * loader.traffic.batches
    return {
        "contents": contents,
        "sent": train.traffic.bytes_sent + val.traffic.bytes_sent,
        "asked": train.traffic.asked + val.traffic.asked,
        "kept": [len(table.cached) for table in columns.tables],
        "bytes": columns.cached_bytes,
        "filled": columns.bytes_to_fill,
    }


@pytest.mark.parametrize(("num_parts", "machines", "ranks"), [(2, 2, 4), (3, 3, 3)])
@pytest.mark.parametrize("topology", ["partitioned", "replicated"])
def test_batches_are_the_same_with_a_cache_and_less_is_sent(tmp_path, num_parts, machines, ranks, topology):
    directory = str(write_parts(zoo(), tmp_path / "parts", num_parts))
    without, some, everything = (
        run_ranks(_run, ranks, directory, num_bytes, topology, machines=machines) for num_bytes in (0, 2000, 10**9)
    )
    for rank in range(ranks):
        assert some[rank]["contents"] == without[rank]["contents"] == everything[rank]["contents"]
        assert without[rank]["bytes"] == without[rank]["filled"] == 0
        assert 0 < some[rank]["bytes"] <= 2000
        assert without[rank]["asked"][0].sum() == 0
        # Every row is accounted for once, and whatever was drawn beforehand is kept if there is room.
        needed = without[rank]["asked"].sum(axis=0)
        assert (some[rank]["asked"].sum(axis=0) == needed).all()
        assert everything[rank]["asked"][0].tolist() == needed.tolist() and not everything[rank]["asked"][1].any()
    sent = [sum(rank["sent"] for rank in ranks) for ranks in (without, some, everything)]
    assert sent[0] > sent[1] > sent[2]
    for other in range(machines):  # ranks of a machine have one cache
        assert (
            len({str(rank["kept"]) for rank in some[other * ranks // machines : (other + 1) * ranks // machines]}) == 1
        )


def _rounded(contents: list[dict]) -> list[dict]:
    """What batches hold when the attributes of `HALVED` went through fp16."""

    def value(place: Any, value: Any) -> Any:
        if isinstance(place, tuple):
            key, name = place
            if name in (*HALVED.nodes.get(key, ()), *HALVED.edges.get(key, ())):
                return torch.tensor(value, dtype=torch.float32).half().float().tolist()
        return value

    return [{place: value(place, v) for place, v in batch.items()} for batch in contents]


def test_rows_in_fp16_are_rounded_alike_whoever_owns_them(tmp_path):
    raw = zoo()
    raw["paper"].x = torch.randn(211, 3, generator=torch.Generator().manual_seed(0)) * 100
    edges = raw["paper", "cites", "paper"]
    edges.edge_attr = torch.randn(1500, 2, generator=torch.Generator().manual_seed(1))
    directory = str(write_parts(raw, tmp_path / "parts", 2))
    for ranks in (1, 2):
        exact = run_ranks(_run, ranks, directory, 0)
        for num_bytes in (0, 3000):
            found = run_ranks(_run, ranks, directory, num_bytes, "partitioned", HALVED)
            for whole, half in zip(exact, found, strict=True):
                assert half["contents"] == _rounded(whole["contents"]) != whole["contents"]
                if ranks > 1:
                    assert half["sent"] < whole["sent"]
                    assert half["asked"][0].any() == bool(num_bytes)


def _demand(world: World, directory: str) -> list[list[int]]:
    """What drawing beforehand counts; checked on every rank against the batches themselves."""
    train, val = _loaders(world, directory, "partitioned", Wants())
    counters = count_demand(world, train.columns, [Draws(train, [0, 3], 7), Draws(val, [0], 2)])
    batches = [(7, b) for epoch in (0, 3) for b in train.batches(epoch)] + [(2, b) for b in val.batches(0)]
    mine = []
    for table, counts in zip(train.columns.tables, counters, strict=True):
        expected = np.zeros(len(counts), np.int64)
        if isinstance(table.key, str):
            place = np.argsort(np.asarray(train.graph.original_ids(table.key)))
            low, high = table.book.range_of(world.machine)
            for weight, batch in batches:
                ids = place[batch[table.key].n_id.numpy()]
                expected[ids[(ids < low) | (ids >= high)]] += weight
        mine.append(expected)
    ranks = world.gather(mine, "comparing")
    here = ranks[world.machine * world.local_size : (world.machine + 1) * world.local_size]
    for at, table in enumerate(train.columns.tables):
        if isinstance(table.key, str):
            assert counters[at].tolist() == np.sum([rank[at] for rank in here], axis=0).tolist()
            assert world.size == 1 or counters[at].any() or table.key in ("venue", "lonely")
    return [counts.tolist() for counts in counters]


def test_what_is_counted_beforehand_is_what_batches_ask_for(tmp_path):
    directory = str(write_parts(zoo(), tmp_path / "parts", 3))
    found = run_ranks(_demand, 4, directory, machines=2)
    assert found[0] == found[1] != found[2] == found[3]
    assert found[0] == run_ranks(_demand, 4, directory, machines=2)[0]


def _shares(world: World) -> list[int]:
    memory = machine_memory(world, 3 << 20, "a test", reserve=True)
    assert not memory.any() and memory.ctypes.data % 4096 == 0
    world.barrier("looking")
    memory[world.local_rank] = 10 + world.rank
    world.barrier("writing")
    seen = memory[:4].tolist()
    world.barrier("reading")
    assert world.size == 1 or "disttrain" in Path("/proc/self/maps").read_text()
    return seen


@pytest.mark.parametrize("nameless", [True, False])
def test_ranks_of_a_machine_share_memory_that_has_no_name(nameless, monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    before = _named_memory()
    found = run_ranks(_shares if nameless else _shares_by_file, 4, machines=2)
    assert found == [[10, 11, 0, 0], [10, 11, 0, 0], [12, 13, 0, 0], [12, 13, 0, 0]]
    assert not os.listdir(tmp_path) and _named_memory() <= before


def _named_memory() -> set[str]:
    """Of ours; other tests that run meanwhile have theirs."""
    return {name for name in os.listdir("/dev/shm") if name.startswith("disttrain")}


def _shares_by_file(world: World) -> list[int]:
    """As on systems without nameless files."""
    del os.memfd_create
    return _shares(world)


def _asks_for_too_much(world: World) -> None:
    machine_memory(world, (1 << 60) if world.machine == 1 else 10, "a test", reserve=True)


def test_too_little_memory_is_refused_on_every_rank():
    with pytest.raises(
        RankFailed, match="MiB of memory for a test were asked for, and .* MiB are available"
    ) as failure:
        run_ranks(_asks_for_too_much, 2, timeout=30)
    assert failure.value.kind == ExperimentError.__name__
