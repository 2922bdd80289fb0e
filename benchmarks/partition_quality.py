"""How good the cuts are: edges between parts, balance of every node type and of the training seeds, and what they cost.

    python benchmarks/partition_quality.py configs/mag_like.yaml                      the table of docs/partition.md
    python benchmarks/partition_quality.py my.yaml --parts 4 16 data.root=/elsewhere

Balance is the largest part over its fair share: 1 is perfect. CPU seconds and the peak of memory are those of cutting
and writing in a process of its own; the peak includes the graph itself.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from disttrain.config import ExperimentError, Partition
from disttrain.config.file import read_experiment
from disttrain.data import load
from disttrain.graph.metis import metis_parts
from disttrain.graph.partitioner import partition
from disttrain.graph.random_cut import random_parts

METHODS = {"metis": metis_parts, "random": random_parts}
COLUMNS = ("graph", "method", "parts", "edges cut", "by relation", "balance by type", "seeds", "CPU s", "MB", "peak MB")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", help="a YAML file; only its section `data` and its task's node type matter")
    parser.add_argument("overrides", nargs="*", help="key.path=value")
    parser.add_argument("--parts", type=int, nargs="+", default=[2, 3, 8])
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    options = parser.parse_intermixed_args()
    # A fresh process for each row: the peak of memory is never given back.
    context = multiprocessing.get_context("spawn")
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    for method in options.methods:
        for parts in options.parts:
            with context.Pool(1) as pool:
                row = pool.apply(measure, (options.experiment, options.overrides, method, parts))
            print(f"| {' | '.join(row[column] for column in COLUMNS)} |", flush=True)
    return 0


def measure(experiment_file: str, overrides: list[str], method: Any, parts: int) -> dict[str, str]:
    """One row of the table."""
    experiment = read_experiment(experiment_file, overrides)
    loaded = load(experiment.data, experiment.task)
    settings = Partition(parts=parts, method=method, seed=experiment.partition.seed)
    with tempfile.TemporaryDirectory() as folder:
        # Compiling, or loading what was compiled, is not what is measured.
        METHODS[method](small_graph(), 2, 0)
        started = time.process_time()
        manifest = partition(
            loaded.data, loaded.keys, loaded.info, settings, parts, Path(folder) / "p", "benchmark", lambda line: None
        )
        seconds = time.process_time() - started
    cut, balance = manifest["edge_cut"], manifest["balance"]
    seeds = balance["train_seeds"]
    return {
        "graph": experiment.name,
        "method": method,
        "parts": str(parts),
        "edges cut": f"{cut['total']:.1%}",
        "by relation": span(list(cut["per_relation"].values()), "{:.1%}"),
        "balance by type": span(list(balance["per_type"].values()), "{:.3f}"),
        "seeds": f"{max(seeds) * parts / max(sum(seeds), 1):.3f}",
        "CPU s": f"{seconds:.1f}",
        "MB": f"{sum(entry['bytes'] for entry in manifest['files'].values()) / 1e6:,.0f}",
        "peak MB": f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3:,.0f}",
    }


def small_graph() -> Any:
    from torch_geometric.data import HeteroData

    from disttrain.config import GeneratedData, GeneratedEdges, GeneratedNodes
    from disttrain.data.generated import generate
    from disttrain.graph.arrays import graph_arrays

    data: HeteroData = generate(
        GeneratedData(
            source="generated",
            nodes={"node": GeneratedNodes(num_nodes=100)},
            edges={"node,to,node": GeneratedEdges(num_edges=300)},
        )
    )
    return graph_arrays(data)


def span(values: list[float], form: str) -> str:
    """The smallest and the largest."""
    return f"{form.format(min(values))} to {form.format(max(values))}"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ExperimentError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
