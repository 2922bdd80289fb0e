"""How fast mini-batches are made (draws and features), side by side with PyG's own local loader, in one run.

    python benchmarks/sampling.py            the graph of configs/mag_like.yaml; about 6 minutes, and 1 GB of memory
    python benchmarks/sampling.py --quick    a graph of a twentieth: shows that it runs, measures nothing

Contestants take turns on the very same seeds, one thread each, so that a busy machine slows all of them down. CPU time
of all processes and threads counts; wall time is beside it. docs/benchmarks.md says how.
Exit code 1: a floor that the project sets itself was not reached.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch_geometric
from rank_pool import RankPool
from torch_geometric.data import HeteroData

from disttrain.config import Experiment, GeneratedData, Partition, Sampling
from disttrain.config.file import read_experiment
from disttrain.data import fingerprint, load
from disttrain.graph.graph import Graph
from disttrain.graph.partitioner import partition
from disttrain.graph.schema import Wants
from disttrain.sampling import NodeLoader, Seeds, split_seeds
from disttrain.world import World

CONFIG = Path(__file__).parent.parent / "configs" / "mag_like.yaml"
BATCH_SIZE = 512
BATCHES = {(10, 5): 40, (15, 10, 5): 8}
"""Per fanout, how many batches (over all ranks) one repetition makes."""

FLOORS = {
    ("1 rank", "torch-sparse"): {(10, 5): 5.0, (15, 10, 5): 5.0},
    ("1 rank", "pyg-lib"): {(10, 5): 1.5, (15, 10, 5): 1.5},
    ("2 machines", "torch-sparse"): {(10, 5): 2.0, (15, 10, 5): 2.5},
}
"""Least seeds per CPU second, as a multiple of PyG's local loader with these kernels."""


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

    @property
    def per_cpu_second(self) -> float:
        return self.num_seeds / self.cpu_seconds

    @property
    def per_second(self) -> float:
        return self.num_seeds / self.wall_seconds


class Contestant:
    """One rank's loaders, one for each fanout. Lives in a process of its own."""

    def __init__(self, world: World, directory: str, node_type: str, batches: dict[tuple[int, ...], int]) -> None:
        self.world, self.directory = world, directory
        self.private_before = private_bytes()
        self.graph = Graph.open(directory, world.machine, world.num_machines)
        split = split_seeds(world, self.graph, node_type, "train_mask")
        self.loaders = {}
        for fanout, num_batches in batches.items():
            # So many seeds that every batch is full and an epoch makes just these batches.
            chosen = np.sort(np.random.default_rng(0).permutation(len(split))[: num_batches * BATCH_SIZE])
            self.loaders[fanout] = NodeLoader(
                world,
                self.graph,
                node_type,
                Seeds(split.ids[chosen], split.original[chosen]),
                sampling=Sampling(fanout=fanout, batch_size=BATCH_SIZE, workers=1),
                run_seed=0,
                wants=Wants(nodes={t: ("x",) for t, n in self.graph.schema.nodes.items() if "x" in n.attributes}),
                training=True,
            )

    def epoch(self, fanout: tuple[int, ...], number: int) -> tuple[Took, list[np.ndarray]]:
        """Make all batches; returns what it took, and the seeds of each batch, as original ids."""
        loader, seeds = self.loaders[fanout], []
        traffic = loader.traffic
        before = traffic.bytes_sent, traffic.exchanges, traffic.batches
        self.world.barrier("starting together")
        cpu, wall = time.process_time(), time.perf_counter()
        for batch in loader.batches(number):
            store = batch[loader.node_type]
            seeds.append(store.n_id[: store.batch_size].clone())  # a view would keep the memory of all ids
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        ids = [each.numpy() for each in seeds]
        return (
            Took(
                sum(map(len, ids)),
                cpu,
                wall,
                traffic.bytes_sent - before[0],
                traffic.exchanges - before[1],
                traffic.batches - before[2],
            ),
            ids,
        )

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


@dataclass
class Row:
    """One contestant at one fanout, over all repetitions."""

    name: str
    took: list[Took] = field(default_factory=list)
    against: dict[str, list[Took]] = field(default_factory=dict)
    """Kernels -> what PyG's loader took for the same seeds, right after."""

    def add(self, took: Took, pyg: dict[str, Took]) -> None:
        self.took.append(took)
        for kernels, other in pyg.items():
            self.against.setdefault(kernels, []).append(other)

    def ratio(self, kernels: str, rate: Callable[[Took], float]) -> float:
        """Median over repetitions of how many times as fast as PyG's loader."""
        return statistics.median(rate(a) / rate(b) for a, b in zip(self.took, self.against[kernels]))


def total(parts: Sequence[Took]) -> Took:
    """Of all ranks: CPU seconds add up, the slowest rank's wall time counts."""
    return Took(
        sum(p.num_seeds for p in parts),
        sum(p.cpu_seconds for p in parts),
        max(p.wall_seconds for p in parts),
        sum(p.bytes_sent for p in parts),
        sum(p.exchanges for p in parts),
        sum(p.batches for p in parts),
    )


def time_pyg(yardstick: Any, seeds: np.ndarray) -> Took:
    ids = torch.from_numpy(seeds)
    cpu, wall = time.process_time(), time.perf_counter()
    for batch in yardstick.batches(ids, BATCH_SIZE):
        assert batch[yardstick.node_type].batch_size > 0
    return Took(len(seeds), time.process_time() - cpu, time.perf_counter() - wall)


def shrunk(experiment: Experiment, times: int) -> Experiment:
    """The same graph with so many times fewer nodes and edges."""
    assert isinstance(experiment.data, GeneratedData)
    small = experiment.data.model_copy(
        update={
            "nodes": {
                t: n.model_copy(update={"num_nodes": n.num_nodes // times}) for t, n in experiment.data.nodes.items()
            },
            "edges": {
                e: n.model_copy(update={"num_edges": n.num_edges // times}) for e, n in experiment.data.edges.items()
            },
        }
    )
    return experiment.model_copy(update={"data": small})


def bare(data: HeteroData) -> HeteroData:
    """Features and edges only: what PyG's loader shall gather, and nothing else."""
    graph = HeteroData()
    for node_type in data.node_types:
        graph[node_type].x = data[node_type].x
    for edge_type in data.edge_types:
        graph[edge_type].edge_index = data[edge_type].edge_index
    return graph


def race(
    data: HeteroData,
    node_type: str,
    pools: dict[str, RankPool],
    kernels: Sequence[str],
    batches: dict[tuple[int, ...], int],
    repetitions: int,
) -> dict[tuple[int, ...], list[Row]]:
    """All contestants at all fanouts, taking turns."""
    rows = {}
    for fanout in batches:
        yardsticks: dict[str, Any] = {}
        for name in kernels:
            from yardstick import Yardstick

            yardsticks[name] = Yardstick(data, node_type, fanout, name)
        rows[fanout] = [Row(name) for name in pools]
        for repetition in range(-1, repetitions):
            for row in rows[fanout]:
                results = pools[row.name].call("epoch", fanout, repetition + 1)
                seeds = np.concatenate([ids for step in zip(*(r[1] for r in results)) for ids in step])
                pyg = {
                    name: time_pyg(y, seeds if repetition >= 0 else seeds[:BATCH_SIZE])
                    for name, y in yardsticks.items()
                }
                if repetition >= 0:  # the one before compiles, and fills caches
                    row.add(total([r[0] for r in results]), pyg)
    return rows


def show(fanout: tuple[int, ...], rows: list[Row]) -> list[dict[str, Any]]:
    """Print the table of one fanout; returns its figures."""
    figures: list[dict[str, Any]] = []

    def add(name: str, took: list[Took], ratios: dict[str, dict[str, float]], local: bool = True) -> None:
        batches = sum(t.batches for t in took)
        figures.append(
            {
                "fanout": list(fanout),
                "name": name,
                "seeds_per_cpu_second": statistics.median(t.per_cpu_second for t in took),
                "seeds_per_second": statistics.median(t.per_second for t in took),
                "times_pyg": ratios,
                "bytes_per_seed": sum(t.bytes_sent for t in took) / sum(t.num_seeds for t in took),
                "exchanges_per_batch": sum(t.exchanges for t in took) / batches if batches else 0.0,
                "repetitions": [asdict(t) for t in took],
            }
        )

    for kernels in rows[0].against:
        add(f"PyG local, {kernels}", [t for row in rows for t in row.against[kernels]], {})
    for row in rows:
        ratios = {
            kernels: {
                "cpu": row.ratio(kernels, lambda t: t.per_cpu_second),
                "wall": row.ratio(kernels, lambda t: t.per_second),
            }
            for kernels in row.against
        }
        add(row.name, row.took, ratios)

    kernels = list(rows[0].against)
    print(f"\nfanout {list(fanout)}, {BATCH_SIZE} seeds a batch, {len(rows[0].took)} repetitions: medians")
    head = f"{'':26}{'seeds/CPU s':>12}{'seeds/s':>10}" + "".join(
        f"{'x ' + k + ' CPU':>20}{'wall':>7}" for k in kernels
    )
    print(head + f"{'kB/seed':>10}{'exchanges':>11}")
    for f in figures:
        line = f"{f['name']:26}{f['seeds_per_cpu_second']:12,.0f}{f['seeds_per_second']:10,.0f}"
        for k in kernels:
            ratio = f["times_pyg"].get(k)
            line += f"{ratio['cpu']:20.2f}{ratio['wall']:7.2f}" if ratio else " " * 27
        print(line + f"{f['bytes_per_seed'] / 1000:10.1f}{f['exchanges_per_batch']:11.1f}")
    return figures


def floors_missed(fanout: tuple[int, ...], rows: list[Row]) -> list[str]:
    missed = []
    for row in rows:
        for kernels in row.against:
            floor = FLOORS.get((row.name.split(",")[0], kernels), {}).get(fanout)
            ratio = row.ratio(kernels, lambda t: t.per_cpu_second)
            if floor is not None and ratio < floor:
                missed.append(f"{row.name} at {list(fanout)}: {ratio:.2f} times PyG on {kernels}, must be {floor}")
    return missed


def check_exchanges(fanout: tuple[int, ...], rows: list[Row]) -> None:
    """Two a hop and two for features, whatever the number of types; none on one machine."""
    for row in rows:
        for took in row.took:
            expected = 0 if row.name.startswith("1 rank") else 2 * len(fanout) + 2
            assert took.exchanges == expected * took.batches, (row.name, fanout, took)


def measure_memory(directory: str, node_type: str, batches: dict[tuple[int, ...], int]) -> dict[str, Any]:
    """Two ranks of one machine: the files of the graph, and how much of the memory they take is shared."""
    with RankPool(Contestant, directory, node_type, batches, machines=1, ranks_per_machine=2) as pool:
        for fanout in batches:
            pool.call("epoch", fanout, 0)
        ranks = pool.call("memory")
    size = sum(file.stat().st_size for file in Path(directory).rglob("*.npy"))
    pss = sum(rank["pss"] for rank in ranks)
    print(f"\ntwo ranks of one machine; partition files: {size / 1e6:,.1f} MB")
    for number, rank in enumerate(ranks):
        print(
            f"  rank {number}: maps {rank['rss'] / 1e6:,.1f} MB of them, its share (PSS) {rank['pss'] / 1e6:,.1f} MB; "
            f"private memory beyond that before the graph {rank['private'] / 1e6:,.1f} MB"
        )
    print(f"  both together: {pss / 1e6:,.1f} MB, {pss / size:.2f} times the files")
    assert all(rank["rss"] >= 0.99 * size for rank in ranks), "each rank maps the whole graph"
    assert pss <= 1.05 * size, "and both of them hold it once"
    return {"file_bytes": size, "ranks": ranks, "pss": pss}


def machine() -> dict[str, Any]:
    model = next(
        (x.split(":")[1].strip() for x in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in x), ""
    )
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_geometric": torch_geometric.__version__,
    }


def kernels_here(asked: str, quick: bool) -> dict[str, str]:
    if asked == "none":
        return {}
    from yardstick import available

    found = available(compile_missing=not quick)
    return found if asked == "all" else {asked: found[asked]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="a small graph: only that it runs; PyG only if compiled already"
    )
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument(
        "--against", choices=["all", "torch-sparse", "pyg-lib", "none"], default="all", help="PyG's kernels"
    )
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    arguments = parser.parse_args()

    # Threads that spin for work on a busy machine would be counted as work: here, and in the ranks, which inherit it.
    os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", NUMBA_NUM_THREADS="1")
    torch.set_num_threads(1)
    experiment = read_experiment(CONFIG)
    batches, repetitions = BATCHES, arguments.repetitions
    if arguments.quick:
        experiment, repetitions = shrunk(experiment, 20), 1
        batches = dict.fromkeys(BATCHES, 4)
    node_type = experiment.task.node_type
    assert node_type is not None
    kernels = kernels_here(arguments.against, arguments.quick)
    loaded = load(experiment.data, experiment.task)
    results: dict[str, Any] = {"machine": machine(), "kernels": kernels, "graph": {}, "rows": []}
    print(f"{results['machine']}\nPyG's kernels: {kernels or 'none'}")
    missed: list[str] = []
    with tempfile.TemporaryDirectory(prefix="disttrain-benchmark-") as scratch:
        cut = {}
        for parts in (1, 2):
            cut[parts] = str(Path(scratch) / f"parts-{parts}")
            settings = Partition(parts=parts, method="metis")
            digest = fingerprint(experiment.data, experiment.task)
            manifest = partition(loaded.data, {}, {}, settings, parts, cut[parts], digest, lambda line: None)
            results["graph"][str(parts)] = {"edge_cut": manifest["edge_cut"]["total"], "balance": manifest["balance"]}
        print(f"edges cut by METIS in two parts: {results['graph']['2']['edge_cut']:.1%}")
        data = bare(loaded.data)
        del loaded
        with (
            RankPool(Contestant, cut[1], node_type, batches) as one,
            RankPool(Contestant, cut[2], node_type, batches, machines=2) as two,
        ):
            pools = {"1 rank": one, "2 machines, 2 partitions": two}
            for fanout, rows in race(data, node_type, pools, list(kernels), batches, repetitions).items():
                check_exchanges(fanout, rows)
                results["rows"] += show(fanout, rows)
                missed += floors_missed(fanout, rows)
        results["memory"] = measure_memory(cut[2], node_type, batches)
    if arguments.quick:
        missed = []
    for line in missed:
        print(f"NOT REACHED: {line}")
    if kernels and not missed and not arguments.quick:
        print("\nall floors reached")
    results["missed"] = missed
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
