"""How long an epoch of training takes, phase by phase, the way a user runs it: through torchrun and the command line.

    python benchmarks/training.py             configs/mag_like.yaml (120,000 seeds); about 3 minutes
    python benchmarks/training.py --quick     a graph of a twentieth: shows that it runs, measures nothing

Two torchrun agents on this machine stand for two machines, one rank and one thread each, two METIS partitions. The
first epoch (compilation, cold caches) is left out; the median of the others counts. With `--machines 1 --procs 2`, two
ranks of one machine. Exit code 1: an epoch took longer than the project allows itself.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

REPOSITORY = Path(__file__).resolve().parent.parent
LIMIT_SECONDS = 10.0


def train(directory: Path, overrides: list[str], machines: int, procs: int) -> None:
    """One run of the command line under torchrun; its run directory is `directory/run`."""
    experiment = REPOSITORY / "configs" / "mag_like.yaml"
    command = [
        *(sys.executable, "-m", "disttrain", "submit", "local", str(experiment), f"run_dir={directory / 'run'}"),
        *(f"launch.nodes={machines}", f"launch.procs_per_node={procs}"),
        *(f"partition.dir={directory / 'partitions'}", f"partition.parts={machines}"),
        *("train.device=cpu", "train.eval_every=1000", *overrides),
    ]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")]),
    }
    subprocess.run(command, check=True, env=environment, cwd=directory)


def epochs(run: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == "epoch"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machines", type=int, default=2)
    parser.add_argument("--procs", type=int, default=1, help="ranks per machine")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--directory", type=Path, help="where partitions and runs are kept; else a temporary one")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    parser.add_argument("overrides", nargs="*", help="more settings, key.path=value")
    arguments = parser.parse_args()

    overrides = [f"train.epochs={arguments.epochs}", *arguments.overrides]
    if arguments.quick:
        for name, count in (("paper", 10_000), ("author", 5_000), ("institution", 100), ("field", 500)):
            overrides.append(f"data.nodes.{name}.num_nodes={count}")
        for name, count in (("author,writes,paper", 35_000), ("paper,cites,paper", 75_000),
                            ("author,affiliated,institution", 5_000), ("paper,topic,field", 35_000)):  # fmt: skip
            overrides.append(f"data.edges.{name}.num_edges={count}")

    with tempfile.TemporaryDirectory() as temporary:
        directory = (arguments.directory or Path(temporary)).resolve()
        directory.mkdir(parents=True, exist_ok=True)
        train(directory, [*overrides, "--fresh"], arguments.machines, arguments.procs)
        measured = epochs(directory / "run")[1:]
        summary = json.loads((directory / "run" / "summary.json").read_text())
    median = {phase: statistics.median(line["seconds"][phase] for line in measured) for phase in measured[0]["seconds"]}
    seconds, steps = median.pop("train"), summary["steps"] // summary["epochs"]
    seeds = measured[0]["seeds"]
    cpu = statistics.median(line["cpu_seconds"] for line in measured)
    print(
        f"\n{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}, "
        f"{arguments.machines} machines x {arguments.procs} ranks x 1 thread"
    )
    print(
        f"an epoch of training: {seconds:.2f} s, median of {len(measured)}, {steps} steps, {seeds:,} seeds "
        f"({seeds / seconds:,.0f} a second)"
    )
    for phase, value in median.items():
        print(f"  {phase:<16}{value:8.2f} s  {value / seconds:6.1%}  {value / steps * 1000:8.2f} ms a step")
    rest = statistics.median(2 * line["seconds"]["train"] - sum(line["seconds"].values()) for line in measured)
    print(f"  {'the loop itself':<16}{rest:8.2f} s  {rest / seconds:6.1%}  {rest / steps * 1000:8.2f} ms a step")
    print(
        f"CPU time of a rank, all its threads: {cpu:.2f} s an epoch (beyond the wall time where ranks wait for cores)"
    )
    print(
        f"exchanged: {summary['bytes_exchanged'] / 2**20:,.0f} MiB, "
        f"{summary['exchanges_per_batch']:g} exchanges a batch"
    )
    print(f"peak memory of a rank: {max(summary['peak_rss_bytes']) / 2**30:.2f} GiB; val {summary['val']}")
    if arguments.json:
        figures = {
            "epoch_seconds": seconds,
            "cpu_seconds": cpu,
            "phases": median,
            "epochs": [line["seconds"] for line in measured],
        }
        arguments.json.write_text(json.dumps({**figures, "summary": summary}, indent=2) + "\n")
    if arguments.quick:
        return 0
    print("within" if seconds < LIMIT_SECONDS else "over", f"the limit of {LIMIT_SECONDS:g} s")
    return int(seconds >= LIMIT_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
