"""The trainer in a world of size one: resuming is exact, stopping, logging, refusals."""

from __future__ import annotations

import json
import logging
import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from disttrain.config import ExperimentError
from disttrain.stop import Stopped, StopRequest
from disttrain.train.trainer import Trainer
from disttrain.world import World
from tests.training import (
    MANIFEST,
    Killed,
    RowLoader,
    RowModel,
    by_file,
    events,
    kill_after,
    row_trainer,
    stop_after,
    task,
    weights,
)  # fmt: skip


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody pulls the plug here."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def world() -> Iterator[World]:
    with World.start(device="cpu", threads=1) as world:
        yield world


def train(world: World, run_dir: Path, killed_after: int | None = None, **settings: Any) -> dict[str, Tensor]:
    """Train to the end, or until the process "dies" right after a step; returns the weights."""
    trainer = row_trainer(world, run_dir, **settings)
    model = trainer.model
    kill_after(trainer, killed_after)
    trainer.train()
    return weights(model)


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
    straight = train(world, tmp_path / "straight", **settings)
    expected = [without_times(line) for line in events(tmp_path / "straight") if line["event"] != "start"]
    for step in steps:
        run_dir = tmp_path / f"killed-{step}"
        with pytest.raises(Killed):
            train(world, run_dir, killed_after=step, **settings)
        resumed = train(world, run_dir, **settings)
        for name, tensor in straight.items():
            assert torch.equal(resumed[name], tensor), (step, name)
        found = [without_times(line) for line in events(run_dir) if line["event"] not in ("start", "resume")]
        assert found == expected
        summary = json.loads((run_dir / "summary.json").read_text())
        assert summary["test"] == json.loads((tmp_path / "straight" / "summary.json").read_text())["test"]


def test_resuming_under_fp16_is_exact_and_restores_the_scaler(world: World, tmp_path: Path):
    settings = {"precision": "fp16", "fp32_layers": ["head"], "checkpoint": {"every_steps": 1}}
    straight = train(world, tmp_path / "a", **settings)
    with pytest.raises(Killed):
        train(world, tmp_path / "b", killed_after=7, **settings)
    resumed = train(world, tmp_path / "b", **settings)
    assert all(torch.equal(resumed[name], tensor) for name, tensor in straight.items())


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_mixed_precision_learns_as_fp32_does(world: World, tmp_path: Path, precision: str):
    losses = {}
    for kind in ("fp32", precision):
        train(world, tmp_path / kind, precision=kind, dropout=0.0, lr=0.01)
        losses[kind] = [line["loss"] for line in events(tmp_path / kind) if line["event"] == "epoch"]
    assert losses[precision] == pytest.approx(losses["fp32"], rel=0.05)
    assert losses[precision][-1] < losses[precision][0]


def test_a_skipped_fp16_step_changes_nothing_and_is_no_error(world: World, tmp_path: Path):
    class Overflowing(RowModel):
        def forward(self, batch: Any) -> Tensor:
            return super().forward(batch) * (float("inf") if self.training and batch.step == 1 else 1.0)

    torch.manual_seed(0)
    model = Overflowing()
    train(world, tmp_path, precision="fp16", epochs=1, log_every=1, model=model)
    assert all(torch.isfinite(tensor).all() for tensor in model.state_dict().values())
    scales = [line["scale"] for line in events(tmp_path) if line["event"] == "train"]
    assert scales == [65536.0, 32768.0, 32768.0, 32768.0, 32768.0]


@pytest.mark.parametrize("optimizer", ["adamw", "adam", "sgd"])
def test_a_skipped_first_step_leaves_no_rubbish_in_the_optimizer(world: World, tmp_path: Path, optimizer: str):
    class Overflowing(RowModel):
        def forward(self, batch: Any) -> Tensor:
            return super().forward(batch) * (float("inf") if self.training and batch.step == 0 else 1.0)

    model = Overflowing()
    train(world, tmp_path, precision="fp16", epochs=1, log_every=1, model=model, optimizer=optimizer)
    assert all(torch.isfinite(tensor).all() for tensor in model.state_dict().values())


def test_a_loss_that_is_not_finite_ends_the_run(world: World, tmp_path: Path):
    class Broken(RowModel):
        def forward(self, batch: Any) -> Tensor:
            return super().forward(batch) * (float("nan") if self.training and batch.step == 3 else 1.0)

    with pytest.raises(FloatingPointError, match=r"first on rank 0 on .*, in step 3 \(epoch 1\)"):
        train(world, tmp_path, model=Broken(), checkpoint={"every_steps": 2})
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["step-0000000002"]


def test_a_metric_that_never_has_a_value_hides_no_figures(world: World, tmp_path: Path):
    trainer = row_trainer(world, tmp_path, of=task("auroc", "accuracy"))
    trainer.loaders["val"].y[:] = 0  # type: ignore[attr-defined]
    trainer.train()
    summary = json.loads((tmp_path / "summary.json").read_text())
    last = [line for line in events(tmp_path) if line["event"] == "evaluation" and line["split"] == "val"][-1]
    assert summary["val"] == last["metrics"] and summary["val"]["auroc"] is None
    assert summary["num_evaluated"]["val"] == 17 and summary["best_epoch"] == 3


def test_hopeless_fp16_ends_the_run(world: World, tmp_path: Path):
    class Broken(RowModel):
        def forward(self, batch: Any) -> Tensor:
            return super().forward(batch) * (float("nan") if self.training else 1.0)

    with pytest.raises(FloatingPointError, match=r"bf16, or train.fp32_layers"):
        train(world, tmp_path, model=Broken(), precision="fp16", epochs=20)


def test_the_logged_loss_is_the_mean_over_all_seeds(world: World, tmp_path: Path):
    loader = RowLoader(world, 41, 10)
    model = RowModel()
    start = weights(model)
    train(world, tmp_path, model=model, epochs=1, lr=1e-30, optimizer="sgd")
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in start.items())
    exact = nn.functional.cross_entropy(
        model(type("Batch", (), {"__getitem__": lambda self, _: loader})()), loader.y
    ).item()
    (line,) = (line for line in events(tmp_path) if line["event"] == "epoch")
    assert line["loss"] == pytest.approx(exact, rel=1e-6)
    assert line["seeds"] == 41


def test_early_stopping_keeps_and_scores_the_best(world: World, tmp_path: Path):
    summary = row_trainer(
        world, tmp_path, epochs=50, lr=0.5, optimizer="sgd", early_stop={"metric": "loss", "mode": "min", "patience": 2}
    ).train()
    values = [
        line["metrics"]["loss"] for line in events(tmp_path) if line["event"] == "evaluation" and line["split"] == "val"
    ]
    assert summary["epochs"] == len(values) < 50
    assert summary["best_epoch"] == values.index(min(values)) + 1 == len(values) - 2
    assert summary["val"]["loss"] == min(values)
    assert summary["num_evaluated"] == {"val": 17, "test": 13}
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    best, last = f"step-{summary['best_epoch'] * 5:010d}", len(values) * 5
    assert names == [best, f"step-{last - 5:010d}", f"step-{last:010d}"]
    assert (tmp_path / "DONE").exists()


def test_with_checkpoints_of_some_epochs_the_best_and_the_last_have_theirs(world: World, tmp_path: Path):
    settings: dict[str, Any] = {
        "epochs": 8, "lr": 0.5, "optimizer": "sgd", "best_metric": "loss",
        "checkpoint": {"every_epochs": 3, "keep": 20},
    }  # fmt: skip
    straight = train(world, tmp_path / "straight", **settings)
    lines = events(tmp_path / "straight")
    losses = [x["metrics"]["loss"] for x in lines if x["event"] == "evaluation" and x["split"] == "val"]
    better = {epoch for epoch in range(1, 9) if losses[epoch - 1] == min(losses[:epoch])}
    assert better < set(range(1, 8))
    names = [path.name for path in (tmp_path / "straight" / "checkpoints").iterdir()]
    assert sorted(names) == [f"step-{5 * epoch:010d}" for epoch in sorted({3, 6, 8} | better)]
    with pytest.raises(Killed):
        train(world, tmp_path / "killed", killed_after=23, **settings)
    resumed = train(world, tmp_path / "killed", **settings)
    assert all(torch.equal(resumed[name], tensor) for name, tensor in straight.items())


def test_a_finished_run_says_so_and_more_epochs_go_on(world: World, tmp_path: Path, capsys: pytest.CaptureFixture):
    first = row_trainer(world, tmp_path, epochs=2).train()
    before = (tmp_path / "metrics.jsonl").read_text()
    assert row_trainer(world, tmp_path, epochs=2).train() == first
    assert "finished run: nothing to do" in capsys.readouterr().out
    assert (tmp_path / "metrics.jsonl").read_text() == before
    more = train(world, tmp_path, epochs=3)
    straight = train(world, tmp_path / "straight", epochs=3)
    assert all(torch.equal(more[name], tensor) for name, tensor in straight.items())
    assert json.loads((tmp_path / "summary.json").read_text())["epochs"] == 3


def test_fresh_begins_anew(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    row_trainer(world, tmp_path, epochs=1).train()
    monkeypatch.setattr("disttrain.report.run_directory._launcher", lambda: "another job")
    row_trainer(world, tmp_path, epochs=1, lr=0.1, fresh=True).train()
    assert next(line["event"] for line in events(tmp_path)) == "start"


def test_max_steps_stops_in_mid_epoch_and_a_larger_one_goes_on(world: World, tmp_path: Path):
    assert row_trainer(world, tmp_path / "run", max_steps=7).train()["steps"] == 7
    resumed = train(world, tmp_path / "run", max_steps=12)
    straight = train(world, tmp_path / "straight", max_steps=12)
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
    straight = train(world, tmp_path / "straight", **settings)
    trainer = row_trainer(world, tmp_path / "run", **settings)
    stop_after(trainer, step, within=within)
    with pytest.raises(Stopped, match=f"stopped by rows/STOP after step {stops_after}; a checkpoint is in") as raised:
        trainer.train()
    assert raised.value.code == 0
    assert not (tmp_path / "run" / "DONE").exists()
    resumed = train(world, tmp_path / "run", **settings)
    assert all(torch.equal(resumed[name], tensor) for name, tensor in straight.items())
    summaries = [json.loads((tmp_path / name / "summary.json").read_text()) for name in ("straight", "run")]
    for key in ("epochs", "steps", "best_epoch", "val", "test", "num_evaluated"):
        assert summaries[0][key] == summaries[1][key], key
    lines = [
        [without_times(line) for line in events(tmp_path / name) if line["event"] in ("epoch", "evaluation")]
        for name in ("straight", "run")
    ]
    assert lines[0] == lines[1]


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
    straight = train(world, tmp_path / "straight", **settings)
    with pytest.raises(Killed):
        train(world, tmp_path / "run", killed_after=9, **settings)
    file = next((tmp_path / "run" / "checkpoints" / "step-0000000008").glob("*.distcp"))
    file.write_bytes(file.read_bytes()[:100])
    with caplog.at_level(logging.WARNING):
        resumed = train(world, tmp_path / "run", **settings)
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


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"best_metric": "acuracy"}, "train.best_metric: .* did you mean accuracy"),
        ({"early_stop": {"metric": "zzz"}}, "train.early_stop.metric: .* add it to task.metrics"),
        ({"early_stop": {"metric": "loss", "mode": "max"}}, "falls; set train.early_stop.mode=min"),
        ({"fp32_layers": ["input"]}, "did you mean inputs"),
    ],
)
def test_what_cannot_be_is_refused_before_work(world: World, tmp_path: Path, settings: dict[str, Any], said: str):
    with pytest.raises(ExperimentError, match=said):
        row_trainer(world, tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


class Wrong(RowModel):
    """A model of somebody who has not read the contract."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.aside = nn.LazyLinear(3) if kind == "lazy" else nn.Linear(3, 3)
        if kind == "frozen":
            self.requires_grad_(False)

    def forward(self, batch: Any) -> Any:
        logits = super().forward(batch)
        returned = {"none": None, "pair": (logits, logits), "columns": logits[:, :2], "rows": logits[1:]}
        if self.kind in returned:
            return returned[self.kind]
        return logits.detach() if self.kind == "detached" else logits


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("lazy", "parameters aside.weight, aside.bias have no shape yet"),
        ("frozen", "no parameter that wants a gradient"),
        ("none", r"must return .*here \[10, 3\], but returned NoneType"),
        ("pair", "but returned tuple"),
        ("columns", r"but returned torch.float32 \[10, 2\]"),
        ("rows", r"but returned torch.float32 \[9, 3\]"),
        ("detached", "no use of its parameters inputs.weight, .* and 2 more for a batch of 10 seeds"),
        ("forgetful", "no use of its parameters aside.weight, aside.bias for a batch of 10 seeds"),
    ],
)
def test_a_model_that_breaks_its_contract_is_refused(world: World, tmp_path: Path, kind: str, said: str):
    with pytest.raises(ExperimentError, match=f"model.module: .*{said}"):
        row_trainer(world, tmp_path, model=Wrong(kind)).train()


def test_without_validation_the_last_weights_are_scored(world: World, tmp_path: Path):
    loaders = {
        "train": RowLoader(world, 21, 10),
        "val": RowLoader(world, 0, 5),
        "test": RowLoader(world, 13, 5, seed=2),
    }
    summary = row_trainer(world, tmp_path, loaders=loaders).train()
    assert (summary["best_epoch"], summary["val"], summary["num_evaluated"]["test"]) == (3, {}, 13)
    with pytest.raises(ExperimentError, match=r"train.early_stop needs validation nodes"):
        row_trainer(world, tmp_path, loaders=loaders, early_stop={"metric": "accuracy"})


def test_nothing_to_learn_from_is_refused(world: World, tmp_path: Path):
    loaders = {split: RowLoader(world, 0, 5) for split in ("train", "val", "test")}
    with pytest.raises(ExperimentError, match="no training nodes"):
        row_trainer(world, tmp_path, loaders=loaders)


def test_the_summary_has_its_fields(world: World, tmp_path: Path):
    row_trainer(world, tmp_path).train()
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary.keys() >= {
        "name", "task", "world_size", "nodes", "epochs", "steps", "best_epoch", "val", "test", "num_evaluated",
        "seconds", "step_seconds", "seeds_per_second", "bytes_exchanged", "exchanges_per_batch",
        "cache_hit_rate", "peak_rss_bytes", "peak_pss_bytes", "peak_gpu_bytes", "partition", "versions",
    }  # fmt: skip
    assert summary["step_seconds"].keys() == {"wait_for_batch", "to_device", "forward", "backward", "optimizer"}
    assert summary["seconds"].keys() >= {"total", "partition", "load", "train", "evaluate"}
    assert summary["steps"] == 15
    assert summary["partition"] == {"parts": 2, "method": "metis", "edge_cut": 0.1, "fingerprint": "abc"}
    assert (tmp_path / "experiment.yaml").exists()
    steps = [line["memory"] for line in events(tmp_path) if line["event"] == "train"]
    assert all(line.keys() == {"rss", "pss"} and line["pss"] <= line["rss"] for line in steps), "Linux, no GPU"
    assert summary["peak_pss_bytes"][0] >= max(line["pss"] for line in steps) > 0


def test_nothing_refers_to_the_process_group_afterwards(world: World, tmp_path: Path):
    trainer: Trainer = row_trainer(world, tmp_path, epochs=1)
    trainer.train()
    assert not hasattr(trainer, "replica")
    assert not hasattr(trainer, "optimizer")
