"""Accuracy on real data, beside the published figures: complete experiments of `configs/`, by the real command.

    python benchmarks/accuracy.py --data ~/Downloads            all of them, three seeds each (AIFB ten)
    python benchmarks/accuracy.py aifb hgb_acm --data ~/Downloads --ranks 2
    python benchmarks/accuracy.py --quick --data ~/Downloads    an epoch of each: shows that it runs, measures nothing

`--data` is a folder with the downloads that `examples/lay_out_data.py` knows; they are laid out in the folder in which
everything is done (`--work`; runs that are finished there are not repeated). What is not found is left out, and said.
Ends with exit code 1 where a mean is below what the project holds itself to.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from examples.lay_out_data import lay_out  # noqa: E402


@dataclass(frozen=True)
class Case:
    """One file of `configs/`, and what its figure is held against."""

    data: str
    """What `lay_out` calls it."""
    metric: str
    published: str
    must: float
    """The mean, in percent, is not below it."""
    seeds: int = 3


CASES = {
    "hgb_dblp": Case("hgb DBLP", "micro_f1", "Simple-HGN 94.46", 93.49),
    "hgb_dblp_rgcn": Case("hgb DBLP", "micro_f1", "R-GCN 92.07", 91.07),
    "hgb_dblp_hgt": Case("hgb DBLP", "micro_f1", "HGT 93.49", 92.49),
    "hgb_dblp_rgat": Case("hgb DBLP", "micro_f1", "GAT 93.39", 92.39),
    "hgb_acm": Case("hgb ACM", "micro_f1", "R-GCN 91.41, HGT 91.00, Simple-HGN 93.35", 91.0),
    "pyg_imdb": Case("pyg imdb", "micro_f1", "", 56.0),
    "pyg_dblp": Case("pyg dblp", "accuracy", "", 93.0),
    "aifb": Case("aifb", "accuracy", "R-GCN 95.83", 93.0, seeds=10),
    "cora": Case("cora", "accuracy", "GCN 81.5", 80.5),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("configs", nargs="*", help=f"which, of {', '.join(CASES)}; none: all")
    parser.add_argument("--data", type=Path, required=True, help="folder that holds the downloads")
    parser.add_argument("--work", type=Path, help="folder to work in, and to keep the runs in; none: a temporary one")
    parser.add_argument("--seeds", type=int, help="how many; none: as many as each case says")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="one seed, one epoch, and no expectations")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="overrides, for trying settings")
    options = parser.parse_args()
    unknown = [name for name in options.configs if name not in CASES]
    if unknown:
        parser.error(f"there is no case {', '.join(unknown)}; there are {', '.join(CASES)}")
    with tempfile.TemporaryDirectory() as temporary:
        work = (options.work or Path(temporary)).resolve()
        found = lay_out(options.data, work / "data")
        return report({name: CASES[name] for name in options.configs or CASES}, found, work, options)


def report(cases: dict[str, Case], found: dict[str, Path | None], work: Path, options: argparse.Namespace) -> int:
    """Run and print one row per case; 1 where one is missed."""
    print(
        "| config | metric | mean | std | seeds | val | published | seconds a run |\n|---|---|--:|--:|--:|--:|---|--:|"
    )
    missed = []
    for name, case in cases.items():
        if found[case.data] is None:
            print(f"{name}: {case.data} was not found, left out", file=sys.stderr)
            continue
        count = 1 if options.quick else options.seeds or case.seeds
        runs = [run(name, seed, work, options) for seed in range(count)]
        scores = [100 * summary["test"][case.metric] for summary in runs]
        vals = [100 * summary["val"][case.metric] for summary in runs if summary.get("val")]
        mean, deviation = statistics.mean(scores), statistics.pstdev(scores)
        row = (
            name, case.metric, f"{mean:.2f}", f"{deviation:.2f}", count,
            f"{statistics.mean(vals):.2f}" if vals else "-", case.published or "-",
            f"{statistics.mean(summary['seconds']['total'] for summary in runs):.0f}",
        )  # fmt: skip
        print(f"| {' | '.join(map(str, row))} |", flush=True)
        if mean < case.must and not options.quick:
            missed.append(f"{name}: {mean:.2f} is below {case.must}")
    print("\n".join(missed), file=sys.stderr)
    return 1 if missed else 0


def run(name: str, seed: int, work: Path, options: argparse.Namespace) -> dict[str, Any]:
    """One run of the real command in `work`; what its summary.json says."""
    launcher = [sys.executable]
    if options.ranks > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(options.ranks)]
    label = f"{name}-{options.ranks}-{seed}"
    command = [
        *launcher, "-m", "disttrain", str(REPOSITORY / "configs" / f"{name}.yaml"),
        f"name={label}", f"seed={seed}", *(["train.epochs=1"] if options.quick else []), *options.set,
    ]  # fmt: skip
    environment = {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": str(REPOSITORY)}
    ended = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True)
    if ended.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {ended.returncode}:\n{ended.stdout}{ended.stderr}")
    return json.loads((work / "runs" / label / "summary.json").read_text())


if __name__ == "__main__":
    sys.exit(main())
