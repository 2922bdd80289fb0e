"""Small stand-ins for training tests: a loader of batches that never were a graph, a model, an experiment."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import HeteroData

from disttrain.config import Experiment
from disttrain.stop import StopRequest
from disttrain.tasks import NodeClassification
from disttrain.train.trainer import Trainer
from disttrain.world import World

NUM_FEATURES, NUM_CLASSES = 6, 3
MANIFEST = {"fingerprint": "abc", "parts": 2, "method": "metis", "edge_cut": {"total": 0.1}, "files": {}}


class RowLoader:
    """Rows of a seeded table, divided among ranks: a global batch of `batch_size` rows a step, whatever the world.

    The last rank gets a single row of each batch, or none where there is one row only, unless `even`.
    """

    def __init__(self, world: World, num_rows: int, batch_size: int, *, even: bool = False, seed: int = 0) -> None:
        self.world, self.batch_size, self.even = world, batch_size, even
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.randn(num_rows, NUM_FEATURES, generator=generator)
        self.y = (self.x @ torch.randn(NUM_FEATURES, NUM_CLASSES, generator=generator)).argmax(dim=1)
        self.num_steps = -(-num_rows // batch_size)

    rounds = 1

    def steps_of(self, epoch: int, past: Any = ()) -> int:
        return self.num_steps

    def batches(self, epoch: int, start: int = 0, past: Any = ()) -> Generator[HeteroData, None, None]:
        order = torch.randperm(len(self.x), generator=torch.Generator().manual_seed(epoch))
        for step in range(start, self.num_steps):
            whole = order[step * self.batch_size : (step + 1) * self.batch_size]
            mine = self._share(whole)
            batch = HeteroData()
            batch["v"].x, batch["v"].y = self.x[mine], self.y[mine]
            batch["v"].batch_size, batch["v"].input_id = len(mine), mine
            batch.epoch, batch.step, batch.num_global_seeds = epoch, step, len(whole)
            batch.share, batch.closes_step = self.world.rank, True
            yield batch

    def _share(self, rows: Tensor) -> Tensor:
        rank, size = self.world.rank, self.world.size
        if self.even:
            return rows.tensor_split(size)[rank]
        if size == 1:
            return rows
        if rank == size - 1:
            return rows[-1:] if len(rows) > 1 else rows[:0]
        return (rows[:-1] if len(rows) > 1 else rows).tensor_split(size - 1)[rank]


class RowModel(nn.Module):
    def __init__(self, dropout: float = 0.0, norm: bool = False) -> None:
        super().__init__()
        self.inputs = nn.Linear(NUM_FEATURES, 8)
        self.convs = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])
        self.norm: nn.Module = nn.LayerNorm(8) if norm else nn.Identity()
        self.head = nn.Linear(8, NUM_CLASSES)
        self.dropout = dropout

    def forward(self, batch: HeteroData) -> Tensor:
        x = self.inputs(batch["v"].x)
        for conv in self.convs:
            x = nn.functional.dropout(conv(x).relu(), self.dropout, self.training)
        return self.head(self.norm(x))


def by_file() -> None:
    """As `StopFile` does."""
    StopRequest.ask("rows/STOP")


def experiment(run_dir: Path | str, seed: int = 0, **train: Any) -> Experiment:
    return Experiment.model_validate(
        {
            "name": "rows",
            "seed": seed,
            "run_dir": str(run_dir),
            "data": {"source": "generated", "nodes": {"v": {"num_nodes": 10}}},
            "task": {"kind": "node_classification"},
            "model": {"kind": "hetero_conv"},
            "train": {"epochs": 3, "log_every": 2, **train},
        }
    )


def task(*metrics: str) -> NodeClassification:
    return NodeClassification("v", "y", False, NUM_CLASSES, metrics or ("accuracy",))


def row_trainer(
    world: World,
    run_dir: Path | str,
    *,
    dropout: float = 0.3,
    even: bool = False,
    num_rows: int = 41,
    batch_size: int = 10,
    fresh: bool = False,
    seed: int = 0,
    model: nn.Module | None = None,
    loaders: dict[str, Any] | None = None,
    manifest: dict[str, Any] | None = None,
    of: Any = None,
    **train: Any,
) -> Trainer:
    """A trainer over `RowLoader`s: 41 rows in batches of 10 are five steps an epoch, the last of one row.

    Args:
        of: the task; None: `task()`.
    """
    torch.manual_seed(0)
    return Trainer(
        experiment(run_dir, seed, **train),
        world,
        SimpleNamespace(manifest=manifest or MANIFEST),
        of or task(),
        model or RowModel(dropout),
        loaders=loaders
        or {
            "train": RowLoader(world, num_rows, batch_size, even=even),
            "val": RowLoader(world, 17, 5, even=even, seed=1),
            "test": RowLoader(world, 13, 5, even=even, seed=2),
        },
        fresh=fresh,
    )


def stop_after(trainer: Trainer, num_steps: int, *, within: bool = False, by: Callable[[], None] = by_file) -> None:
    """Ask a trainer to stop when so many steps are done.

    Args:
        within: in the validation that comes then.
    """
    step, model = trainer._train_step, trainer.model

    def asked(batch: Any) -> None:
        if trainer.position.step == num_steps:
            by()
        step(batch)

    def hook(module: nn.Module, _: Any) -> None:
        if not module.training and trainer.position.step == num_steps:
            by()

    if within:
        model.register_forward_pre_hook(hook)
    else:
        trainer._train_step = asked


class Killed(Exception):
    """Stands for a process that ends in the middle."""


def kill_after(trainer: Trainer, num_steps: int | None, *, within: bool = False) -> None:
    """Let the trainer "die" when so many steps are done; None: never.

    Args:
        within: in the middle of the step after these, between two batches of it.
    """
    step = trainer._train_step

    def mortal(batch: Any) -> None:
        if trainer.position.step == num_steps and (not within or trainer.gradient.is_open):
            raise Killed
        step(batch)

    trainer._train_step = mortal


def weights(trainer_or_model: Trainer | nn.Module) -> dict[str, Tensor]:
    model = trainer_or_model.model if isinstance(trainer_or_model, Trainer) else trainer_or_model
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def events(run_dir: Path | str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (Path(run_dir) / "metrics.jsonl").read_text().splitlines()]


def train_rows(world: World, run_dir: Path, killed_after: int | None = None, **settings: Any) -> dict[str, Tensor]:
    """Train to the end, or until the process "dies" right after a step; returns the weights."""
    trainer = row_trainer(world, run_dir, **settings)
    model = trainer.model
    kill_after(trainer, killed_after)
    trainer.train()
    return weights(model)
