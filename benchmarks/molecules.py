"""Graph regression on molecules, beside the published figures and beside always saying the mean.

    python benchmarks/molecules.py --data ~/Downloads --work molecules            all of them, three seeds each
    python benchmarks/molecules.py esol qm9_gap --data ~/Downloads --work molecules --seeds 1

Complete experiments of `configs/`, run in this process one after the other; the split is that of the file, seeds are
of first weights, shuffles and dropout. The epoch is chosen by the validation split, the test split is scored once. Runs
that are finished are kept in `--work` and not repeated. ESOL needs RDKit.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np  # noqa: E402

from benchmarks.cross_validation import finished, quiet  # noqa: E402
from disttrain.config.file import read_experiment  # noqa: E402
from disttrain.graph.schema import GRAPH  # noqa: E402
from disttrain.train import job  # noqa: E402
from disttrain.train.collections import prepare_collection  # noqa: E402
from disttrain.world import World  # noqa: E402
from examples.lay_out_data import lay_out  # noqa: E402


@dataclass(frozen=True)
class Case:
    """One file of `configs/`, and what its figure is held against."""

    data: str
    """What `lay_out` calls it."""
    metric: str
    published: str


_ESOL = "MPNN 0.58, Weave 0.61, GC 0.97, XGBoost 0.99 (random split, MoleculeNet, arXiv:1703.00564)"
CASES = {
    "esol": Case("esol", "rmse", _ESOL),
    "esol_gps": Case("esol", "rmse", _ESOL),
    "esol_rings": Case("esol", "rmse", _ESOL),
    "qm9_gap": Case("qm9", "mae", "SchNet 0.063 eV, trained on 110,000 molecules (arXiv:1706.08566); here 5,234"),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("configs", nargs="*", help=f"which, of {', '.join(CASES)}; none: all")
    parser.add_argument("--data", type=Path, required=True, help="folder that holds the downloads")
    parser.add_argument("--work", type=Path, required=True, help="folder to work in, and to keep the runs in")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="overrides, for trying settings")
    options = parser.parse_args()
    unknown = [name for name in options.configs if name not in CASES]
    if unknown:
        parser.error(f"there is no case {', '.join(unknown)}; there are {', '.join(CASES)}")
    data, work = options.data.resolve(), options.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    os.chdir(work)
    found = lay_out(data, work / "data")
    print("| config | metric | test | the mean of the training graphs | validation | published | seconds a run |")
    print("|---|---|--:|--:|--:|---|--:|", flush=True)
    with World.start(device="cpu") as world:
        for name in options.configs or CASES:
            if found[CASES[name].data] is None:
                print(f"{name}: {CASES[name].data} was not found, left out", file=sys.stderr)
            else:
                print(row(name, CASES[name], options, world), flush=True)
    return 0


def row(name: str, case: Case, options: argparse.Namespace, world: World) -> str:
    runs = []
    for seed in range(options.seeds):
        directory = Path("runs") / f"{name}-{seed}"
        overrides = [f"seed={seed}", f"run_dir={directory}", *options.set]
        experiment = read_experiment(REPOSITORY / "configs" / f"{name}.yaml", overrides)
        summary = finished(directory)
        if summary is None:
            with quiet(Path("log.txt")):
                summary = job.run(experiment, world)
            shutil.rmtree(directory / "checkpoints")
        runs.append(summary)
    with quiet(Path("log.txt")):
        graphs = prepare_collection(experiment, world)
    labels = graphs.node_attribute(GRAPH, "y")
    errors = labels[graphs.masks["test_mask"]] - labels[graphs.masks["train_mask"]].mean()
    plain = np.abs(errors).mean() if case.metric == "mae" else np.sqrt(np.square(errors).mean())
    tests, vals = ([run[split][case.metric] for run in runs] for split in ("test", "val"))
    cells = (
        name, case.metric, f"{statistics.mean(tests):.3f} ± {statistics.pstdev(tests):.3f}", f"{plain:.3f}",
        f"{statistics.mean(vals):.3f}", case.published,
        f"{statistics.mean(run['seconds']['total'] for run in runs):.0f}",
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
