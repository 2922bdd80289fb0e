"""Optimizer steps: of several batches, weighted, and those that come to nothing."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from disttrain.world import World
from tests.training import Killed, RowLoader, RowModel, events, kill_after, row_trainer, task, weights


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)


def train(world: World, run_dir: Path, killed_after: int | None = None, **settings: Any) -> dict[str, Tensor]:
    trainer = row_trainer(world, run_dir, **settings)
    model = trainer.model
    kill_after(trainer, killed_after, within=True)
    trainer.train()
    return weights(model)


def close(a: dict[str, Tensor], b: dict[str, Tensor], tolerance: float = 1e-5) -> None:
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=tolerance, atol=tolerance)


def lines(run_dir: Path, event: str) -> list[dict[str, Any]]:
    return [line for line in events(run_dir) if line["event"] == event]


@pytest.mark.parametrize("class_weights", [None, (0.2, 1.0, 3.0)])
def test_two_batches_of_ten_are_one_of_twenty(world: World, tmp_path: Path, class_weights: Any):
    settings: dict[str, Any] = {
        "dropout": 0.0, "optimizer": "sgd", "lr": 0.1, "grad_clip": 0.5, "log_every": 1,
        "scheduler": {"kind": "cosine", "warmup_steps": 2}, "of": replace(task(), weights=class_weights),
    }  # fmt: skip
    whole = train(world, tmp_path / "whole", batch_size=20, **settings)
    parts = train(world, tmp_path / "parts", batch_size=10, accumulate=2, **settings)
    close(parts, whole)
    one, two = (lines(tmp_path / run, "train") for run in ("whole", "parts"))
    assert [line["step"] for line in two] == list(range(1, 10))
    assert [line["lr"] for line in two] == [line["lr"] for line in one]
    assert [line["loss"] for line in two] == pytest.approx([line["loss"] for line in one], rel=1e-4)
    summary = json.loads((tmp_path / "parts" / "summary.json").read_text())
    assert (summary["steps"], summary["epochs"], summary["skipped_steps"]) == (9, 3, 0)
    assert [line["seeds"] for line in lines(tmp_path / "parts", "epoch")] == [41] * 3


@pytest.mark.parametrize("step", [1, 4])
def test_a_run_killed_within_a_step_of_several_batches_resumes_exactly(world: World, tmp_path: Path, step: int):
    settings: dict[str, Any] = {"accumulate": 2, "checkpoint": {"every_steps": 1}, "epochs": 2}
    straight = train(world, tmp_path / "straight", **settings)
    with pytest.raises(Killed):
        train(world, tmp_path / "killed", killed_after=step, **settings)
    resumed = train(world, tmp_path / "killed", **settings)
    assert all(torch.equal(resumed[name], tensor) for name, tensor in straight.items())


def test_max_steps_counts_optimizer_steps(world: World, tmp_path: Path):
    train(world, tmp_path, accumulate=3, max_steps=3)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["steps"], summary["epochs"]) == (3, 2)


def test_accumulated_fp16_learns_as_fp32_does(world: World, tmp_path: Path):
    losses = {}
    for precision in ("fp32", "fp16"):
        train(world, tmp_path / precision, precision=precision, dropout=0.0, lr=0.01, accumulate=2)
        losses[precision] = [line["loss"] for line in lines(tmp_path / precision, "epoch")]
    assert losses["fp16"] == pytest.approx(losses["fp32"], rel=0.05)


def test_a_weighted_step_divides_by_the_sum_of_the_weights(world: World, tmp_path: Path):
    given = (0.5, 0.0, 4.0)
    torch.manual_seed(0)
    model, loader = RowModel(), RowLoader(world, 10, 10)
    (batch,) = loader.batches(0)
    before = weights(model)
    loss = nn.functional.cross_entropy(model(batch), batch["v"].y, weight=torch.tensor(given))
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    expected = {name: before[name] - 0.1 * g for (name, _), g in zip(model.named_parameters(), gradients)}
    loaders = {"train": loader, "val": RowLoader(world, 0, 5), "test": RowLoader(world, 0, 5)}
    found = train(
        world, tmp_path, model=model, loaders=loaders, of=replace(task(), weights=given), epochs=1, optimizer="sgd",
        lr=0.1, momentum=0.0,
    )  # fmt: skip
    close(found, expected, 1e-6)
    (line,) = lines(tmp_path, "epoch")
    assert line["loss"] == pytest.approx(loss.item(), rel=1e-6)


class Bad(RowModel):
    """Something is not finite in the training step number `at` (of 5 an epoch)."""

    def __init__(self, where: str, at: int = 3, norm: bool = False) -> None:
        super().__init__(norm=False)
        self.where, self.at, self.seen = where, at, -1
        if norm:
            self.norm = nn.BatchNorm1d(8)

    def forward(self, batch: Any) -> Tensor:
        bad = self.training and batch.step == self.at and batch.epoch == 0
        x = batch["v"].x
        if bad and self.where == "input":
            batch["v"].x = x = x.clone().index_fill_(0, torch.tensor([2]), float("inf"))
        x = self.inputs(x)
        if bad and self.where == "gradient":
            x = x + (x * 0.0).sqrt()  # 0, whose derivative is not finite
        x = self.norm(self.convs[1](self.convs[0](x).relu() * (float("nan") if bad and self.where == "layer" else 1)))
        return self.head(x) * (float("nan") if bad and self.where == "output" else 1.0)


@pytest.mark.parametrize(
    ("where", "named"),
    [
        ("input", r"the output of inputs \(Linear; .* of 80 values\); the batch carries x of v with 6 infinite of 60"),
        ("layer", r"the output of convs.1 \(Linear; 80 NaN of 80 values\)"),
        ("output", r"the model's output \(30 NaN of 30 values\)"),
        ("gradient", r"the gradient of parameter inputs.\w+ .*, while the loss is finite"),
    ],
)
@pytest.mark.parametrize("late", [False, True])
def test_the_first_bad_tensor_is_named_and_the_weights_are_those_before_it(
    world: World, tmp_path: Path, where: str, named: str, late: bool
):
    torch.manual_seed(0)
    trainer = row_trainer(world, tmp_path / "bad", model=Bad(where), log_every=5)
    model, trainer.gradient.looks_each_step = trainer.model, not late
    with pytest.raises(FloatingPointError, match=rf"first on rank 0 on .*, in step 3 \(epoch 1\): {named}"):
        trainer.train()
    torch.manual_seed(0)
    close(weights(model), train(world, tmp_path / "good", model=Bad("nowhere"), max_steps=3), 0.0)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("at", [2, 4])
def test_a_skipped_step_changes_nothing(world: World, tmp_path: Path, late: bool, at: int):
    """The last step of an epoch too; noticed at once, or only when steps are logged, as on a GPU."""
    torch.manual_seed(0)
    settings: dict[str, Any] = {"log_every": 3, "checkpoint": {"every_steps": 2}}
    trainer = row_trainer(world, tmp_path / "bad", model=Bad("layer", at), on_nan="skip", **settings)
    model, trainer.gradient.looks_each_step = trainer.model, not late
    summary = trainer.train()
    torch.manual_seed(0)
    without = row_trainer(world, tmp_path / "without", model=Bad("nowhere"), **settings)
    expected, step, take = without.model, without._train_step, without.gradient.step

    def idle(batch: Any) -> None:
        if without.position.step == at:
            without.gradient.step = lambda: without.gradient.drop() or torch.tensor(False)
        step(batch)
        without.gradient.step = take

    without._train_step = idle
    without.train()
    close(weights(model), weights(expected), 0.0)
    assert (summary["steps"], summary["skipped_steps"]) == (15, 1)
    (line,) = lines(tmp_path / "bad", "skipped")
    assert (line["epoch"], line["step"]) == (1, at)
    assert "convs.1" in line["reason"]
    assert [line["seeds"] for line in lines(tmp_path / "bad", "epoch")] == [31 if at == 2 else 40, 41, 41]


def test_a_skipped_step_leaves_running_statistics_alone(world: World, tmp_path: Path):
    torch.manual_seed(0)
    found = train(world, tmp_path, model=Bad("layer", norm=True), on_nan="skip", num_rows=40)
    assert all(tensor.isfinite().all() for tensor in found.values())


def test_too_many_skipped_steps_end_the_run(world: World, tmp_path: Path):
    class Hopeless(RowModel):
        def forward(self, batch: Any) -> Tensor:
            return super().forward(batch) * (float("nan") if self.training and batch.step in (1, 3) else 1.0)

    with pytest.raises(FloatingPointError, match=r"in step 8 \(epoch 2\).*Before it, 3 steps came to nothing"):
        train(world, tmp_path, model=Hopeless(), on_nan="skip", max_skipped=3)
