"""Cross-validation on collections of graphs as in "A Fair Comparison of Graph Neural Networks for Graph Classification"
(https://arxiv.org/abs/1912.09893): the test fold decides nothing.

    python benchmarks/cross_validation.py --data ~/Downloads --work cv                    all of them
    python benchmarks/cross_validation.py tu_mutag --data ~/Downloads --work cv --folds 0 1
    torchrun --standalone --nproc-per-node 2 benchmarks/cross_validation.py tu_mutag --data ~/Downloads --work cv2
    python benchmarks/cross_validation.py --quick --data ~/Downloads     an epoch of one fold: shows that it runs

Of each of ten folds: every setting of a small grid is trained on what is left of the other nine without a tenth, which
validates; the setting with the best validation figure is trained three times more, with other seeds; each of these runs
stops by its validation figure, and is scored once on the test fold. A fold's figure is the mean of the three, and the
table has the mean and the standard deviation of the ten.

Each training is one run of `disttrain` by its own function, with the files of `configs/`, all of them in one process of
each rank. `sampling.batch_size` is divided among the ranks, so that a step is the same whatever their number. Finished
trainings are kept in `--work` and not repeated, and one that was cut short goes on from its checkpoint.
Ends with exit code 1 where a mean is below what the project holds itself to.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))
os.environ.setdefault("OMP_NUM_THREADS", "1")

from disttrain.config.file import read_experiment  # noqa: E402
from disttrain.train import job  # noqa: E402
from disttrain.world import World  # noqa: E402
from examples.lay_out_data import lay_out  # noqa: E402

FOLDS = 10
FINAL_SEEDS = (1, 2, 3)
SELECTION_SEED = 0


@dataclass(frozen=True)
class Case:
    """One file of `configs/`, and what its figure is held against."""

    data: str
    """What `lay_out` calls it."""
    published: str
    must: float
    """The mean, in percent, is not below it."""
    grid: tuple[tuple[str, ...], ...]
    """Settings to choose from: overrides of the file."""


CASES = {
    "tu_mutag": Case(
        "tu MUTAG",
        "GIN 89.4 (arXiv:1810.00826, by an easier protocol)",
        84.0,
        (
            ("model.head_norm=none", "train.lr=0.003"),
            ("model.head_norm=batch", "train.lr=0.003"),
            ("model.head_norm=batch", "train.lr=0.01"),
            ("model.head_norm=batch", "model.pooling=mean", "train.lr=0.01"),
        ),
    ),
    "tu_enzymes": Case("tu ENZYMES", "GIN 59.6", 55.0, (("train.lr=0.01",), ("train.lr=0.005",))),
    "tu_proteins": Case("tu PROTEINS", "GIN 73.3", 72.0, (("model.pooling=mean",), ("model.pooling=sum",))),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("configs", nargs="*", help=f"which, of {', '.join(CASES)}; none: all")
    parser.add_argument("--data", type=Path, required=True, help="folder that holds the downloads")
    parser.add_argument("--work", type=Path, help="folder to work in, and to keep the runs in; none: a temporary one")
    parser.add_argument("--folds", type=int, nargs="*", default=range(FOLDS), help=f"which, of 0 to {FOLDS - 1}")
    parser.add_argument("--quick", action="store_true", help="one fold, one epoch, and no expectations")
    parser.add_argument("--select-only", action="store_true", help="only choose settings; nothing is tested")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="overrides, for trying settings")
    options = parser.parse_args()
    unknown = [name for name in options.configs if name not in CASES]
    if unknown:
        parser.error(f"there is no case {', '.join(unknown)}; there are {', '.join(CASES)}")
    if options.quick:
        options.folds, options.set = range(1), [*options.set, "train.epochs=1"]
    if options.work is None and "RANK" in os.environ:
        parser.error("--work is needed with several ranks: they work in one folder")
    options.data = options.data.resolve()
    with tempfile.TemporaryDirectory() as temporary, World.start(device="cpu") as world:
        work = (options.work or Path(temporary)).resolve()
        work.mkdir(parents=True, exist_ok=True)
        os.chdir(work)
        found = world.lead(lambda: lay_out(options.data, work / "data"), "laying out the data")
        return report({name: CASES[name] for name in options.configs or CASES}, found, options, world)


def report(cases: dict[str, Case], found: dict[str, Path | None], options: argparse.Namespace, world: World) -> int:
    """Run and print one row per case; 1 where one is missed."""
    say(world, "| config | ranks | folds | test accuracy | validation | chosen | published | hours |")
    say(world, "|---|--:|--:|--:|--:|---|---|--:|")
    missed = []
    for name, case in cases.items():
        if found[case.data] is None:
            say(world, f"{name}: {case.data} was not found, left out", sys.stderr)
            continue
        folds = [fold_of(name, case, fold, options, world) for fold in options.folds]
        tests, vals, chosen = zip(*folds, strict=True)
        row = (
            name, world.size, len(folds), f"{statistics.mean(tests):.1f} ± {statistics.pstdev(tests):.1f}",
            f"{statistics.mean(vals):.1f}",
            "; ".join(f"{' '.join(setting) or 'as it is'}: {n}" for setting, n in Counter(chosen).most_common()),
            case.published, f"{_seconds(name, world) / 3600:.2f}",
        )  # fmt: skip
        say(world, f"| {' | '.join(map(str, row))} |")
        if statistics.mean(tests) < case.must and not (options.quick or options.select_only):
            missed.append(f"{name}: {statistics.mean(tests):.1f} is below {case.must:g}")
    say(world, "\n".join(missed), sys.stderr)
    return 1 if missed else 0


def fold_of(
    name: str, case: Case, fold: int, options: argparse.Namespace, world: World
) -> tuple[float, float, tuple[str, ...]]:
    """Test and validation accuracy in percent, and the setting that was chosen."""
    where = [f"data.split.fold={fold}", *options.set]
    tried = [train(name, fold, [*where, *setting], SELECTION_SEED, world) for setting in case.grid]
    best = max(range(len(tried)), key=lambda n: (*_merit(tried[n]), -n))
    setting = case.grid[best]
    val, test = tried[best]["val"]["accuracy"], float("nan")
    if not options.select_only:
        finals = [train(name, fold, [*where, *setting], seed, world) for seed in FINAL_SEEDS]
        val = statistics.mean(run["val"]["accuracy"] for run in finals)
        test = statistics.mean(run["test"]["accuracy"] for run in finals)
    tries = ", ".join(f"{100 * run['val']['accuracy']:.1f} ({run['val']['loss']:.3f})" for run in tried)
    say(
        world,
        f"{time.strftime('%H:%M:%S')} {name} fold {fold}: validation (loss) of the settings {tries}; chosen "
        f"{' '.join(setting) or 'as it is'}: test {100 * test:.1f}, validation {100 * val:.1f}",
        sys.stderr,
    )
    return 100 * test, 100 * val, setting


def _merit(run: dict[str, Any]) -> tuple[float, float]:
    """How good a setting is, by validation alone: by what its epoch was chosen by (`train.best_metric`, accuracy or
    loss), and then by the other."""
    accuracy, loss = run["val"]["accuracy"], run["val"]["loss"]
    return (-loss, accuracy) if run["best_metric"] == "loss" else (accuracy, -loss)


def train(name: str, fold: int, overrides: list[str], seed: int, world: World) -> dict[str, Any]:
    """One run in the current folder; what its summary.json says."""
    experiment = read_experiment(REPOSITORY / "configs" / f"{name}.yaml", [*overrides, f"seed={seed}"])
    called = hashlib.blake2b(experiment.model_dump_json().encode(), digest_size=6).hexdigest()
    directory = Path("runs") / name / f"ranks-{world.size}" / f"fold-{fold}" / f"{called}-{seed}"
    done = world.lead(lambda: finished(directory), "looking for a finished run")
    if done is not None:
        return done
    batch_size, rest = divmod(experiment.sampling.batch_size, world.size)
    if rest:
        raise SystemExit(f"{name}: {world.size} ranks do not divide batches of {experiment.sampling.batch_size}")
    sampling = experiment.sampling.model_copy(update={"batch_size": batch_size})
    with quiet(Path(f"log-{world.rank}.txt")):
        summary = job.run(experiment.model_copy(update={"sampling": sampling, "run_dir": str(directory)}), world)
    if world.is_lead:
        shutil.rmtree(directory / "checkpoints")
    return summary


def finished(directory: Path) -> dict[str, Any] | None:
    """What summary.json of a run that is done says."""
    return json.loads((directory / "summary.json").read_text()) if (directory / "DONE").exists() else None


@contextlib.contextmanager
def quiet(log: Path) -> Iterator[None]:
    """What a run says goes into a file, of the latest run."""
    with open(log, "w") as file, contextlib.redirect_stdout(file):
        yield


def _seconds(name: str, world: World) -> float:
    """Of all trainings that are kept, whenever they were."""
    kept = (Path("runs") / name / f"ranks-{world.size}").rglob("summary.json")
    return sum(json.loads(path.read_text())["seconds"]["total"] for path in kept)


def say(world: World, text: str, file: Any = None) -> None:
    if world.is_lead and text:
        print(text, file=file or sys.stdout, flush=True)


if __name__ == "__main__":
    sys.exit(main())
