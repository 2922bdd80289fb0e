"""What drawing by weight, by time, in trees and by share of the degree costs, beside plain draws and PyG's own loader.

    python benchmarks/sampling_kinds.py            the graph of configs/mag_like.yaml; 5 minutes, 1.5 GB of memory
    python benchmarks/sampling_kinds.py --quick    a graph of a twentieth: shows that it runs, measures nothing

One rank, one worker thread, batches of 512 seeds with their features at fanouts [10, 5]. The kinds take turns, so a
busy machine slows all of them down; CPU time counts. Every edge has a weight (an exponential number) and every edge and
paper a time, such that about half of all neighbours are not too late. PyG's loader draws by weight and by time with
pyg-lib only: without it that column is not measured.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch_geometric.typing
from sampling import BATCH_SIZE, CONFIG, bare, shrunk
from torch_geometric.data import HeteroData
from torch_geometric.loader import NeighborLoader

from disttrain.config import Partition, Sampling, Share
from disttrain.config.file import read_experiment
from disttrain.data import load
from disttrain.graph.graph import Graph
from disttrain.graph.partitioner import partition
from disttrain.graph.schema import Wants
from disttrain.sampling import NodeLoader, Seeds, split_seeds
from disttrain.world import World

FANOUT = (10, 5)
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "share {ratio: 0.5, max: 10}": {"fanout": (Share(ratio=0.5, max=10), Share(ratio=0.5, max=5))},
    "weights": {"weight_attr": "weight"},
    "weights, replace": {"weight_attr": "weight", "replace": True},
    "trees": {"disjoint": True},
    "times, uniform": {"time_attr": "when"},
    "times, last": {"time_attr": "when", "temporal_strategy": "last"},
    "times and weights": {"time_attr": "when", "weight_attr": "weight"},
}

NOT_IN_PYG = ("share {ratio: 0.5, max: 10}", "times and weights")


def dated(data: HeteroData) -> HeteroData:
    """The graph with a weight and a time for every edge, and a time for every node that is a seed."""
    rng = np.random.default_rng(0)
    for store in data.edge_stores:
        num_edges = store.edge_index.size(1)
        store.weight = torch.from_numpy(rng.exponential(size=num_edges).astype(np.float32))
        store.when = torch.from_numpy(rng.integers(0, 1000, num_edges))
    data["paper"].when = torch.from_numpy(rng.integers(0, 1000, data["paper"].num_nodes))
    return data


def make_loader(world: World, graph: Graph, kind: dict[str, Any], num_batches: int) -> NodeLoader:
    split = split_seeds(world, graph, "paper", "train_mask", "when" if "time_attr" in kind else None)
    chosen = np.sort(np.random.default_rng(0).permutation(len(split))[: num_batches * BATCH_SIZE])
    seeds = Seeds(
        split.ids[chosen], split.original[chosen], None if split.times is None else split.times[chosen]
    )  # fmt: skip
    settings: dict[str, Any] = {"fanout": FANOUT, "batch_size": BATCH_SIZE, "workers": 1, **kind}
    wants = Wants(nodes={t: ("x",) for t, n in graph.schema.nodes.items() if "x" in n.attributes})
    return NodeLoader(
        world, graph, "paper", seeds, sampling=Sampling(**settings), run_seed=0, wants=wants, training=True
    )  # fmt: skip


def time_ours(loader: NodeLoader, epoch: int) -> tuple[float, int]:
    """Seeds per CPU second, and nodes in the batches."""
    nodes, cpu = 0, time.process_time()
    for batch in loader.batches(epoch):
        nodes += batch.num_nodes or 0
    return len(loader.seeds) / (time.process_time() - cpu), nodes


def time_pyg(data: HeteroData, kind: dict[str, Any], num_batches: int) -> float | None:
    """Seeds per CPU second of PyG's own loader; None where it cannot draw so."""
    if not torch_geometric.typing.WITH_PYG_LIB or kind in [KINDS[name] for name in NOT_IN_PYG]:
        return None
    graph = bare(data)
    for store in graph.edge_stores:
        for key in ("weight", "when"):
            if key in (kind.get("weight_attr"), kind.get("time_attr")):
                store[key] = data[store._key][key]
    order = torch.randperm(data["paper"].num_nodes, generator=torch.Generator().manual_seed(0))
    seeds = order[: num_batches * BATCH_SIZE]
    times = {"input_time": data["paper"].when[seeds]} if "time_attr" in kind else {}
    loader = NeighborLoader(graph, list(FANOUT), ("paper", seeds), batch_size=BATCH_SIZE, **kind, **times)
    cpu = time.process_time()
    for _ in loader:
        pass
    return len(seeds) / (time.process_time() - cpu)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small graph: shows that it runs, measures nothing")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    experiment = read_experiment(CONFIG)
    experiment = shrunk(experiment, 20) if options.quick else experiment
    repetitions, num_batches = (1, 2) if options.quick else (options.repetitions, 20)
    data = dated(load(experiment.data, experiment.task).data)
    rates: dict[str, list[float]] = {name: [] for name in KINDS}
    pyg: dict[str, list[float]] = {name: [] for name in KINDS}
    nodes: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder, World.start(device="cpu", timeout=60, threads=1) as world:
        partition(data, {}, {}, Partition(parts=1), 1, Path(folder) / "parts", "benchmark", lambda line: None)
        graph = Graph.open(Path(folder) / "parts")
        loaders = {name: make_loader(world, graph, kind, num_batches) for name, kind in KINDS.items()}
        for repetition in range(-1, repetitions):  # the one before compiles, and fills caches
            for name, loader in loaders.items():
                rate, nodes[name] = time_ours(loader, max(repetition, 0))
                other = time_pyg(data, KINDS[name], num_batches)
                if repetition >= 0:
                    rates[name].append(rate)
                    pyg[name] += [] if other is None else [other]
    plain = rates["plain"]
    figures = []
    print(f"fanout {list(FANOUT)}, {BATCH_SIZE} seeds a batch, {repetitions} repetitions: medians")
    print(f"{'':30}{'seeds/CPU s':>12}{'x plain':>9}{'nodes/seed':>12}   PyG's loader")
    for name, own in rates.items():
        against = statistics.median(a / b for a, b in zip(own, plain, strict=True))
        theirs = statistics.median(a / b for a, b in zip(own, pyg[name], strict=True)) if pyg[name] else None
        why = "it has no such draws" if name in NOT_IN_PYG else "not measured: needs pyg-lib"
        per_seed = nodes[name] / (num_batches * BATCH_SIZE)
        print(
            f"{name:30}{statistics.median(own):12,.0f}{against:9.2f}{per_seed:12.1f}   "
            + (f"{theirs:.2f} times as fast" if theirs else why)
        )
        figures.append({"name": name, "seeds_per_cpu_second": own, "of_plain": against, "times_pyg": theirs})
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
