"""How good the cuts are, and what they cost: time, and memory without what is mapped from files.

    python benchmarks/partition.py configs/mag_like.yaml                 cuts of the graph of an experiment
    python benchmarks/partition.py my.yaml --parts 4 16 data.root=/elsewhere
    python benchmarks/partition.py my.yaml --cut-only                    in one process, nothing written, no memory
    python benchmarks/partition.py --edges 5_000_000 20_000_000 100_000_000 --parts 8
                               memory-mapped graphs of growing size, made in --folder, and the growth law
    python benchmarks/partition.py --quick                               shows that it runs, measures nothing

Unless --cut-only is given, every row is measured in a process of its own: cutting and writing, from a graph that is
loaded already. Balance is the largest part over its fair share: 1 is perfect. `anonymous` is the peak of RssAnon, read
every 20 ms, with Python and torch in it: memory that cannot be had back, unlike pages of mapped files. `peak` is
VmHWM, which counts those too.
--limit-gb sets RLIMIT_DATA in these processes: an allocation beyond it fails.

`clusterdata` is PyG's own ClusterData, where torch-sparse or pyg-lib is installed with METIS. It takes homogeneous
graphs only: all types as one, without weights and with one constraint. `pymetis` is the same by the library used here.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import resource
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import mapped_graph
import numpy as np
import torch
import torch_geometric.typing
from torch_geometric.data import Data
from torch_geometric.loader import ClusterData

from disttrain.config import ExperimentError, Partition
from disttrain.config.file import read_experiment
from disttrain.data import load
from disttrain.graph.arrays import GraphArrays, graph_arrays
from disttrain.graph.cut_figures import balance, edge_cut
from disttrain.graph.metis import metis_parts
from disttrain.graph.partitioner import partition
from disttrain.graph.random_cut import random_parts
from disttrain.graph.streaming_cut import streamed_parts

METHODS = ("metis", "ldg", "fennel", "random", "pymetis", "clusterdata")
BY_PYG = ("pymetis", "clusterdata")
COLUMNS = (
    "graph", "method", "parts", "edges cut", "by relation", "balance by type", "seeds",
    "wall s", "CPU s", "anonymous MB", "peak MB",
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", nargs="?", help="a YAML file; only its sections `data` and `task` matter")
    parser.add_argument("overrides", nargs="*", help="key.path=value")
    parser.add_argument("--edges", type=int, nargs="+", default=[], help="sizes of memory-mapped graphs")
    parser.add_argument("--parts", type=int, nargs="+", default=[2, 3, 8])
    parser.add_argument("--methods", nargs="+", default=_methods_here(), choices=METHODS)
    parser.add_argument(
        "--folder", help="for graphs and partitions, which are removed; default: that of temporary files"
    )
    parser.add_argument("--limit-gb", type=float, help="of memory that is not mapped from files, in each process")
    parser.add_argument(
        "--cut-only", action="store_true", help="compare the cuts of an experiment's graph, in one process"
    )
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_intermixed_args()
    if options.quick:
        options.edges, options.parts, options.methods = [20_000, 40_000], [3], ["metis", "ldg", "pymetis"]
    apart = _call if options.quick else _apart
    if bool(options.experiment) == bool(options.edges):
        parser.error("name an experiment, or --edges")
    if options.cut_only:
        if not options.experiment:
            parser.error("--cut-only: name an experiment")
        compare_cuts(options.experiment, options.overrides, options.methods, options.parts)
        return 0
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        if options.experiment:
            sources: list[Any] = [(options.experiment, options.overrides)]
        else:
            sources = [Path(folder) / f"{edges / 1e6:g}M" for edges in options.edges]
        measured: dict[tuple[str, int], list[tuple[int, dict[str, float]]]] = {}
        for source in sources:
            if isinstance(source, Path):
                apart(mapped_graph.make, source, options.edges[sources.index(source)])
            for method in options.methods:
                for parts in options.parts:
                    row, figures = apart(measure, source, method, parts, folder, options.limit_gb)
                    print(f"| {' | '.join(row[column] for column in COLUMNS)} |", flush=True)
                    if figures and isinstance(source, Path):
                        size = options.edges[sources.index(source)]
                        measured.setdefault((method, parts), []).append((size, figures))
            if isinstance(source, Path):
                shutil.rmtree(source)
    for (method, parts), sizes in measured.items():
        for (few, before), (many, after) in pairwise(sizes):
            growth = ", ".join(
                f"{what} {after[what] / max(before[what], 1e-9):.2f} times (exponent "
                f"{math.log(max(after[what], 1e-9) / max(before[what], 1e-9)) / math.log(many / few):.2f})"
                for what in after
            )
            print(f"{method}, {parts} parts, {few:,} to {many:,} edges ({many / few:g} times): {growth}")
    return 0


def _methods_here() -> list[str]:
    has_metis = torch_geometric.typing.WITH_METIS or torch_geometric.typing.WITH_TORCH_SPARSE
    return [method for method in METHODS if method != "clusterdata" or has_metis]


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


def _apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call it in a fresh process: the peak of memory is never given back."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def measure(
    source: Any, method: Any, parts: int, folder: str, limit_gb: float | None
) -> tuple[dict[str, str], dict[str, float] | None]:
    """One row of the table, and its figures for the growth law; None if the method refused."""
    if isinstance(source, Path):
        name, data, keys, info, seed = source.name, mapped_graph.load(source), {}, {}, 0
    else:
        experiment = read_experiment(*source)
        loaded = load(experiment.data, experiment.task)
        name, data, keys, info = experiment.name, loaded.data, loaded.keys, loaded.info
        seed = experiment.partition.seed
    target = Path(folder) / "p"

    def run(method: Any, graph: Any, target: Path) -> tuple[dict[str, Any], dict[str, Any]]:
        if method in BY_PYG:
            arrays = graph_arrays(graph)
            part_of = as_pyg_does(arrays, parts, by_pyg=method == "clusterdata")
            return edge_cut(arrays, part_of), balance(arrays, part_of, parts)
        settings = Partition(parts=parts, method=method, seed=seed)
        manifest = partition(
            graph, keys if graph is data else {}, info, settings, parts, target, "b", lambda line: None
        )
        return manifest["edge_cut"], manifest["balance"]

    # Compiling, or loading what was compiled, is not what is measured.
    mapped_graph.make(target.with_name("small"), 3000)
    run(method, mapped_graph.load(target.with_name("small")), target)
    shutil.rmtree(target, ignore_errors=True)
    shutil.rmtree(target.with_name("small"))
    if limit_gb:
        resource.setrlimit(resource.RLIMIT_DATA, (int(limit_gb * 1e9), resource.RLIM_INFINITY))
    peak = AnonymousPeak()
    wall, cpu = time.monotonic(), time.process_time()
    try:
        cut, how_even = run(method, data, target)
    except (ExperimentError, MemoryError) as error:
        text = "refused: " + str(error).split("; ")[0] if isinstance(error, ExperimentError) else "out of memory"
        return {
            **dict.fromkeys(COLUMNS, "-"),
            "graph": name,
            "method": method,
            "parts": str(parts),
            "edges cut": text,
        }, None
    finally:
        wall, cpu = time.monotonic() - wall, time.process_time() - cpu
        anonymous = peak.stop()
        shutil.rmtree(target, ignore_errors=True)
    highest = _status("VmHWM")
    return {
        "graph": name,
        "method": method,
        "parts": str(parts),
        **_quality(cut, how_even),
        "wall s": f"{wall:.1f}",
        "CPU s": f"{cpu:.1f}",
        "anonymous MB": f"{anonymous / 1e6:,.0f}",
        "peak MB": f"{highest / 1e6:,.0f}",
    }, {"CPU time": cpu, "wall time": wall, "anonymous memory": anonymous}


def compare_cuts(experiment_file: str, overrides: list[str], methods: list[str], parts: list[int]) -> None:
    """A table of the cuts of one graph."""
    experiment = read_experiment(experiment_file, overrides)
    graph, seed = graph_arrays(load(experiment.data, experiment.task).data), experiment.partition.seed
    find: dict[str, Callable[[GraphArrays, int], dict[str, np.ndarray]]] = {
        "metis": lambda graph, number: metis_parts(graph, number, seed),
        "ldg": lambda graph, number: streamed_parts(graph, number, seed, "ldg"),
        "fennel": lambda graph, number: streamed_parts(graph, number, seed, "fennel"),
        "random": lambda graph, number: random_parts(graph, number, seed),
        "pymetis": as_pyg_does,
        "clusterdata": lambda graph, number: as_pyg_does(graph, number, by_pyg=True),
    }
    columns = [*COLUMNS[:7], "CPU s"]
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for method in methods:
        for number in parts:
            started = time.process_time()
            part_of = find[method](graph, number)
            cpu = time.process_time() - started
            quality = _quality(edge_cut(graph, part_of), balance(graph, part_of, number))
            print(
                f"| {experiment.name} | {method} | {number} | {' | '.join(quality.values())} | {cpu:.1f} |", flush=True
            )


def _quality(cut: dict[str, Any], how_even: dict[str, Any]) -> dict[str, str]:
    seeds = how_even["train_seeds"]
    return {
        "edges cut": f"{cut['total']:.1%}",
        "by relation": _span(list(cut["per_relation"].values()), "{:.1%}"),
        "balance by type": _span(list(how_even["per_type"].values()), "{:.3f}"),
        "seeds": f"{max(seeds) * len(seeds) / max(sum(seeds), 1):.3f}",
    }


def as_pyg_does(graph: GraphArrays, parts: int, by_pyg: bool = False) -> dict[str, np.ndarray]:
    """METIS on all node types as one, every edge alike, only the number of nodes in balance."""
    import pymetis
    from scipy import sparse

    counts = [nodes.count for nodes in graph.nodes.values()]
    offset = dict(zip(graph.nodes, np.cumsum([0, *counts])))
    src = np.concatenate([edges.src + offset[src] for (src, _, _), edges in graph.edges.items()])
    dst = np.concatenate([edges.dst + offset[dst] for (_, _, dst), edges in graph.edges.items()])
    ends = np.concatenate([src, dst]), np.concatenate([dst, src])
    matrix = sparse.csr_matrix((np.ones(len(ends[0]), dtype=np.int8), ends), shape=(sum(counts),) * 2)
    matrix.setdiag(0)
    matrix.eliminate_zeros()
    if by_pyg:
        edge_index = torch.from_numpy(np.stack(matrix.nonzero()).astype(np.int64))
        made = ClusterData(Data(edge_index=edge_index, num_nodes=sum(counts)), parts, log=False).partition
        part = np.empty(sum(counts), np.int64)
        part[made.node_perm.numpy()] = np.repeat(np.arange(parts), np.diff(made.partptr.numpy()))
    else:
        adjacency = pymetis.CSRAdjacency(matrix.indptr, matrix.indices)
        _, part = pymetis.part_graph(parts, adjacency, recursive=False)
    return dict(zip(graph.nodes, np.split(np.asarray(part), np.cumsum(counts)[:-1])))


class AnonymousPeak:
    """The most anonymous memory that this process has had since."""

    def __init__(self) -> None:
        self._most = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._done.wait(0.02):
            self._most = max(self._most, _status("RssAnon"))

    def stop(self) -> int:
        self._done.set()
        self._thread.join()
        return max(self._most, _status("RssAnon"))


def _status(key: str) -> int:
    """Bytes, from /proc/self/status."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    return 0


def _span(values: list[float], form: str) -> str:
    """The smallest and the largest."""
    return f"{form.format(min(values))} to {form.format(max(values))}"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ExperimentError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
