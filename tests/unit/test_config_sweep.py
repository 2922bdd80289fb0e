"""Sweeps: their points, names, and what is refused when the file is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from disttrain.config import ExperimentError, HeteroConvModel
from disttrain.config.file import read_experiment, read_point, read_points
from disttrain.config.sweep import Sweep, enumerate_points
from tests.tiny_experiment import TINY

EXPERIMENT = "name: tiny\n" + TINY


def written(tmp_path: Path, sweep: str) -> Path:
    file = tmp_path / "sweep.yaml"
    file.write_text(EXPERIMENT + sweep)
    return file


def names(file: Path, *overrides: str) -> list[str]:
    return [point.name for point in read_points(file, overrides)]


def test_a_grid_has_every_combination(tmp_path: Path) -> None:
    file = written(tmp_path, "sweep: {grid: {train.lr: [0.1, 1e-3], model.hidden: [8, 16, 32]}}\n")
    points = read_points(file)
    assert [point.name for point in points] == [f"lr={lr},hidden={h}" for lr in ("0.1", "0.001") for h in (8, 16, 32)]
    assert [(p.experiment.train.lr, p.settings["model", "hidden"]) for p in points] == [
        (lr, hidden) for lr in (0.1, 1e-3) for hidden in (8, 16, 32)
    ]
    assert [point.number for point in points] == list(range(6))
    assert points[1].experiment.directory == "runs/tiny/lr=0.1,hidden=16"


def test_a_point_is_the_experiment_with_these_overrides(tmp_path: Path) -> None:
    file = written(tmp_path, "sweep: {points: [{train.lr: 0.1, 'sampling.fanout': [3, 3]}, {}]}\n")
    other, base = read_points(file, ["run_dir=elsewhere"])
    assert (other.name, base.name) == ("lr=0.1,fanout=_3,3_", "base")
    alone = tmp_path / "alone.yaml"
    alone.write_text(EXPERIMENT)
    by_hand = read_experiment(alone, ["train.lr=0.1", "sampling.fanout=[3,3]", f"run_dir=elsewhere/{other.name}"])
    assert other.experiment == by_hand
    assert base.experiment == read_experiment(alone, ["run_dir=elsewhere/base"])


def test_what_a_point_does_not_name_stays_as_it_is_in_the_file(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        "train: {epochs: 3, checkpoint: {every_steps: 7}}\n"
        "sweep:\n  points:\n  - {train: {lr: 0.1, checkpoint: {keep: 5}}, sampling: {fanout: {default: [1, 1]}}}\n"
        "  - {train.lr: 0.2}\n",
    )
    overrides = ["sampling.batch_size=9", "sweep.points.1.train.checkpoint.keep=4"]
    first, second = (point.experiment for point in read_points(file, overrides))
    for found, lr, keep in ((first, 0.1, 5), (second, 0.2, 4)):
        checkpoint = found.train.checkpoint
        assert (found.train.epochs, found.train.lr, found.sampling.batch_size) == (3, lr, 9)
        assert (checkpoint.every_steps, checkpoint.keep) == (7, keep)
    assert (first.sampling.fanout, second.sampling.fanout) == ({"default": (1, 1)}, (2, 2))
    assert names(file) == ["lr=0.1,keep=5,fanout=_default_1,1_", "lr=0.2"]
    with pytest.raises(ExperimentError, match="train.lr is in points and in grid"):
        read_points(file, ["sweep.grid={train: {lr: [1.0]}}"])


def test_sets_and_a_grid_multiply(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        "sweep:\n  points: [{model.conv: sage}, {model.conv: gat, model.heads: 2}]\n  grid: {seed: [0, 1]}\n",
    )
    assert names(file) == ["conv=sage,seed=0", "conv=sage,seed=1", "conv=gat,heads=2,seed=0", "conv=gat,heads=2,seed=1"]


def test_overrides_make_and_change_a_sweep(tmp_path: Path) -> None:
    file = written(tmp_path, "")
    assert names(file, "sweep.grid.seed=[0,1]") == ["seed=0", "seed=1"]
    assert names(file, "sweep.grid.train.lr=[0.1]", 'sweep.grid["seed"]=[3]') == ["lr=0.1,seed=3"]
    assert read_experiment(file, ["sweep.grid.seed=[0,1]", "sweep=null"]).sweep is None


def test_names_are_folders_that_tell_points_apart(tmp_path: Path) -> None:
    grid = "{train.scheduler.warmup_steps: [1, 2], train.lr: [0.1], partition.dir: ['a/b', 'a b', '../x']}"
    file = written(tmp_path, f"sweep: {{grid: {grid}}}\n")
    found = names(file)
    assert len(set(found)) == 6
    assert all("/" not in name and " " not in name for name in found)
    assert found[2] == "warmup_steps=1,lr=0.1,dir=.._x"
    long = written(tmp_path, f"sweep: {{grid: {{partition.dir: [{'a' * 300}, {'a' * 301}]}}}}\n")
    first, second = names(long)
    assert first != second and max(len(first), len(second)) <= 120


def test_text_and_a_number_are_two_points() -> None:
    settings = {"data.args.a": [1, "1", True, "true"]}
    named = [point.name for point in enumerate_points(Sweep(grid=settings))]
    assert len(set(named)) == 4
    assert [name.partition("-")[0] for name in named] == ["a=1", "a=1", "a=true", "a=true"]


def test_a_point_by_its_name_or_number(tmp_path: Path) -> None:
    file = written(tmp_path, "sweep: {grid: {model.hidden: [8, 16]}}\n")
    assert read_point(file, [], "1") == read_point(file, [], "hidden=16")
    assert isinstance(read_point(file, [], "1").model, HeteroConvModel)
    with pytest.raises(ExperimentError, match=r"no point 'hidden=17'; did you mean `hidden=16`\?.*0 to 1"):
        read_point(file, [], "hidden=17")
    with pytest.raises(ExperimentError, match="has no `sweep`"):
        read_points(written(tmp_path, ""))


@pytest.mark.parametrize(
    ("sweep", "says"),
    [
        ("{}", "expected grid"),
        ("{grid: {train.lr: 0.1}}", "expected a list of values for train.lr"),
        ("{grid: {train.lr: []}}", "expected a list of values"),
        ("{grid: {train.lr: [0.1, 0.1]}}", "points 0 and 1 are the same, train.lr=0.1"),
        ("{grid: {launch.nodes: [1, 2]}}", "launch.nodes is the same for all points"),
        ("{grid: {run_dir: [a]}}", "run_dir is the same for all points"),
        ("{grid: {seed: [1]}, points: [{seed: 2}]}", "seed is in points and in grid"),
        ("{grid: {'a..b': [1]}}", "is not a path"),
        ("{grid: {seed: [1], train.lr: [1]}, pionts: []}", "did you mean `points`"),
        ("{grid: {seed: [0]}, metric: acuracy}", "did you mean `accuracy`"),
    ],
)
def test_what_is_no_sweep(tmp_path: Path, sweep: str, says: str) -> None:
    with pytest.raises(ExperimentError) as caught:
        read_experiment(written(tmp_path, f"sweep: {sweep}\n"))
    assert says in str(caught.value)
    assert "line 10" in str(caught.value)


def test_a_sweep_that_is_too_large(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match="at most 1000 points, got 1001"):
        read_experiment(written(tmp_path, ""), [f"sweep.grid.seed={list(range(1001))}"])


def test_all_mistakes_in_all_points_are_said_together(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        "train: {lr: -1}\n"
        "sweep: {grid: {train.epochs: [5, 0, -1], model.hiden: [8, 16], sampling.fanout: [[2, 2], [2, 2, 2]]}}\n",
    )
    with pytest.raises(ExperimentError) as caught:
        read_experiment(file)
    lines = str(caught.value).splitlines()
    assert "5 mistakes" in lines[0]
    assert "train.lr (line 10): expected a number above 0, got -1" in lines[1]
    rest = "\n".join(lines[2:])
    assert rest.count("did you mean `hidden`?") == 1
    assert "train.epochs: expected a whole number above 0, got 0" in rest and "got -1" in rest
    assert "sampling.fanout" in rest
    assert all(line.startswith("  sweep (line 11): point epochs=") for line in lines[2:])
