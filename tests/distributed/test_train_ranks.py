"""The trainer on several ranks, with batches that never were a graph: exact means, exact resume, agreement."""

from __future__ import annotations

import os
import pickle
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from disttrain.config import ExperimentError
from disttrain.stop import Stopped
from disttrain.train.checkpoint import CheckpointDirectory
from disttrain.world import World
from tests.ranks import RankFailed, exit_codes, run_ranks
from tests.training import (
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


def train(world: World, run_dir: str, settings: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    trainer = row_trainer(world, run_dir, **settings)
    model = trainer.model
    summary = trainer.train()
    return weights(model), summary


def train_and_resume(world: World, run_dir: str) -> list[dict[str, Tensor]]:
    """Undisturbed; then interrupted after each of some steps and resumed. All weights."""
    settings = {"checkpoint": {"every_steps": 2}, "epochs": 2}
    found = [train(world, f"{run_dir}/straight", settings)[0]]
    for killed_after in (3, 5, 8):
        trainer = row_trainer(world, f"{run_dir}/{killed_after}", **settings)
        kill_after(trainer, killed_after)
        with pytest.raises(Killed):
            trainer.train()
        found.append(train(world, f"{run_dir}/{killed_after}", settings)[0])
    return found


def batch_norm(world: World, run_dir: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Running statistics, straight and resumed; each rank sees other rows."""

    def run(name: str, max_steps: int | None) -> dict[str, Tensor]:
        torch.manual_seed(0)
        model = RowModel()
        model.norm = torch.nn.BatchNorm1d(8)
        row_trainer(
            world, f"{run_dir}/{name}", model=model, num_rows=36, batch_size=12, even=True, max_steps=max_steps,
            checkpoint={"every_steps": 2},
        ).train()  # fmt: skip
        return weights(model)

    straight = run("straight", None)
    run("resumed", 4)
    return straight, run("resumed", None)


def compare_worlds(world: World, run_dir: str) -> tuple[dict[str, Tensor], dict[str, Any], dict[str, Any]]:
    """No dropout, uneven ranks (the last one has single rows, and an empty batch at the end of each epoch)."""
    settings = {"dropout": 0.0, "grad_clip": 0.3, "log_every": 2, "fp32_layers": []}
    found, summary = train(world, run_dir, settings)
    auroc = evaluate_alone(world)
    return found, summary, auroc


def evaluate_alone(world: World) -> dict[str, Any]:
    """All metrics of a model over rows of which the last rank has few."""
    from disttrain.train.evaluate import evaluate
    from disttrain.train.phases import PhaseClock
    from disttrain.train.precision import Precision
    from disttrain.train.transfer import Transfer

    torch.manual_seed(1)
    clock = PhaseClock(world.device)
    whole = task("accuracy", "micro_f1", "macro_f1", "auroc", "average_precision")
    found = evaluate(
        RowModel(),
        whole,
        RowLoader(world, 51, 10),
        Transfer(world.device, clock),
        Precision("fp32", world.device),
        world,
    )
    return {**found.metrics, "num_evaluated": found.num_evaluated}


@pytest.mark.parametrize("session", ["two", "three"])
def test_several_ranks_train_as_one_does(session: str, one: Path, request: pytest.FixtureRequest):
    """The gradient is the mean over the global batch, whatever the share of each rank; metrics are of all seeds."""
    single, summary, metrics = pickle.loads((one / "results").read_bytes())[:3]
    run_dir, results = request.getfixturevalue(session)
    for rank in results:
        found, other, other_metrics = rank["compare_worlds"]
        for name, tensor in single.items():
            assert torch.allclose(found[name], tensor, atol=1e-5), name
            assert torch.equal(found[name], results[0]["compare_worlds"][0][name]), name
        assert other["num_evaluated"] == summary["num_evaluated"] == {"val": 17, "test": 13}
        assert other["val"] == pytest.approx(summary["val"], abs=1e-5)
        assert other_metrics == pytest.approx(metrics, abs=1e-7)
        assert other_metrics["num_evaluated"] == 51
        assert len(other["peak_rss_bytes"]) == len(other["peak_pss_bytes"]) == len(results)
    losses = [[e["loss"] for e in events(path) if "loss" in e] for path in (one, run_dir / "compare_worlds")]
    assert losses[1] == pytest.approx(losses[0], abs=1e-5)


def test_resuming_is_exact_on_three_ranks(three: Session):
    """Three, because there the order of summation depends on how gradients lie in DDP's buckets."""
    for rank in three[1]:
        straight, *resumed = rank["train_and_resume"]
        for found in resumed:
            for name, tensor in straight.items():
                assert torch.equal(found[name], tensor), name


def test_running_statistics_are_means_over_ranks_and_resume_exactly(three: Session):
    found = [rank["batch_norm"] for rank in three[1]]
    for straight, resumed in found:
        for name, tensor in straight.items():
            assert torch.equal(resumed[name], tensor), name
            assert torch.equal(found[0][0][name], tensor), name
    assert found[0][0]["norm.running_mean"].abs().sum() > 0


def mixed_precision(world: World, run_dir: str) -> dict[str, Tensor]:
    """fp16 whose gradients overflow on one rank only, in one step."""

    class Overflowing(RowModel):
        def forward(self, batch: Any) -> Tensor:
            bad = self.training and batch.step == 1 and world.rank == 1
            return super().forward(batch) * (float("inf") if bad else 1.0)

    torch.manual_seed(0)
    model = Overflowing()
    _, summary = train(world, run_dir, {"precision": "fp16", "model": model, "log_every": 1, "fp32_layers": ["inputs"]})
    assert summary["steps"] == 15
    return weights(model)


def test_all_ranks_skip_the_same_fp16_steps(two: Session):
    run_dir, ranks = two
    first, second = (rank["mixed_precision"] for rank in ranks)
    for name, tensor in first.items():
        assert torch.isfinite(tensor).all()
        assert torch.equal(second[name], tensor)
    assert [e["scale"] for e in events(run_dir / "mixed_precision") if "scale" in e][:3] == [65536.0, 32768.0, 32768.0]


def stop_one(world: World, run_dir: str) -> tuple[int, str]:
    """Only rank 1 is told to stop."""
    trainer = row_trainer(world, run_dir, log_every=100)
    stop_after(trainer, 5, by=lambda: os.kill(os.getpid(), signal.SIGTERM) if world.rank == 1 else None)
    with pytest.raises(Stopped) as raised:
        trainer.train()
    return trainer.position.step, str(raised.value)


def test_all_ranks_stop_at_the_same_step(two: Session):
    run_dir, ranks = two
    for step, text in (rank["stop_one"] for rank in ranks):
        assert step == 6
        assert "SIGTERM after step 6" in text
    assert (run_dir / "stop_one" / "checkpoints" / "step-0000000006" / "manifest.json").exists()


def stop_with_statistics(world: World, run_dir: str) -> list[dict[str, Tensor]]:
    """Weights and running statistics, undisturbed and stopped: where nobody would have averaged them, at the end of an
    epoch, and in a validation. Only one rank is told to stop."""
    settings = {"num_rows": 36, "batch_size": 6, "even": True, "epochs": 2, "log_every": 4}

    def run(name: str, *stop: Any) -> dict[str, Tensor]:
        torch.manual_seed(0)
        model = RowModel()
        model.norm = torch.nn.BatchNorm1d(8)
        trainer = row_trainer(world, f"{run_dir}/{name}", model=model, **settings)
        if stop:
            stop_after(trainer, stop[0], within=stop[1], by=lambda: by_file() if world.rank == world.size - 1 else None)
            with pytest.raises(Stopped):
                trainer.train()
            checkpoints = CheckpointDirectory(Path(run_dir, name, "checkpoints"))
            kept = checkpoints.read_tensors(checkpoints.names()[0])
            of_ranks = [kept[f"share-{rank}/0"] for rank in range(world.size)]
            assert torch.equal(of_ranks[0], of_ranks[1]) == (name != "mid")
            # Who predicts from there has those of all ranks.
            assert torch.allclose(kept["model/norm.running_mean"], torch.stack(of_ranks).mean(dim=0), atol=1e-6)
            return run(name)
        trainer.train()
        return weights(model)

    return [run("straight"), run("mid", 2, False), run("end", 5, False), run("within", 6, True)]


def test_a_stopped_run_ends_with_the_same_running_statistics_as_an_undisturbed_one(three: Session):
    for rank in three[1]:
        straight, *stopped = rank["stop_with_statistics"]
        assert straight["norm.running_mean"].abs().sum() > 0
        for found in stopped:
            assert all(torch.equal(found[name], tensor) for name, tensor in straight.items())


def nan_on_one(world: World, run_dir: str) -> str:
    class Broken(RowModel):
        def forward(self, batch: Any) -> Tensor:
            bad = self.training and batch.step == 3 and world.rank == 1
            return super().forward(batch) * (float("nan") if bad else 1.0)

    with pytest.raises(FloatingPointError) as raised:
        row_trainer(world, run_dir, model=Broken()).train()
    return str(raised.value)


def test_a_nan_names_the_rank_and_the_step(two: Session):
    for text in (rank["nan_on_one"] for rank in two[1]):
        # In step 4 it is everywhere; the first one counts.
        assert "first on rank 1 on " in text
        assert "in step 3 (epoch 1)" in text


def weighted_and_skipping(world: World, run_dir: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Weighted classes, two batches a step, and a step left out in which the last rank's loss is not finite."""

    class Broken(RowModel):
        def forward(self, batch: Any) -> Tensor:
            bad = self.training and batch.step == 2 and batch.epoch == 0 and world.rank == world.size - 1
            return super().forward(batch) * (float("nan") if bad else 1.0)

    torch.manual_seed(0)
    weighted = replace(task(), weights=(0.3, 1.0, 5.0))
    settings = {"of": weighted, "model": Broken(), "accumulate": 2, "on_nan": "skip", "log_every": 1}
    return train(world, run_dir, settings)


def test_weights_accumulation_and_skipped_steps_are_those_of_one_rank(one: Path, three: Session):
    single, summary = pickle.loads((one / "results").read_bytes())[3]
    for rank in three[1]:
        found, other = rank["weighted_and_skipping"]
        for name, tensor in single.items():
            assert torch.allclose(found[name], tensor, atol=1e-5), name
        assert (other["steps"], other["skipped_steps"]) == (summary["steps"], summary["skipped_steps"]) == (9, 1)
        assert other["val"] == pytest.approx(summary["val"], abs=1e-5)
    (line,) = (e for e in events(three[0] / "weighted_and_skipping") if e["event"] == "skipped")
    assert "first on rank 2 on " in line["reason"]
    assert "in step 1 (epoch 1): the model's output (3 NaN of 3 values)" in line["reason"]


def raise_on_one(world: World, run_dir: str) -> None:
    class Broken(RowModel):
        def forward(self, batch: Any) -> Tensor:
            if self.training and batch.step == 3 and world.rank == 1:
                raise KeyError("a mistake in the user's model")
            return super().forward(batch)

    row_trainer(world, run_dir, model=Broken()).train()


def test_a_rank_that_raises_ends_them_all(tmp_path: Path):
    with pytest.raises(RankFailed) as raised:
        run_ranks(raise_on_one, 2, str(tmp_path), timeout=20.0)
    assert (raised.value.rank, raised.value.kind) == (1, "KeyError")


def survivor(world: World, run_dir: str) -> str:
    """What rank 0 says when rank 1 is gone."""

    class Broken(RowModel):
        def forward(self, batch: Any) -> Tensor:
            if self.training and batch.step == 3 and world.rank == 1:
                os._exit(0)
            return super().forward(batch)

    try:
        row_trainer(world, run_dir, model=Broken()).train()
    except Exception as error:
        Path(run_dir, "said").write_text(f"{type(error).__name__} {error}")
        os._exit(0)
    return ""


def test_a_rank_that_vanishes_is_named(tmp_path: Path):
    assert exit_codes(survivor, 2, str(tmp_path)) == [0, 0]
    said = (tmp_path / "said").read_text()
    assert said.startswith("PeerError rank 0 on ")
    assert "waited for rank 1 in adding up gradients (epoch 1, step 3 of it)" in said


def refuse(world: World, run_dir: str) -> str:
    row_trainer(world, run_dir, epochs=1).train()
    with pytest.raises(ExperimentError) as raised:
        row_trainer(world, run_dir, epochs=2, lr=0.1).train()
    return str(raised.value)


def test_a_refused_resume_is_said_once(two: Session):
    first, second = (rank["refuse"] for rank in two[1])
    assert first == second
    assert "train.lr: 0.005 in the checkpoint, 0.1 now" in first
    assert "rank" not in first


def separate_disks(world: World, run_dir: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Each machine has a run directory of its own, and after the restart rank 0 is on the other one."""

    def run(disks: str, killed_after: int | None, disk: int) -> dict[str, Tensor]:
        trainer = row_trainer(world, f"{run_dir}/{disks}/{disk}", checkpoint={"every_steps": 2})
        model = trainer.model
        kill_after(trainer, killed_after)
        try:
            trainer.train()
        except Killed:
            pass
        return weights(model)

    straight = run("straight", None, world.rank)
    run("killed", 7, world.rank)
    assert not Path(run_dir, "killed", "1").exists()
    return straight, run("killed", None, 1 - world.rank)


def test_a_checkpoint_on_another_machines_disk_is_found(two: Session):
    run_dir, ranks = two
    for straight, resumed in (rank["separate_disks"] for rank in ranks):
        assert all(torch.equal(resumed[name], tensor) for name, tensor in straight.items())
    assert events(run_dir / "separate_disks" / "killed" / "1")[0]["event"] == "resume"


def in_turn(world: World, run_dir: str, names: list[str]) -> dict[str, Any]:
    return {name: globals()[name](world, f"{run_dir}/{name}") for name in names}


# Starting ranks costs seconds: those that survive their scenarios go through all of them.
Session = tuple[Path, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of a single rank, with its results."""
    run_dir = tmp_path_factory.mktemp("one")
    with World.start(device="cpu", threads=1) as world:
        results = *compare_worlds(world, str(run_dir)), weighted_and_skipping(world, str(run_dir / "weighted"))
    (run_dir / "results").write_bytes(pickle.dumps(results))
    return run_dir


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Session:
    run_dir = tmp_path_factory.mktemp("two")
    names = ["compare_worlds", "mixed_precision", "stop_one", "nan_on_one", "refuse", "separate_disks"]
    return run_dir, run_ranks(in_turn, 2, str(run_dir), names)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Session:
    run_dir = tmp_path_factory.mktemp("three")
    names = ["compare_worlds", "train_and_resume", "batch_norm", "stop_with_statistics", "weighted_and_skipping"]
    return run_dir, run_ranks(in_turn, 3, str(run_dir), names)
