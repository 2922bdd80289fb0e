"""The trainer in a world of size one: a run that was cut off, stopped, or is given more to do goes on exactly."""

from __future__ import annotations

import json
import logging
import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from disttrain.config import ExperimentError
from disttrain.stop import Stopped, StopRequest, stop_file
from disttrain.world import World
from tests.training import (
    MANIFEST,
    Killed,
    RowModel,
    by_file,
    events,
    row_trainer,
    stop_after,
    train_rows,
)  # fmt: skip

pytestmark = pytest.mark.usefixtures("no_fsync")


def without_times(line: dict[str, Any]) -> dict[str, Any]:
    return {
        key: value
        for key, value in line.items()
        if key not in ("time", "seeds_per_second", "step_seconds", "seconds", "cpu_seconds", "memory")
    }


@pytest.mark.parametrize(("optimizer", "steps"), [("adamw", range(1, 9)), ("sgd", [5])])
def test_resuming_is_exact_wherever_it_was_interrupted(
    world: World, tmp_path: Path, optimizer: str, steps: Iterable[int]
):
    """9 steps in 3 epochs; a checkpoint every 2 of them and at the end of each epoch."""
    settings = {
        "optimizer": optimizer, "num_rows": 25, "checkpoint": {"every_steps": 2}, "grad_clip": 0.5,
        "scheduler": {"kind": "cosine", "warmup_steps": 3},
    }  # fmt: skip
    straight = train_rows(world, tmp_path / "straight", **settings)
    expected = [without_times(line) for line in events(tmp_path / "straight") if line["event"] != "start"]
    for step in steps:
        run_dir = tmp_path / f"killed-{step}"
        with pytest.raises(Killed):
            train_rows(world, run_dir, killed_after=step, **settings)
        resumed = train_rows(world, run_dir, **settings)
        for name, tensor in straight.items():
            assert torch.equal(resumed[name], tensor), (step, name)
        found = [without_times(line) for line in events(run_dir) if line["event"] not in ("start", "resume")]
        assert found == expected
        summary = json.loads((run_dir / "summary.json").read_text())
        assert summary["test"] == json.loads((tmp_path / "straight" / "summary.json").read_text())["test"]


def test_resuming_under_fp16_is_exact_and_restores_the_scaler(world: World, tmp_path: Path):
    settings = {"precision": "fp16", "fp32_layers": ["head"], "checkpoint": {"every_steps": 1}}
    straight = train_rows(world, tmp_path / "a", **settings)
    with pytest.raises(Killed):
        train_rows(world, tmp_path / "b", killed_after=7, **settings)
    resumed = train_rows(world, tmp_path / "b", **settings)
    assert all(torch.equal(resumed[name], tensor) for name, tensor in straight.items())


def test_a_finished_run_says_so_and_more_epochs_go_on(world: World, tmp_path: Path, capsys: pytest.CaptureFixture):
    first = row_trainer(world, tmp_path, epochs=2).train()
    before = (tmp_path / "metrics.jsonl").read_text()
    assert row_trainer(world, tmp_path, epochs=2).train() == first
    assert "finished run: nothing to do" in capsys.readouterr().out
    assert (tmp_path / "metrics.jsonl").read_text() == before
    more = train_rows(world, tmp_path, epochs=3)
    straight = train_rows(world, tmp_path / "straight", epochs=3)
    assert all(torch.equal(more[name], tensor) for name, tensor in straight.items())
    assert json.loads((tmp_path / "summary.json").read_text())["epochs"] == 3


def test_fresh_begins_anew(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    row_trainer(world, tmp_path, epochs=1).train()
    monkeypatch.setattr("disttrain.report.run_directory._launcher", lambda: "another job")
    row_trainer(world, tmp_path, epochs=1, lr=0.1, fresh=True).train()
    assert next(line["event"] for line in events(tmp_path)) == "start"


def test_max_steps_stops_in_mid_epoch_and_a_larger_one_goes_on(world: World, tmp_path: Path):
    assert row_trainer(world, tmp_path / "run", max_steps=7).train()["steps"] == 7
    resumed = train_rows(world, tmp_path / "run", max_steps=12)
    straight = train_rows(world, tmp_path / "straight", max_steps=12)
    assert all(torch.equal(resumed[name], tensor) for name, tensor in straight.items())


@pytest.mark.parametrize(
    "settings",
    [
        {"early_stop": {"metric": "loss", "mode": "min", "patience": 2}, "lr": 0.5, "optimizer": "sgd"},
        {"eval_every": 3, "best_metric": "loss"},
    ],
)
def test_a_run_in_pieces_is_scored_as_one_that_was_never_cut(world: World, tmp_path: Path, settings: dict[str, Any]):
    kept: dict[str, Any] = {"checkpoint": {"keep": 1}}
    for bound in ({"max_steps": 2}, {"max_steps": 7}, {"epochs": 2}, {"epochs": 4}, {"max_steps": 23}):
        row_trainer(world, tmp_path / "pieces", **{"epochs": 9, **settings, **kept, **bound}).train()
    pieces = row_trainer(world, tmp_path / "pieces", epochs=9, **settings, **kept).train()
    straight = row_trainer(world, tmp_path / "straight", epochs=9, **settings, **kept).train()
    for key in ("epochs", "steps", "best_epoch", "val", "test", "num_evaluated"):
        assert pieces[key] == straight[key], key


STOPS: list[tuple[dict[str, Any], int, bool, int]] = [
    ({}, 3, False, 4),
    ({}, 4, False, 5),  # the last step of an epoch: before its validation
    ({}, 5, True, 5),  # in it
    ({}, 15, True, 15),
    ({"log_every": 100}, 6, False, 7),
    ({"accumulate": 2}, 1, False, 2),
    ({"accumulate": 2, "log_every": 100}, 2, False, 3),
    ({"max_steps": 7}, 6, False, 7),  # the last step of the run, in mid-epoch
    ({"max_steps": 7}, 7, True, 7),
    ({"checkpoint": {"every_steps": 4}}, 3, False, 4),  # where a checkpoint was due anyway
    ({"eval_every": 2, "checkpoint": {"every_epochs": 3}}, 4, False, 5),
    ({"early_stop": {"metric": "accuracy", "patience": 1}, "lr": 1e-9}, 10, True, 10),  # nothing gets better
]
"""Settings, the step at which a run is asked to stop, whether in the validation there, and where it does."""


@pytest.mark.parametrize(("settings", "step", "within", "stops_after"), STOPS, ids=range(len(STOPS)))
def test_a_stop_is_heard_at_once_and_the_run_goes_on_exactly(
    world: World, tmp_path: Path, settings: dict[str, Any], step: int, within: bool, stops_after: int
):
    straight = train_rows(world, tmp_path / "straight", **settings)
    trainer = row_trainer(world, tmp_path / "run", **settings)
    stop_after(trainer, step, within=within)
    with pytest.raises(Stopped, match=f"stopped by rows/STOP after step {stops_after}; a checkpoint is in") as raised:
        trainer.train()
    assert raised.value.code == 0
    assert not (tmp_path / "run" / "DONE").exists()
    resumed = train_rows(world, tmp_path / "run", **settings)
    assert all(torch.equal(resumed[name], tensor) for name, tensor in straight.items())
    summaries = [json.loads((tmp_path / name / "summary.json").read_text()) for name in ("straight", "run")]
    for key in ("epochs", "steps", "best_epoch", "val", "test", "num_evaluated"):
        assert summaries[0][key] == summaries[1][key], key
    lines = [
        [without_times(line) for line in events(tmp_path / name) if line["event"] in ("epoch", "evaluation")]
        for name in ("straight", "run")
    ]
    assert lines[0] == lines[1]


@pytest.mark.parametrize(("fresh", "again"), [(False, "command"), (True, "command without --fresh")])
def test_it_says_what_goes_on_from_the_checkpoint(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: bool, again: str
):
    """With --fresh, the very same would begin anew, and take the checkpoint away."""
    monkeypatch.setattr(StopRequest, "again", StopRequest.again)
    trainer = row_trainer(world, tmp_path, fresh=fresh)
    stop_after(trainer, 3)
    with stop_file(trainer.experiment, world, fresh), pytest.raises(Stopped, match=f"the same {again} goes on from it"):
        trainer.train()


def test_a_signal_stops_as_the_file_does(world: World, tmp_path: Path):
    trainer = row_trainer(world, tmp_path)
    stop_after(trainer, 3, by=lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Stopped, match="stopped by SIGTERM after step 4"):
        trainer.train()


def test_a_stop_that_comes_too_late_is_heard_outside(world: World, tmp_path: Path):
    """In the final evaluation there is nothing to save; the same command makes up for it."""
    trainer = row_trainer(world, tmp_path)
    end_epoch = trainer._end_epoch

    def asked() -> None:
        end_epoch()
        if trainer._finished():
            by_file()

    trainer._end_epoch = asked
    with pytest.raises(Stopped, match="stopped by rows/STOP in "), StopRequest(at_once=True):
        trainer.train()
    assert not (tmp_path / "DONE").exists()
    row_trainer(world, tmp_path).train()
    assert (tmp_path / "DONE").exists()
    assert [line["event"] for line in events(tmp_path)][-2:] == ["resume", "evaluation"]


def test_a_damaged_checkpoint_is_passed_over(world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    settings: dict[str, Any] = {"checkpoint": {"every_steps": 2}}
    straight = train_rows(world, tmp_path / "straight", **settings)
    with pytest.raises(Killed):
        train_rows(world, tmp_path / "run", killed_after=9, **settings)
    file = next((tmp_path / "run" / "checkpoints" / "step-0000000008").glob("*.distcp"))
    file.write_bytes(file.read_bytes()[:100])
    with caplog.at_level(logging.WARNING):
        resumed = train_rows(world, tmp_path / "run", **settings)
    assert "passed over" in caplog.text
    assert all(torch.equal(resumed[name], tensor) for name, tensor in straight.items())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"lr": 0.1}, r"train.lr: 0.005 in the checkpoint, 0.1 now"),
        ({"seed": 3}, r"seed: 0 in the checkpoint, 3 now"),
        ({"manifest": {**MANIFEST, "fingerprint": "xyz"}}, r"data.fingerprint: .*abc.* in the checkpoint, .*xyz.* now"),
        ({"manifest": {**MANIFEST, "files": {"a": 1}}}, r"partitions.digest"),
        ({"model": RowModel(norm=True)}, r"model.\S*norm\S*weight\S*: nothing in the checkpoint"),
    ],
)
def test_another_run_is_not_resumed(world: World, tmp_path: Path, change: dict[str, Any], said: str):
    row_trainer(world, tmp_path, epochs=1).train()
    with pytest.raises(ExperimentError, match=said):
        row_trainer(world, tmp_path, **{"epochs": 2, **change}).train()


@pytest.mark.parametrize("change", [{"epochs": 3}, {"max_steps": 7}])
def test_the_length_of_a_run_whose_learning_rate_falls_with_it_stays(
    world: World, tmp_path: Path, change: dict[str, Any]
):
    settings: dict[str, Any] = {"epochs": 1, "scheduler": {"kind": "cosine"}}
    row_trainer(world, tmp_path, **settings).train()
    with pytest.raises(ExperimentError, match=f"train.{next(iter(change))}: "):
        row_trainer(world, tmp_path, **{**settings, **change}).train()


def test_what_may_change_may_change(world: World, tmp_path: Path):
    row_trainer(world, tmp_path, epochs=1).train()
    row_trainer(
        world, tmp_path, epochs=2, log_every=7, timeout=10.0, checkpoint={"keep": 5, "every_steps": 3}, threads=1
    ).train()
