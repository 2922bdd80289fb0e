"""One rank of the sampling benchmark: its loaders, by setting and fanout, and what they take."""

from __future__ import annotations

import os
import time
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from disttrain.config import Sampling
from disttrain.graph.graph import Graph, Topology
from disttrain.graph.schema import Wants
from disttrain.sampling import NodeLoader, Seeds, split_seeds
from disttrain.sampling.cache import Draws, choose_rows, count_demand, fill_cache
from disttrain.sampling.columns import Columns
from disttrain.world import World

BATCH_SIZE = 512

Fanout = tuple[int, ...]


@dataclass(frozen=True)
class Setting:
    """What a contestant does differently."""

    topology: Topology = "partitioned"
    cache: float = 0.0
    """Rows that are kept, as a share of all rows of the graph."""
    halved: bool = False
    """Features travel in fp16."""


@dataclass(frozen=True)
class Took:
    """What one contestant took for one repetition."""

    num_seeds: int
    cpu_seconds: float
    """Of all its processes and threads."""
    wall_seconds: float
    bytes_sent: int = 0
    exchanges: int = 0
    batches: int = 0
    cached: int = 0
    """Remote rows that the cache had, and below, that other machines sent."""
    sent: int = 0

    @property
    def per_cpu_second(self) -> float:
        return self.num_seeds / self.cpu_seconds

    @property
    def per_second(self) -> float:
        return self.num_seeds / self.wall_seconds


class Contestant:
    """Lives in a process of its own.

    Args:
        batches: fanout -> batches of an epoch, over all ranks.
        settings: by name.
    """

    def __init__(
        self,
        world: World,
        directory: str,
        node_type: str,
        batches: dict[Fanout, int],
        settings: dict[str, Setting],
    ) -> None:
        self.world, self.directory, self.settings = world, directory, settings
        self.private_before = private_bytes()
        self.loaders: dict[tuple[str, Fanout], NodeLoader] = {}
        self.whole: dict[tuple[str, Fanout], NodeLoader] = {}
        """The same over all training seeds: what is drawn beforehand."""
        topologies: dict[Topology, None] = dict.fromkeys(setting.topology for setting in settings.values())
        graphs = {t: Graph.open(directory, world.machine, world.num_machines, t) for t in topologies}
        for name, setting in settings.items():
            graph = graphs[setting.topology]
            split = split_seeds(world, graph, node_type, "train_mask")
            wants = Wants(nodes={t: ("x",) for t, n in graph.schema.nodes.items() if "x" in n.attributes})
            for fanout, num_batches in batches.items():
                # So many seeds that every batch is full and an epoch makes just these batches.
                chosen = np.sort(np.random.default_rng(0).permutation(len(split))[: num_batches * BATCH_SIZE])
                columns = Columns.of(graph, wants, wants if setting.halved else None)

                options = {
                    "sampling": Sampling(fanout=fanout, batch_size=BATCH_SIZE, workers=1),
                    "run_seed": 0,
                    "wants": wants,
                    "training": True,
                    "columns": columns,
                }
                seeds = Seeds(split.ids[chosen], split.original[chosen])
                self.loaders[name, fanout] = NodeLoader(world, graph, node_type, seeds, **options)
                if setting.cache:
                    self.whole[name, fanout] = NodeLoader(world, graph, node_type, split, **options)

    def fill(self, name: str, fanout: Fanout) -> dict[str, float]:
        """Choose rows by one epoch of all training seeds, and keep them; what it took on this rank."""
        loader = self.whole[name, fanout]
        cpu, wall = time.process_time(), time.perf_counter()
        fill_cache(self.world, loader.columns, [Draws(loader, [0], 1)], self._room(name, loader.columns))
        return {
            "cpu_seconds": time.process_time() - cpu,
            "wall_seconds": time.perf_counter() - wall,
            "bytes_sent": loader.columns.bytes_to_fill,
            "bytes": loader.columns.cached_bytes,
            "rows": sum(len(table.cached) for table in loader.columns.tables),
        }

    def hit_rates(self, name: str, fanout: Fanout) -> dict[str, float]:
        """In another epoch than the one that was drawn, on this machine: of the cache, and of the best possible one."""
        loader = self.whole[name, fanout]
        tables = loader.columns.tables
        counters = [
            counts.astype(np.int64) for counts in count_demand(self.world, loader.columns, [Draws(loader, [1], 1)])
        ]
        best = choose_rows(counters, [table.row_bytes for table in tables], self._room(name, loader.columns))
        kept = [cached_ids(table.cached.index) for table in tables]

        def rate(chosen: list[np.ndarray]) -> float:
            hits = sum(int(counts[ids].sum()) for counts, ids in zip(counters, chosen))
            return hits / max(1, sum(int(counts.sum()) for counts in counters))

        return {"cache": rate(kept), "best": rate(best)}

    def _room(self, name: str, columns: Columns) -> int:
        share = self.settings[name].cache
        return int(share * sum(table.row_bytes * table.book.num_ids for table in columns.tables))

    def epoch(self, name: str, fanout: Fanout, number: int) -> tuple[Took, list[np.ndarray]]:
        """Make all batches; returns what it took, and the seeds of each batch, as original ids."""
        loader, seeds = self.loaders[name, fanout], []
        traffic = loader.traffic
        before = traffic.bytes_sent, traffic.exchanges, traffic.batches, traffic.asked
        self.world.barrier("starting together")
        cpu, wall = time.process_time(), time.perf_counter()
        for batch in loader.batches(number):
            store = batch[loader.node_type]
            seeds.append(store.n_id[: store.batch_size].clone())  # a view would keep the memory of all ids
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        ids = [each.numpy() for each in seeds]
        hits, misses = (traffic.asked - (before[3] if before[2] else 0)).sum(axis=1)
        return (
            Took(
                sum(map(len, ids)),
                cpu,
                wall,
                traffic.bytes_sent - before[0],
                traffic.exchanges - before[1],
                traffic.batches - before[2],
                int(hits),
                int(misses),
            ),
            ids,
        )

    def checksums(self, name: str, fanout: Fanout) -> list[int]:
        """Of every batch of one epoch: nodes, edges and features, as they are."""
        found = []
        for batch in self.loaders[name, fanout].batches(1):
            value = 0
            for store in (*batch.node_stores, *batch.edge_stores):
                for key in ("n_id", "x", "e_id", "edge_index"):
                    if key in store:
                        value = zlib.crc32(np.ascontiguousarray(store[key].numpy()).tobytes(), value)
            found.append(value)
        return found

    def memory(self) -> dict[str, int]:
        """With every page of the graph's files in use: bytes of them that this process maps, and its share of those.

        `pss` counts a page that n processes map 1/n in each. `private` is its own memory beyond that before the graph.
        """
        for file in Path(self.directory).rglob("*.npy"):
            self._touch(file)
        self.world.barrier("all ranks have mapped all")
        shares = mapped_bytes(self.directory)
        private = private_bytes() - self.private_before
        self.world.barrier("all ranks have looked")
        return {**shares, "private": private}

    def _touch(self, file: Path) -> None:
        array = np.load(file, mmap_mode="r")
        self._maps = [*getattr(self, "_maps", []), array]
        if array.nbytes:
            array.reshape(-1).view(np.uint8)[::1024].max()


def cached_ids(index: np.ndarray) -> np.ndarray:
    """The ids that an index holds, see `disttrain.sampling.columns.CachedRows`."""
    bits = np.unpackbits(np.ascontiguousarray(index[:, 0]).view(np.uint8), bitorder="little")
    return np.flatnonzero(bits)


def _smaps() -> list[tuple[str, dict[str, int]]]:
    """Every mapping of this process: its path, and its figures in bytes."""
    mappings: list[tuple[str, dict[str, int]]] = []
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split(maxsplit=5)
        if not words[0].endswith(":"):
            mappings.append((words[5] if len(words) > 5 else "", {}))
        elif words[-1] == "kB":
            mappings[-1][1][words[0][:-1]] = int(words[1]) * 1024
    return mappings


def mapped_bytes(directory: str) -> dict[str, int]:
    """Of the files below a directory: `rss`, resident bytes that this process maps, and `pss`, its share of them.

    A file that is mapped more than once in the process is counted once in `rss`.
    """
    rss: dict[str, int] = {}
    pss = 0
    for path, figures in _smaps():
        if path.startswith(os.path.realpath(directory)):
            rss[path] = max(rss.get(path, 0), figures["Rss"])
            pss += figures["Pss"]
    return {"rss": sum(rss.values()), "pss": pss}


def private_bytes() -> int:
    return sum(figures.get("Private_Dirty", 0) for _, figures in _smaps())
