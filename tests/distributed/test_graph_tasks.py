"""Learning about the graphs of a collection: the same on one rank as on several, resumed as straight, on real data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from disttrain.config import Experiment, ExperimentError
from disttrain.config.file import read_experiment
from disttrain.train import job
from disttrain.world import World
from examples.lay_out_data import lay_out
from tests.ranks import run_ranks
from tests.training import events

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
SIZES = {"mutag": (188, 17), "proteins": (1113, 100)}
"""Graphs, and how many of them validate."""


def settings(directory: str, name: str, which: str, ranks: int, *more: str) -> Experiment:
    """An experiment of `configs/`, short, without dropout, whose draws differ from rank to rank, and with small steps:
    Adam makes whole ones of gradients that are nothing but rounding. With norms of rows: batch norms (`small` has some)
    divide by the spread of columns, and of molecules many hardly have any, so that rounding grows from step to step."""
    path = CONFIGS / f"tu_{which}.yaml"
    size = read_experiment(path).sampling.batch_size
    return read_experiment(
        path,
        [
            f"data.root={directory}/data/tu", f"run_dir={directory}/runs/{name}",
            f"sampling.batch_size={size // ranks}",
            "model.norm=layer", "model.dropout=0", "model.head_dropout=0",
            "train.epochs=2", "train.log_every=1", "train.threads=1",
            "train.early_stop=null", "train.scheduler.kind=constant", "train.best_metric=accuracy",
            "train.optimizer=sgd", "train.momentum=0",
            "train.lr=0.001", *more,
        ],
    )  # fmt: skip


def train(world: World, directory: str, name: str, *more: str) -> list[dict[str, Any]]:
    return [job.run(settings(directory, f"{name} {which}", which, world.size, *more), world) for which in SIZES]


def losses(directory: Path, name: str) -> list[float]:
    return [event["loss"] for event in events(directory / "runs" / name) if event["event"] == "train"]


@pytest.fixture
def laid_out(tmp_path: Path, real_data: Callable[[str], Path]) -> Path:
    for which in SIZES:
        lay_out(real_data(f"tu-{which.upper()}"), tmp_path / "data")
    return tmp_path


def train_and_resume(world: World, directory: str) -> list[dict[str, Any]]:
    straight = train(world, directory, "spread")
    train(world, directory, "resumed", "train.max_steps=3")
    train(world, directory, "resumed", "data.storage=memory", "sampling.workers=0")
    return straight


def test_two_ranks_learn_what_one_learns_and_resume_exactly(laid_out: Path) -> None:
    (alone,) = run_ranks(train, 1, str(laid_out), "alone", timeout=120)
    spread, _ = run_ranks(train_and_resume, 2, str(laid_out), timeout=120)
    for which, one, other in zip(SIZES, alone, spread, strict=True):
        num_graphs, num_val = SIZES[which]
        straight = losses(laid_out, f"alone {which}")
        assert len(straight) == one["steps"] > 3
        assert losses(laid_out, f"spread {which}") == pytest.approx(straight, rel=1e-4)
        for split in ("val", "test"):
            assert other[split]["loss"] == pytest.approx(one[split]["loss"], rel=1e-4)
            assert other["num_evaluated"] == one["num_evaluated"]
        assert one["num_evaluated"]["val"] == num_val and one["num_evaluated"]["test"] == -(-num_graphs // 10)
        assert losses(laid_out, f"resumed {which}") == losses(laid_out, f"spread {which}")
    folders = list((laid_out / "data" / "tu" / "collections").glob("[!.]*"))
    assert len(folders) == 2, "made once each"


def small(directory: str, name: str, ranks: int, **sections: Any) -> Experiment:
    return Experiment.model_validate(
        {
            "run_dir": f"{directory}/runs/{name}",
            "data": {
                "source": "python", "function": "tests.collections_of_graphs:one_by_one", "store": f"{directory}/store",
                "split": {"by": "folds", "folds": 4, "val": 0.2},
            },
            "task": {"kind": "graph_classification", "class_weights": "balanced"},
            "model": {"kind": "gin", "hidden": 8, "layers": 2, "norm": "batch"},
            "sampling": {"batch_size": 12 // ranks},
            "train": {"epochs": 3, "lr": 0.01, "log_every": 1, "threads": 1, "device": "cpu"},
            **sections,
        }
    )  # fmt: skip


KINDS: dict[str, dict[str, Any]] = {
    "classes": {},
    "numbers": {
        "task": {"kind": "graph_regression", "metrics": ["mae", "r2"]},
        "model": {
            "kind": "gin",
            "hidden": 8,
            "layers": 2,
            "pooling": "max",
            "jumping_knowledge": "lstm",
            "norm": "layer",
        },
    },
    "hetero": {"model": {"kind": "custom", "module": "tests.collections_of_graphs:Pairs"}},
    **{
        kind: {"model": {"kind": kind, "hidden": 8, "layers": 2, **more}}
        for kind, more in {
            "gine": {"head_norm": "batch"},
            "gcn": {"pooling": ["mean", "attention"]},
            "sage": {"norm": "layer"},
            "gat": {"norm": "layer", "heads": 2},
            "pna": {"pooling": "set2set"},
            "gps": {"heads": 2, "conv": "pna"},
            "hetero_conv": {"conv": "gat", "norm": "batch", "pooling": "mean"},
        }.items()
    },
}
FUNCTIONS = {
    "numbers": ("rings", {"numbers": True}),
    "hetero": ("pairs", {}),
    "hetero_conv": ("pairs", {}),
    # 13 graphs to train on: in the last step of an epoch two of three ranks have none.
    "gat": ("one_by_one", {"count": 23}),
    "gps": ("one_by_one", {"count": 23}),
}


def kinds(world: World, directory: str, names: list[str]) -> list[dict[str, Any]]:
    found = []
    for name in names:
        experiment = small(directory, f"{name} {world.size}", world.size, **KINDS[name])
        if name in FUNCTIONS:
            function, args = FUNCTIONS[name]
            data = {**experiment.data.model_dump(), "function": f"tests.collections_of_graphs:{function}", "args": args}
            experiment = Experiment.model_validate({**experiment.model_dump(), "data": data})
        found.append(job.run(experiment, world))
    return found


@pytest.mark.parametrize(
    "names",
    [["classes", "numbers", "hetero"], ["gine", "gcn", "sage", "gat"], ["pna", "gps", "hetero_conv"]],
    ids=lambda names: names[0],
)
def test_three_ranks_on_three_machines_learn_what_one_learns(tmp_path: Path, names: list[str]) -> None:
    (alone,) = run_ranks(kinds, 1, str(tmp_path / "one"), names, timeout=120)
    spread, *_ = run_ranks(kinds, 3, str(tmp_path / "three"), names, timeout=120)
    for name, one, other in zip(names, alone, spread, strict=True):
        straight, three = losses(tmp_path / "one", f"{name} 1"), losses(tmp_path / "three", f"{name} 3")
        assert three == pytest.approx(straight, rel=1e-3, abs=1e-5), name
        assert other["labels"] == one["labels"], name
        for split in ("val", "test"):
            assert other[split] == pytest.approx(one[split], rel=1e-2, abs=1e-4), name
            assert other["num_evaluated"][split] == one["num_evaluated"][split] > 0, name
        if name in ("gat", "gps"):
            assert one["steps"] == 3 * 2, "twelve graphs, and then one"


def refused(directory: Path, **sections: Any) -> str:
    with World.start(device="cpu", timeout=30) as world, pytest.raises(ExperimentError) as caught:
        job.run(small(str(directory), "refused", 1, **sections), world)
    assert not (directory / "runs").exists()
    return str(caught.value)


def test_what_does_not_fit_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    text = refused(tmp_path, task={"kind": "graph_classification", "label": "yy"})
    assert 'task.label: attribute "yy" of the graphs: the graphs have no such attribute; with a row for each' in text
    text = refused(tmp_path, task={"kind": "graph_classification", "label": "x"})
    assert "the graphs have it, but not one row for each; give it the shape [1]" in text
    data = {
        "source": "python",
        "store": str(tmp_path / "store"),
        "split": {"by": "ratio", "train": 0.5, "val": 0.5, "test": 0},
    }
    text = refused(tmp_path, data={**data, "function": "tests.collections_of_graphs:pairs"})
    assert "gin is for graphs of one node type and one relation; these have the node types a, b" in text
    numbers = {**data, "function": "tests.collections_of_graphs:rings", "args": {"numbers": True}}
    assert "holds 0.4; expected classes" in refused(tmp_path, data=numbers)


def test_commands_about_one_graph_refuse_a_collection(tmp_path: Path) -> None:
    with World.start(device="cpu", timeout=30) as world:
        with pytest.raises(ExperimentError, match="a collection of graphs has no partitions"):
            job.prepare_graph(small(str(tmp_path), "refused", 1), world)
        plan = job.plan(small(str(tmp_path), "refused", 1), world)
    assert plan[-1] == f"collection: will be made, in a folder of {tmp_path}/store that its content names"
