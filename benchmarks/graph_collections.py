"""Memory and speed of a collection of graphs on 1, 2 and 4 ranks with 2 workers each, side by side with PyG's own ways.

    python benchmarks/graph_collections.py           130,831 molecules of QM9's sizes, generated; 20 minutes, 8 GB
    python benchmarks/graph_collections.py --quick   1,000 of them, 2 ranks: only that it runs, each graph once

Contestants: a plain list of Data in each rank; PyG's InMemoryDataset (its class `QM9`), DataLoader and
DistributedSampler, as its tutorials write it; and each `data.storage` of ours. Memory is PSS, summed over all ranks and
their worker processes in the middle of an epoch, beyond that of the same processes with a collection of one graph each.
Speeds are of one rank, contestants taking turns: CPU seconds of all processes, and wall time. (It is not called
collections.py since Python would then take it for its own module of that name.)
Exit code 1: a floor that the project sets itself was not reached, or what it is about is not there.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

from collection_contestant import WORKERS, Contestant, Took
from qm9_like import QM9_GRAPHS, lay_out
from rank_pool import RankPool

from disttrain.config.data import Data

THEIRS = ("list", "pyg")
STORAGES = tuple(name for name in get_args(Data.model_fields["storage"].annotation) if name != "auto")
MOST_MEMORY = 1.3
"""Of `mmap` on four ranks, as a multiple of the collated data."""
START_FLOOR = 5.0
"""Times as fast as PyG to the first batch, with `mmap`."""
SPEED_FLOORS = {False: 10.0, True: 1.5}
"""Times the graphs per second of PyG's way with as many workers; without and with a transform at each access."""
MOST_GROWTH = 0.02
"""Of the memory after 20 epochs, beyond that after 2."""
LATE, EARLY = 20, 2


def pool_of(kind: str, root: Path, ranks: int, transform: bool = False) -> RankPool:
    """Ranks are forked from a server that has imported what any of them needs: the same pages, whatever the kind."""
    return RankPool(
        Contestant, kind, str(root), transform, ranks_per_machine=ranks, preload=["collection_contestant"],
    )  # fmt: skip


def pss_of(pool: RankPool, epoch: int) -> int:
    """Of all processes together."""
    return sum(pss for _, pss in pool.call("memory", epoch))


def measure_memory(kinds: Sequence[str], whole: Path, one: Path, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Each contestant on so many ranks, with all graphs and with one; with the time to its first batch."""
    figures = []
    for kind in kinds:
        for ranks in sizes:
            found: dict[str, Any] = {"kind": kind, "ranks": ranks}
            for name, root in (("nothing", one), ("memory", whole)):
                with pool_of(kind, root, ranks) as pool:
                    took = pool.call("start")
                    found[name] = pss_of(pool, 1)
            found["start_seconds"] = max(each.wall_seconds for each in took)
            found["start_cpu_seconds"] = sum(each.cpu_seconds for each in took)
            found["beyond"] = found["memory"] - found["nothing"]
            figures.append(found)
            print(
                f"  {kind:12}{ranks:3} x {WORKERS}{found['beyond'] / 1e6:12,.0f} MB{found['memory'] / 1e6:12,.0f} MB"
                f"{found['start_seconds']:10.2f} s{found['start_cpu_seconds']:10.2f} CPU s",
                flush=True,
            )
    return figures


def measure_growth(kinds: Sequence[str], root: Path, late: int) -> dict[str, dict[str, int]]:
    """Memory of one rank after a few epochs, and after many."""
    figures = {}
    for kind in kinds:
        with pool_of(kind, root, 1) as pool:
            pool.call("start")
            after = {}
            for epoch in range(1, late):
                if epoch + 1 in (EARLY, late):
                    after[epoch + 1] = pss_of(pool, epoch)
                else:
                    pool.call("epoch", epoch)
        growth = after[late] / after[EARLY] - 1
        figures[kind] = {str(epoch): size for epoch, size in after.items()}
        print(f"  {kind:12}{after[EARLY] / 1e6:12,.0f} MB{after[late] / 1e6:12,.0f} MB{growth:+10.2%}", flush=True)
    return figures


def race(kinds: Sequence[str], root: Path, transform: bool, repetitions: int, count: int) -> list[dict[str, Any]]:
    """One rank with its workers, an epoch each in turn. The first one, in which PyG keeps each graph, is beside."""
    pools: dict[str, RankPool] = {}
    took: dict[str, list[Took]] = {kind: [] for kind in kinds}
    starts: dict[str, Took] = {}
    try:
        for kind in kinds:
            pools[kind] = pool_of(kind, root, 1, transform).__enter__()
            (starts[kind],) = pools[kind].call("start")
        for repetition in range(repetitions):
            for kind in kinds:
                ((each, numbers),) = pools[kind].call("epoch", repetition + 1)
                assert (each.num_graphs, numbers) == (count, count * (count - 1) // 2), "each graph once"
                took[kind].append(each)
    finally:
        for pool in pools.values():
            pool.__exit__(None)
    figures = []
    for kind in kinds:
        ratios = {
            "wall": statistics.median(p.wall_seconds / t.wall_seconds for p, t in zip(took["pyg"], took[kind])),
            "cpu": statistics.median(p.cpu_seconds / t.cpu_seconds for p, t in zip(took["pyg"], took[kind])),
            "start": starts["pyg"].wall_seconds / starts[kind].wall_seconds,
            "start_cpu": starts["pyg"].cpu_seconds / starts[kind].cpu_seconds,
        }
        figures.append(
            {
                "kind": kind,
                "transform": transform,
                "graphs_per_second": statistics.median(t.num_graphs / t.wall_seconds for t in took[kind]),
                "graphs_per_cpu_second": statistics.median(t.num_graphs / t.cpu_seconds for t in took[kind]),
                "times_pyg": ratios,
                "repetitions": [asdict(t) for t in took[kind]],
            }
        )
        f = figures[-1]
        print(
            f"  {kind:12}{f['graphs_per_second']:12,.0f}{f['graphs_per_cpu_second']:14,.0f}"
            f"{ratios['wall']:12.2f}{ratios['cpu']:10.2f}",
            flush=True,
        )
    return figures


def measure_start(root: Path, repetitions: int) -> dict[str, Any]:
    """From nothing to the first batch on one rank, `mmap` and PyG in turn, each in a new process."""
    took: dict[str, list[Took]] = {"pyg": [], "mmap": []}
    for _ in range(repetitions):
        for kind, found in took.items():
            with pool_of(kind, root, 1) as pool:
                found += pool.call("start")
    ratio = statistics.median(p.wall_seconds / m.wall_seconds for p, m in zip(*took.values()))
    cpu = statistics.median(p.cpu_seconds / m.cpu_seconds for p, m in zip(*took.values()))
    for kind, each in took.items():
        print(
            f"  {kind:12}{statistics.median(t.wall_seconds for t in each):10.3f} s"
            f"{statistics.median(t.cpu_seconds for t in each):10.3f} CPU s"
        )
    print(f"  mmap is {ratio:.1f} times as fast ({cpu:.1f} in CPU seconds)", flush=True)
    return {"ratio": ratio, "cpu_ratio": cpu, "took": {kind: [asdict(t) for t in each] for kind, each in took.items()}}


def collated_bytes(root: Path) -> int:
    """All arrays of our collection, as they lie on the disk."""
    return sum(file.stat().st_size for file in (root / "collections").rglob("*.npy"))


def is_there(root: Path, storage: str, transform: bool = False) -> str | None:
    """Why a contestant of ours cannot take part; None: it can. The collection is made on the way."""
    try:
        with pool_of(storage, root, 1, transform) as pool:
            pool.call("start")
    except RuntimeError as error:
        return str(error).strip().splitlines()[-1]
    return None


def missed_floors(results: dict[str, Any]) -> list[str]:
    """What was not reached; sizes of generated data that are meant for it have to be there."""
    missed = []
    size = results["collated_bytes"]
    most = max(results["sizes"])
    for row in results["memory"]:
        if (row["kind"], row["ranks"]) == ("mmap", most) and row["beyond"] > MOST_MEMORY * size:
            missed.append(
                f"mmap on {most} ranks holds {row['beyond'] / size:.2f} times the collated data, at most {MOST_MEMORY}"
            )
    if results["start"]["ratio"] < START_FLOOR:
        missed.append(f"mmap starts {results['start']['ratio']:.1f} times as fast as PyG, must be {START_FLOOR:g}")
    for row in results["speed"]:
        floor, ratio = SPEED_FLOORS[row["transform"]], row["times_pyg"]["wall"]
        if row["kind"] == "mmap" and ratio < floor:
            with_it = "with" if row["transform"] else "without"
            missed.append(f"mmap {with_it} a transform: {ratio:.2f} times the graphs/s of PyG, must be {floor:g}")
    for kind, after in results["growth"].items():
        first, last = after.values()
        if last > (1 + MOST_GROWTH) * first:
            missed.append(f"{kind}: memory grew by {last / first - 1:.1%}, at most {MOST_GROWTH:.0%}")
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--graphs", type=int, default=QM9_GRAPHS)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--ways", nargs="+", choices=(*THEIRS, *STORAGES), default=(*THEIRS, *STORAGES), metavar="WAY")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    arguments = parser.parse_args()

    os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", NUMBA_NUM_THREADS="1")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    count = 1_000 if arguments.quick else arguments.graphs
    sizes = (2,) if arguments.quick else tuple(arguments.ranks)
    ways = ("pyg", "mmap", *arguments.ways)  # what the floors are about
    repetitions, late = (1, 4) if arguments.quick else (arguments.repetitions, LATE)
    results: dict[str, Any] = {"graphs": count, "sizes": sizes, "missing": []}
    with tempfile.TemporaryDirectory(prefix="disttrain-benchmark-") as scratch:
        whole, one = Path(scratch) / "whole", Path(scratch) / "one"
        lay_out(whole, count)
        lay_out(one, max(sizes))  # one graph for each rank: PyG's DistributedSampler gives none to nobody
        ours = []
        for storage in (storage for storage in STORAGES if storage in ways):
            why = is_there(whole, storage) or is_there(one, storage)
            if why is None:
                ours.append(storage)
            else:
                results["missing"].append(f"storage {storage}: {why}")
        if why := is_there(whole, "mmap", transform=True):
            results["missing"].append(f"transforms at each access: {why}")
        kinds = [*(kind for kind in THEIRS if kind in ways), *ours]
        size = results["collated_bytes"] = collated_bytes(whole)
        print(f"{count:,} graphs, {os.cpu_count()} cores; collated {size / 1e6:,.1f} MB")

        print(f"\nmemory (PSS) beyond that with one graph, and in all; to the first batch; ranks x {WORKERS} workers")
        results["memory"] = measure_memory(kinds, whole, one, sizes)
        of = {(row["kind"], row["ranks"]): row["beyond"] for row in results["memory"]}
        if ("list", 1) in of:
            print(f"  a list of Data in one rank: {of['list', 1] / size:.2f} times the collated data", flush=True)
        for kind in ("pyg", "mmap"):
            print(f"  {kind} on {sizes[-1]} ranks: {of[kind, sizes[-1]] / size:.2f} times the collated data")

        print(f"\nto the first batch, one rank, each in new processes, {repetitions} repetitions: medians")
        results["start"] = measure_start(whole, repetitions)

        results["speed"] = []
        missing = any(line.startswith("transforms") for line in results["missing"])
        for transform in (False,) if missing else (False, True):
            print(
                f"\none rank x {WORKERS} workers, {'a transform of each graph' if transform else 'no transform'}, "
                f"{repetitions} repetitions: medians\n"
                f"  {'':12}{'graphs/s':>12}{'graphs/CPU s':>14}{'x PyG':>12}{'CPU':>10}"
            )
            results["speed"] += race(kinds, whole, transform, repetitions, count)

        print(f"\nmemory of one rank after {EARLY} epochs, and after {late}")
        results["growth"] = measure_growth(ours, whole, late)
    results["missed"] = [] if arguments.quick else missed_floors(results)
    for line in results["missing"]:
        print(f"NOT THERE YET: {line}")
    for line in results["missed"]:
        print(f"NOT REACHED: {line}")
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2))
    if not results["missed"] and not arguments.quick:
        print("\nall floors reached")
    return 1 if results["missed"] or (results["missing"] and not arguments.quick) else 0


if __name__ == "__main__":
    sys.exit(main())
