"""The trainer in a world of size one: resuming is exact, stopping, logging, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from disttrain.config import ExperimentError
from disttrain.train.trainer import Trainer
from disttrain.world import World
from tests.training import (
    Killed,
    RowLoader,
    RowModel,
    events,
    row_trainer,
    task,
    train_rows,
    weights,
)  # fmt: skip

pytestmark = pytest.mark.usefixtures("no_fsync")


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_mixed_precision_learns_as_fp32_does(world: World, tmp_path: Path, precision: str):
    losses = {}
    for kind in ("fp32", precision):
        train_rows(world, tmp_path / kind, precision=kind, dropout=0.0, lr=0.01)
        losses[kind] = [line["loss"] for line in events(tmp_path / kind) if line["event"] == "epoch"]
    assert losses[precision] == pytest.approx(losses["fp32"], rel=0.05)
    assert losses[precision][-1] < losses[precision][0]


def test_a_skipped_fp16_step_changes_nothing_and_is_no_error(world: World, tmp_path: Path):
    class Overflowing(RowModel):
        def forward(self, batch: Any) -> Tensor:
            return super().forward(batch) * (float("inf") if self.training and batch.step == 1 else 1.0)

    torch.manual_seed(0)
    model = Overflowing()
    train_rows(world, tmp_path, precision="fp16", epochs=1, log_every=1, model=model)
    assert all(torch.isfinite(tensor).all() for tensor in model.state_dict().values())
    scales = [line["scale"] for line in events(tmp_path) if line["event"] == "train"]
    assert scales == [65536.0, 32768.0, 32768.0, 32768.0, 32768.0]


@pytest.mark.parametrize("optimizer", ["adamw", "adam", "sgd"])
def test_a_skipped_first_step_leaves_no_rubbish_in_the_optimizer(world: World, tmp_path: Path, optimizer: str):
    class Overflowing(RowModel):
        def forward(self, batch: Any) -> Tensor:
            return super().forward(batch) * (float("inf") if self.training and batch.step == 0 else 1.0)

    model = Overflowing()
    train_rows(world, tmp_path, precision="fp16", epochs=1, log_every=1, model=model, optimizer=optimizer)
    assert all(torch.isfinite(tensor).all() for tensor in model.state_dict().values())


def test_a_loss_that_is_not_finite_ends_the_run(world: World, tmp_path: Path):
    class Broken(RowModel):
        def forward(self, batch: Any) -> Tensor:
            return super().forward(batch) * (float("nan") if self.training and batch.step == 3 else 1.0)

    with pytest.raises(FloatingPointError, match=r"first on rank 0 on .*, in step 3 \(epoch 1\)"):
        train_rows(world, tmp_path, model=Broken(), checkpoint={"every_steps": 2})
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
        train_rows(world, tmp_path, model=Broken(), precision="fp16", epochs=20)


def test_the_logged_loss_is_the_mean_over_all_seeds(world: World, tmp_path: Path):
    loader = RowLoader(world, 41, 10)
    model = RowModel()
    start = weights(model)
    train_rows(world, tmp_path, model=model, epochs=1, lr=1e-30, optimizer="sgd")
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
    straight = train_rows(world, tmp_path / "straight", **settings)
    lines = events(tmp_path / "straight")
    losses = [x["metrics"]["loss"] for x in lines if x["event"] == "evaluation" and x["split"] == "val"]
    better = {epoch for epoch in range(1, 9) if losses[epoch - 1] == min(losses[:epoch])}
    assert better < set(range(1, 8))
    names = [path.name for path in (tmp_path / "straight" / "checkpoints").iterdir()]
    assert sorted(names) == [f"step-{5 * epoch:010d}" for epoch in sorted({3, 6, 8} | better)]
    with pytest.raises(Killed):
        train_rows(world, tmp_path / "killed", killed_after=23, **settings)
    resumed = train_rows(world, tmp_path / "killed", **settings)
    assert all(torch.equal(resumed[name], tensor) for name, tensor in straight.items())


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
