"""How fast mini-batches are made (draws and features), side by side with PyG's own local loader, in one run.

    python benchmarks/sampling.py            the graph of configs/mag_like.yaml; about 6 minutes, and 3 GB of memory
    python benchmarks/sampling.py --quick    a graph of a twentieth: exchanges, bytes and hit rates; no speeds

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
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch_geometric
from contestant import BATCH_SIZE, Contestant, Fanout, Setting, Took
from floors import bytes_missed, check_hits, floors_missed
from rank_pool import RankPool
from row import Row, bytes_per_seed, total
from slow_network import NetworkError, two_hosts
from torch_geometric.data import HeteroData
from yardstick import PAIR, Yardstick, YardstickRank, available, time_pyg

from disttrain.config import Experiment, GeneratedData, Partition
from disttrain.config.file import read_experiment
from disttrain.data import fingerprint, load
from disttrain.graph.partitioner import partition

CONFIG = Path(__file__).parent.parent / "configs" / "mag_like.yaml"
BATCHES = {(10, 5): 40, (15, 10, 5): 8}
"""Per fanout, how many batches (over all ranks) one repetition makes."""

CACHE = 0.2
"""Share of all rows of the graph that a machine keeps of the others'."""

SETTINGS = {
    "plain": Setting(),
    "cache": Setting(cache=CACHE),
    "cache, fp16": Setting(cache=CACHE, halved=True),
    "replicated": Setting(topology="replicated"),
    "replicated, cache": Setting(topology="replicated", cache=CACHE),
}
SLOW = ("plain", "cache", "cache, fp16")
"""Settings that are tried over a slow network."""
RATE = "1gbit"

_WIDTH = 36


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


Contestants = dict[str, tuple[RankPool, str]]
"""By name: the processes, and the setting."""


def race(
    data: HeteroData,
    node_type: str,
    contestants: Contestants,
    kernels: Sequence[str],
    yardstick_pair: RankPool | None,
    fanout: Fanout,
    repetitions: int,
) -> list[Row]:
    """All contestants at one fanout, taking turns.

    PyG's loader makes the batches of the first two, one rank and two machines: with seeds of one part each, neighbours
    are shared more often. Those of two machines are what all others are held against; there two of PyG's loaders make
    them at a time, and then one all of them.
    """
    yardsticks: dict[str, Any] = {}
    for name in kernels:
        yardsticks[name] = Yardstick(data, node_type, fanout, name)
    rows = [Row(name) for name in contestants]
    for repetition in range(-1, repetitions):
        pyg: dict[str, Took] = {}
        for number, row in enumerate(rows):
            pool, setting = contestants[row.name]
            results = pool.call("epoch", setting, fanout, repetition + 1)
            if number < 2:
                few = slice(None) if repetition >= 0 else slice(1)
                steps = [step for step in zip(*(r[1] for r in results))][few]
                seeds = np.concatenate([ids for step in steps for ids in step])
                pyg = {name: time_pyg(y, seeds, BATCH_SIZE) for name, y in yardsticks.items()}
                if number == 1 and yardstick_pair is not None:
                    shares = [np.concatenate(ids) for ids in zip(*steps)]
                    for name in kernels:
                        both = yardstick_pair.call("epoch", name, fanout, shares, BATCH_SIZE)
                        pyg[name + PAIR] = total(both)
            if repetition >= 0:  # the one before compiles, and fills caches
                row.add(total([r[0] for r in results]), pyg)
    return rows


def show(fanout: Fanout, rows: list[Row]) -> list[dict[str, Any]]:
    """Print the table of one fanout; returns its figures."""
    figures: list[dict[str, Any]] = []

    def add(name: str, took: list[Took], ratios: dict[str, dict[str, float]]) -> None:
        batches, remote = sum(t.batches for t in took), sum(t.cached + t.sent for t in took)
        figures.append(
            {
                "fanout": list(fanout),
                "name": name,
                "seeds_per_cpu_second": statistics.median(t.per_cpu_second for t in took),
                "seeds_per_second": statistics.median(t.per_second for t in took),
                "times_pyg": ratios,
                "bytes_per_seed": bytes_per_seed(took),
                "exchanges_per_batch": sum(t.exchanges for t in took) / batches if batches else 0.0,
                "hit_rate": sum(t.cached for t in took) / remote if remote else 0.0,
                "repetitions": [asdict(t) for t in took],
            }
        )

    kernels = list(rows[1].against)
    for name in kernels:
        add(f"PyG local, {name}", [t for row in rows[:2] for t in row.against.get(name, [])], {})
    for row in rows:
        ratios = {
            name: {
                "cpu": row.ratio(name, lambda t: t.per_cpu_second),
                "wall": row.ratio(name, lambda t: t.per_second),
            }
            for name in row.against
        }
        add(row.name, row.took, ratios)

    print(f"\nfanout {list(fanout)}, {BATCH_SIZE} seeds a batch, {len(rows[0].took)} repetitions: medians")
    head = f"{'':36}{'seeds/CPU s':>12}{'seeds/s':>10}" + "".join(
        f"{'x ' + k + ' CPU':>{_WIDTH}}{'wall':>7}" for k in kernels
    )
    print(head + f"{'kB/seed':>10}{'exchanges':>11}{'hits':>8}")
    for f in figures:
        line = f"{f['name']:36}{f['seeds_per_cpu_second']:12,.0f}{f['seeds_per_second']:10,.0f}"
        for k in kernels:
            ratio = f["times_pyg"].get(k)
            line += f"{ratio['cpu']:{_WIDTH}.2f}{ratio['wall']:7.2f}" if ratio else " " * (_WIDTH + 7)
        line += f"{f['bytes_per_seed'] / 1000:10.1f}{f['exchanges_per_batch']:11.1f}"
        print(line + (f"{f['hit_rate']:8.1%}" if f["hit_rate"] else ""))
    return figures


def fill(pool: RankPool, settings: Sequence[str], fanouts: Sequence[Fanout], where: str) -> list[dict[str, Any]]:
    """Fill the caches; what that took, over all ranks."""
    figures = []
    for setting in settings:
        if SETTINGS[setting].cache:
            for fanout in fanouts:
                ranks = pool.call("fill", setting, fanout)
                figures.append(
                    {
                        "where": where,
                        "setting": setting,
                        "fanout": list(fanout),
                        **{key: sum(rank[key] for rank in ranks) for key in ("cpu_seconds", "bytes_sent")},
                        "wall_seconds": max(rank["wall_seconds"] for rank in ranks),
                        "bytes": max(rank["bytes"] for rank in ranks),
                        "rows": max(rank["rows"] for rank in ranks),
                    }
                )
                f = figures[-1]
                print(
                    f"{where}, {setting}, {list(fanout)}: a machine keeps {f['rows']:,} rows, "
                    f"{f['bytes'] / 1e6:.1f} MB; drawing an epoch and fetching took {f['cpu_seconds']:.1f} CPU s and "
                    f"{f['wall_seconds']:.1f} s, {f['bytes_sent'] / 1e6:.0f} MB"
                )
    return figures


def check_equality(pool: RankPool, fanouts: Sequence[Fanout]) -> None:
    """Batches are the same, bit for bit, with a cache or without, and whatever the topology."""
    for fanout in fanouts:
        plain = pool.call("checksums", "plain", fanout)
        for setting, what in SETTINGS.items():
            assert (pool.call("checksums", setting, fanout) == plain) != what.halved, (setting, fanout)


def over_slow_network(
    directory: str, node_type: str, batches: dict[Fanout, int], repetitions: int
) -> list[dict[str, Any]]:
    """Two machines on a network of `RATE`, with a cache and without."""
    figures = []
    settings = {name: SETTINGS[name] for name in SLOW}
    with (
        two_hosts(RATE) as hosts,
        RankPool(Contestant, directory, node_type, batches, settings, machines=2, hosts=hosts) as pool,
    ):
        print()
        fill(pool, SLOW, list(batches), RATE)
        for fanout in batches:
            took: dict[str, list[Took]] = {name: [] for name in SLOW}
            for repetition in range(repetitions):
                for name in SLOW:
                    took[name].append(total([r[0] for r in pool.call("epoch", name, fanout, repetition + 1)]))
            print(f"\nfanout {list(fanout)}, two machines on a network of {RATE}, {repetitions} repetitions: medians")
            print(f"{'':20}{'seeds/s':>10}{'seeds/CPU s':>13}{'kB/seed':>10}{'times without':>15}")
            for name in SLOW:
                pairs = zip(took[name], took["plain"])
                times = statistics.median(a.per_second / b.per_second for a, b in pairs)
                figures.append(
                    {
                        "fanout": list(fanout),
                        "name": name,
                        "seeds_per_second": statistics.median(t.per_second for t in took[name]),
                        "seeds_per_cpu_second": statistics.median(t.per_cpu_second for t in took[name]),
                        "bytes_per_seed": bytes_per_seed(took[name]),
                        "times_without": times,
                    }
                )
                f = figures[-1]
                print(
                    f"{name:20}{f['seeds_per_second']:10,.0f}{f['seeds_per_cpu_second']:13,.0f}"
                    f"{f['bytes_per_seed'] / 1000:10.1f}{times:15.2f}"
                )
    return figures


def check_exchanges(fanout: Fanout, rows: list[Row], contestants: Contestants) -> None:
    """Two a hop where others draw, and two for features, whatever the number of types; none on one machine."""
    for row in rows:
        draws = SETTINGS[contestants[row.name][1]].topology == "partitioned"
        expected = 0 if row.name == "1 rank" else 2 * len(fanout) * draws + 2
        for took in row.took:
            assert took.exchanges == expected * took.batches, (row.name, fanout, took)


def measure_memory(directory: str, node_type: str, batches: dict[Fanout, int]) -> dict[str, Any]:
    """Two ranks of one machine: the files of the graph, and how much of the memory they take is shared."""
    settings = {"plain": Setting()}
    with RankPool(Contestant, directory, node_type, batches, settings, machines=1, ranks_per_machine=2) as pool:
        for fanout in batches:
            pool.call("epoch", "plain", fanout, 0)
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
        with ExitStack() as pools:

            def start(settings: Sequence[str], machines: int, ranks_per_machine: int = 1) -> RankPool:
                given = cut[machines], node_type, batches, {name: SETTINGS[name] for name in settings}
                pool = RankPool(Contestant, *given, machines=machines, ranks_per_machine=ranks_per_machine)
                return pools.enter_context(pool)

            pair = None
            if kernels:
                given = data, node_type, list(batches), list(kernels)
                pair = pools.enter_context(RankPool(YardstickRank, *given, machines=2))
            one, two, four = start(["plain"], 1), start(list(SETTINGS), 2), start(["cache"], 2, 2)
            contestants = {"1 rank": (one, "plain"), "2 machines": (two, "plain")}
            contestants |= {f"2 machines, {name}": (two, name) for name in SETTINGS if name != "plain"}
            contestants["4 ranks on 2 machines, cache"] = (four, "cache")
            results["fill"] = fill(two, list(SETTINGS), list(batches), "2 machines")
            results["fill"] += fill(four, ["cache"], list(batches), "4 ranks on 2 machines")
            results["hits"], missed = check_hits(two, list(batches))
            check_equality(two, list(batches) if arguments.quick else [(10, 5)])
            for fanout in batches:
                rows = race(data, node_type, contestants, list(kernels), pair, fanout, repetitions)
                check_exchanges(fanout, rows, contestants)
                results["rows"] += show(fanout, rows)
                speeds = [*bytes_missed(fanout, rows), *floors_missed(fanout, rows)]
                missed += [] if arguments.quick else speeds
        try:
            results["slow"] = over_slow_network(cut[2], node_type, batches, 1 if arguments.quick else 3)
        except NetworkError as error:
            print(f"\nno network of {RATE} here: {error}")
        results["memory"] = measure_memory(cut[2], node_type, batches)
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
