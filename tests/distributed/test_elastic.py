"""Runs that go on with fewer machines, and with all again: the loss goes the way that it goes with all throughout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.data import HeteroData

from disttrain.config import Experiment, ExperimentError, Launch
from disttrain.train import job
from disttrain.train.checkpoint import CheckpointDirectory
from disttrain.train.trainer import Trainer
from disttrain.world import World
from tests.ranks import run_ranks
from tests.training import events

_NODE = {"source": "python", "function": "tests.distributed.test_elastic:towns", "split": {"by": "masks"}}
_GRAPHS = {
    "source": "python", "function": "tests.collections_of_graphs:rings", "args": {"count": 60},
    "split": {"by": "stratified", "train": 0.6, "val": 0.2, "test": 0.2},
}  # fmt: skip


def towns() -> HeteroData:
    """Three communities that hardly know each other: each becomes a partition; the third has no training node."""
    generator = torch.Generator().manual_seed(0)
    count = 70
    data: Any = HeteroData()
    data["v"].x = torch.randn(3 * count, 4, generator=generator)
    data["v"].y = (data["v"].x.sum(dim=1) > 0).long()
    ends = torch.randint(0, count, (2, 900), generator=generator) + count * torch.randint(
        0, 3, (900,), generator=generator
    )
    data["v", "to", "v"].edge_index = torch.cat(
        [ends, torch.tensor([[0, count, 2 * count], [count, 2 * count, 0]])], dim=1
    )
    order = torch.arange(3 * count)
    data["v"].train_mask = (order < 2 * count) & (order % 5 > 1)
    data["v"].val_mask, data["v"].test_mask = order % 5 == 0, order % 5 == 1
    return data


def experiment(directory: str, name: str, nodes: int, settings: dict[str, Any]) -> Experiment:
    about_graphs = settings.get("graphs", False)
    plain: dict[str, Any] = {
        "name": name,
        "run_dir": f"{directory}/runs/{name}",
        "data": _GRAPHS | {"store": f"{directory}/store"} | settings.get("data", {}) if about_graphs else _NODE,
        "partition": {} if about_graphs else {"dir": f"{directory}/parts{nodes}"},
        "task": {"kind": "graph_classification"} if about_graphs else {"kind": "node_classification"},
        "model": settings.get("model", {"kind": "hetero_conv", "hidden": 8, "dropout": 0.3}),
        "sampling": {"batch_size": 6, **({} if about_graphs else {"fanout": [3, 2]}), **settings.get("sampling", {})},
        "train": {
            "epochs": 2, "log_every": 1, "threads": 1, "device": "cpu", "timeout": 60, **settings.get("train", {}),
            "checkpoint": {"every_steps": 1 if "elastic" in settings.get("train", {}) else None},
        },
        "launch": {"nodes": nodes, "min_nodes": 1},
    }  # fmt: skip
    return Experiment.model_validate(plain)


def to_step(experiment: Experiment, last: int | None) -> Experiment:
    if last is None:
        return experiment
    return experiment.model_copy(update={"train": experiment.train.model_copy(update={"max_steps": last})})


def train(world: World, directory: str, nodes: int, runs: list[tuple[str, int | None, dict[str, Any]]]) -> None:
    """Each run to a step, or to its end."""
    for name, last, settings in runs:
        job.run(to_step(experiment(directory, name, nodes, settings), last), world)


def train_by(directory: Path, nodes: int, legs: list[tuple[int, int | None]], runs: dict[str, dict[str, Any]]) -> None:
    """Train with changing numbers of machines, beside a run with all of them that nobody disturbs.

    Args:
        legs: machines, and the last step that they do.
    """
    for number, (machines, last) in enumerate(legs):
        undisturbed = [(f"{name}-whole", None, settings) for name, settings in runs.items()] if number == 0 else []
        disturbed = [(name, last, settings) for name, settings in runs.items()]
        run_ranks(train, machines, str(directory), nodes, undisturbed + disturbed)


def curve(run: Path) -> list[tuple[str, int, float]]:
    return [
        (event["event"], event["step"], event["metrics"]["loss"] if event["event"] == "evaluation" else event["loss"])
        for event in events(run)
        if event["event"] in ("train", "epoch", "evaluation")
    ]


def by_step(found: list[tuple[str, int, float]]) -> dict[tuple[str, int], float]:
    """Legs that end within an epoch write an evaluation and an epoch's line of their own."""
    return {(event, step): loss for event, step, loss in found}


def newest(run: Path) -> dict[str, Tensor]:
    checkpoints = CheckpointDirectory(run / "checkpoints")
    return checkpoints.read_tensors(checkpoints.names()[0], "model/")


def same_course(directory: Path, name: str) -> None:
    """All that the undisturbed run wrote down, and its weights."""
    whole, run = directory / "runs" / f"{name}-whole", directory / "runs" / name
    straight, found = by_step(curve(whole)), by_step(curve(run))
    assert len(straight) > 10 and straight.keys() <= found.keys()
    assert {at: found[at] for at in straight} == pytest.approx(straight, rel=2e-5, abs=1e-6), name
    weights = newest(run)
    for tensor, value in newest(whole).items():
        assert torch.allclose(weights[tensor], value, rtol=1e-4, atol=1e-5), (name, tensor)
    summaries = [json.loads((path / "summary.json").read_text()) for path in (whole, run)]
    assert summaries[0]["num_evaluated"] == summaries[1]["num_evaluated"]
    assert summaries[0]["steps"] == summaries[1]["steps"]


def begun(directory: Path, name: str) -> list[tuple[int, int, int | None]]:
    """Ranks, machines and shares of each leg."""
    found = [event for event in events(directory / "runs" / name) if event["event"] in ("start", "resume")]
    return [(event["world_size"], event["nodes"], event.get("shares")) for event in found]


NORMED = {"kind": "custom", "module": "tests.distributed.test_elastic:Normed"}
RUNS: dict[str, dict[str, Any]] = {
    "local": {},
    "anywhere": {"sampling": {"locality": False}, "train": {"accumulate": 2, "epochs": 3}},
    "falling": {"train": {"scheduler": {"kind": "step", "step_epochs": 1}, "early_stop": {"metric": "accuracy"}}},
    "normed": {"model": NORMED},
}


class Normed(torch.nn.Module):
    """With a batch norm of its own on each rank."""

    def __init__(self, schema: Any, target: str, out_channels: int) -> None:
        super().__init__()
        # No bias, which the norm takes away again: its gradient is rounding, of which Adam makes whole steps.
        self.first, self.norm = torch.nn.Linear(4, 8, bias=False), torch.nn.BatchNorm1d(8)
        self.last = torch.nn.Linear(8, out_channels)

    def forward(self, batch: Any) -> Tensor:
        x = self.first(batch["v"].x)
        if len(x) > 1 or not self.training:
            x = self.norm(x)
        unused = sum(parameter.sum() * 0.0 for parameter in self.parameters())
        return self.last(x.relu())[: batch["v"].batch_size] + unused


def test_two_machines_one_and_two_again(tmp_path: Path) -> None:
    """The changes come in the middle of epochs."""
    train_by(tmp_path, 2, [(2, 4), (1, 9), (2, None)], RUNS)
    for name in RUNS:
        same_course(tmp_path, name)
        assert begun(tmp_path, name) == [(2, 2, None), (1, 1, 2), (2, 2, None)]


def test_three_machines_two_and_one(tmp_path: Path) -> None:
    """With two of three, one rank has two shares of a step and the other one; a partition has no seed."""
    joined = {**GRAPH_RUNS["joined"], "train": {"epochs": 6}}
    runs = {name: RUNS[name] for name in ("local", "normed")} | {"joined": joined}
    train_by(tmp_path, 3, [(3, 2), (2, 4), (1, 7), (3, None)], runs)
    for name in runs:
        same_course(tmp_path, name)
        assert begun(tmp_path, name) == [(3, 3, None), (2, 2, 3), (1, 1, 3), (3, 3, None)]


GRAPH_RUNS: dict[str, dict[str, Any]] = {
    "rounds": {"graphs": True, "model": {"kind": "gin", "hidden": 8, "layers": 2, "norm": "layer", "dropout": 0.2}},
    "joined": {"graphs": True, "model": {"kind": "gin", "hidden": 8, "layers": 2, "norm": "batch"}},
    "sharded": {
        "graphs": True, "data": {"shard": True, "storage": "memory"},
        "model": {"kind": "gin", "hidden": 8, "layers": 2, "norm": "layer"},
    },
    "bounded": {
        "graphs": True, "sampling": {"max_nodes": 40},
        "model": {"kind": "gin", "hidden": 8, "layers": 2, "norm": "layer"},
    },
}  # fmt: skip


def test_collections_of_graphs(tmp_path: Path) -> None:
    runs = {name: {**settings, "train": {"epochs": 4}} for name, settings in GRAPH_RUNS.items()}
    train_by(tmp_path, 2, [(2, 4), (1, 8), (2, None)], runs)
    for name in GRAPH_RUNS:
        same_course(tmp_path, name)
        assert begun(tmp_path, name) == [(2, 2, None), (1, 1, 2), (2, 2, None)]


def two_ranks(world: World, directory: str, runs: list[tuple[str, int | None]]) -> None:
    """Of runs that know nothing of machines that come and go."""
    for name, last in runs:
        settings = GRAPH_RUNS["rounds"] if name.startswith("graphs") else {"sampling": {"locality": False}}
        made = experiment(directory, name, 2, {**settings, "train": {"epochs": 3}})
        parts = made.partition.model_copy(update={"parts": 2})
        job.run(to_step(made.model_copy(update={"launch": Launch(), "partition": parts}), last), world)


def test_the_same_ranks_on_one_machine_instead_of_two(tmp_path: Path) -> None:
    """From the middle of an epoch: what a step has does not depend on where the ranks are."""
    run_ranks(two_ranks, 2, str(tmp_path), [("graphs", 4), ("nodes", 4)])
    runs = [("graphs", None), ("nodes", None), ("graphs-whole", None), ("nodes-whole", None)]
    run_ranks(two_ranks, 2, str(tmp_path), runs, machines=1)
    for name in ("graphs", "nodes"):
        same_course(tmp_path, name)
        whole, epochs = (
            [event["seeds"] for event in events(tmp_path / "runs" / run) if event["event"] == "epoch"]
            for run in (f"{name}-whole", name)
        )
        assert epochs[-2:] == whole[1:] and whole[0] == whole[1] == whole[2] > 0, f"{name}: each seed once an epoch"


PER_RANK: dict[str, dict[str, Any]] = {
    "local": {"train": {"elastic": {"keep": "per_rank"}, "scheduler": {"kind": "linear"}}},
    "anywhere": {"sampling": {"locality": False}, "train": {"elastic": {"keep": "per_rank", "lr": "sqrt"}}},
    "graphs": {**GRAPH_RUNS["rounds"], "train": {"epochs": 3, "elastic": {"keep": "per_rank", "lr": "constant"}}},
}
"""The batch of each rank stays; what a step has changes with the machines."""
Seen = list[tuple[str, int, int, list[int]]]
"""Run, epoch, step of the epoch, places of the seeds in the split: of each batch of a rank."""


def per_rank(world: World, directory: str, last: int | None) -> Seen:
    """To a step, with a checkpoint of each."""
    seen: Seen = []
    for name, settings in PER_RANK.items():
        try:
            train_to(world, experiment(directory, name, 2, settings), last, name, seen)
        except Stopped:
            pass
    return seen


class Stopped(Exception):
    """Stands for a machine that is lost."""


def train_to(world: World, experiment: Experiment, last: int | None, name: str, seen: Seen) -> None:
    """Not by `max_steps`, which is part of a schedule that falls to the end."""
    step = Trainer._train_step

    def mortal(self: Trainer, batch: Any) -> None:
        if last is not None and self.position.step == last and not self.gradient.is_open:
            raise Stopped
        seen.append((name, batch.epoch, batch.step, batch[self.task.node_type].input_id.tolist()))
        step(self, batch)

    Trainer._train_step = mortal
    try:
        job.run(experiment, world)
    finally:
        Trainer._train_step = step


def test_what_each_rank_has_may_stay_instead(tmp_path: Path) -> None:
    """The changes come in the middle of epochs: after 4 steps of two ranks, and after 8 of one."""
    seen: Seen = []
    for machines, last in ((2, 4), (1, 12), (2, None)):
        for of_rank in run_ranks(per_rank, machines, str(tmp_path), last):
            seen += of_rank
    for name in PER_RANK:
        found = events(tmp_path / "runs" / name)
        num_seeds, steps = (31, [3, 5, 5]) if name == "graphs" else (84, [10, 8])
        for epoch in range(len(steps)):
            batches = [(step, places) for run, of, step, places in seen if (run, of) == (name, epoch)]
            once = sorted(place for _, places in batches for place in places)
            assert once == list(range(num_seeds)), f"{name}, epoch {epoch}: each seed once"
            assert {step for step, _ in batches} == set(range(steps[epoch])), f"{name}, epoch {epoch}"
        epochs = [(event["seeds"], event["step"]) for event in found if event["event"] == "epoch"]
        assert epochs == [(num_seeds, sum(steps[: epoch + 1])) for epoch in range(len(steps))], name
        rates = {event["step"]: event["lr"] for event in found if event["event"] == "train"}
        before, after = rates[4], rates[5]
        if name == "local":  # 7 steps an epoch with two machines, 14 with one; linear from 1 to 0
            assert before == pytest.approx(0.005 * (1 - 3 / 13))
            assert after == pytest.approx(0.005 / 2 * (1 - 8 / 27))
        else:
            assert after / before == pytest.approx({"anywhere": 0.5**0.5, "graphs": 1.0}[name])


def refusals(world: World, directory: str) -> list[str]:
    """A run of two ranks, gone on with in ways that it cannot be."""
    said = []
    for changes in (
        {"launch": {}},
        {"launch": {"nodes": 2}},
        {"launch": {"nodes": 3, "min_nodes": 2}},
        {"launch": {"nodes": 2, "min_nodes": 1}, "train": {"elastic": {"keep": "per_rank"}}},
        {"launch": {"nodes": 2, "min_nodes": 1}, "partition": {"parts": 1}},
    ):
        plain = experiment(directory, "local", 2, {}).model_dump()
        for section, values in changes.items():
            plain[section] = values if section == "launch" else plain[section] | values
        with pytest.raises(ExperimentError) as raised:
            job.run(Experiment.model_validate(plain), world)
        said.append(str(raised.value))
    return said


def test_what_cannot_be_gone_on_with_is_refused_with_advice(tmp_path: Path) -> None:
    run_ranks(train, 2, str(tmp_path), 2, [("local", 4, {})])
    plainly, too_few, many, policy, parts = run_ranks(refusals, 1, str(tmp_path))[0]
    assert "world.ranks: 2 in the checkpoint, 1 now" in plainly
    assert "set launch.nodes=2 and launch.min_nodes=1" in plainly
    assert "launch.nodes is 2, but 1 machine was started" in too_few and "launch.min_nodes" in too_few
    assert "launch.nodes is 3 and launch.min_nodes 2, but 1 machine was started" in many
    assert "start torchrun with --nnodes 2:3" in many
    assert "world.elastic" in policy
    assert "partition.parts is 1, fewer than the 2 machines" in parts
