"""Training by weight and by time: a tree is the same whatever the ranks and partitions, and so is the loss."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from disttrain.config import Experiment, ExperimentError
from disttrain.train import job
from disttrain.world import World
from tests.ranks import run_ranks
from tests.training import events

KINDS: dict[str, dict[str, Any]] = {
    "latest": {"fanout": [4, 3], "time_attr": "at", "temporal_strategy": "last", "cache_bytes": 4000},
    "weighted trees": {"fanout": [{"ratio": 0.5, "max": 5}, 3], "disjoint": True, "weight_attr": "w"},
}


def _experiment(directory: str, name: str, ranks: int, parts: int, sampling: dict[str, Any], **train) -> Experiment:
    return Experiment.model_validate(
        {
            "name": name,
            "run_dir": f"{directory}/runs/{name}",
            "data": {"source": "python", "function": "tests.graphs:dated_zoo", "split": {"by": "masks"}},
            "partition": {"parts": parts, "dir": f"{directory}/parts/{parts}", "method": "random"},
            "task": {"kind": "node_classification", "node_type": "paper"},
            "model": {"kind": "hetero_conv", "hidden": 8},
            "sampling": {"batch_size": 24 // ranks, "locality": False, **sampling},
            "train": {"epochs": 2, "lr": 0.01, "log_every": 1, "threads": 1, "device": "cpu", **train},
        }
    )


def _train(world: World, directory: str, name: str, parts: int, **train) -> list[dict[str, Any]]:
    """One run of each kind."""
    return [
        job.run(_experiment(directory, f"{name} {kind}", world.size, parts, settings, **train), world)
        for kind, settings in KINDS.items()
    ]


def _losses(directory: Path, name: str) -> list[float]:
    return [event["loss"] for event in events(directory / "runs" / name) if event["event"] == "train"]


def test_the_loss_of_every_step_does_not_depend_on_ranks_nor_partitions(tmp_path: Path) -> None:
    """Though neighbours are drawn: without trees that holds with all neighbours only."""
    (alone,) = run_ranks(_train, 1, str(tmp_path), "alone", 1, timeout=120)
    spread, *_ = run_ranks(_train, 3, str(tmp_path), "spread", 3, timeout=120)
    for kind, one, other in zip(KINDS, alone, spread, strict=True):
        straight = _losses(tmp_path, f"alone {kind}")
        assert len(straight) == 10 and len(set(straight)) == 10
        assert _losses(tmp_path, f"spread {kind}") == pytest.approx(straight, rel=0, abs=1e-5)
        for split in ("val", "test"):
            assert other[split] == pytest.approx(one[split], rel=1e-5)
            assert other["num_evaluated"][split] == one["num_evaluated"][split] > 0


def _train_twice(world: World, directory: str) -> None:
    _train(world, directory, "straight", 2)
    _train(world, directory, "resumed", 2, max_steps=3)
    _train(world, directory, "resumed", 2)


def test_a_resumed_run_goes_on_exactly(tmp_path: Path) -> None:
    run_ranks(_train_twice, 2, str(tmp_path), timeout=120)
    for kind in KINDS:
        assert _losses(tmp_path, f"resumed {kind}") == _losses(tmp_path, f"straight {kind}")


def _refused(world: World, directory: str, sampling: dict[str, Any]) -> str:
    try:
        job.run(_experiment(directory, "refused", 1, 1, {"fanout": [2, 2], **sampling}), world)
    except ExperimentError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        ({"weight_attr": "ww"}, "no relation has an edge attribute `ww`; did you mean `w`?"),
        ({"time_attr": "when"}, "no node type and no relation has an attribute `when`; there are"),
        ({"time_attr": "at", "seed_time": "born"}, "sampling.seed_time: the node type of the seeds, `paper`, has no"),
        ({"weight_attr": "edge_attr"}, "`edge_attr` of `paper,cites,paper` has rows of shape [2]"),
        ({"weight_attr": "at"}, "`at` of `paper,cites,paper` is negative in some edges, down to -20"),
        ({"time_attr": "x"}, "`x` of `paper` has rows of shape [3]; times are"),
        ({"time_attr": "train_mask"}, "is true or false"),
        pytest.param(
            {"backend": "pyg-lib"},
            "sampling.backend is pyg-lib, which is not installed",
            marks=pytest.mark.skipif(find_spec("pyg_lib") is not None, reason="pyg-lib is installed"),
        ),
    ],
)
def test_what_the_graph_lacks_is_refused_before_anything_is_trained(tmp_path: Path, sampling, message) -> None:
    with World.start(device="cpu", timeout=30) as world:
        assert message in _refused(world, str(tmp_path), sampling)
    assert not (tmp_path / "runs").exists()
    if "ww" in str(sampling) or "backend" in sampling:
        assert not (tmp_path / "parts").exists(), "nor is anything partitioned"
