"""The experiment: all sections together."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, model_validator

from .data import DataSource
from .evaluate import Evaluate
from .launch import Launch
from .model import Model
from .partition import Partition
from .sampling import Sampling, fanout_conflicts
from .section import Section, Seed
from .sweep import Sweep
from .task import GraphTask, Task, task_conflicts
from .train import Train


def _folder(name: str) -> str:
    if not name.strip() or name in (".", "..") or "/" in name or not name.isprintable():
        raise ValueError(f"expected a name that a folder can have, got {name!r} (run_dir takes a path)")
    return name


class Experiment(Section):
    """One experiment: a YAML file, read and checked."""

    name: Annotated[str, AfterValidator(_folder)] = "experiment"
    """Names the run directory."""
    seed: Seed = 0
    """Of first weights, shuffles, draws and dropout: with the same one, a run repeats itself."""
    run_dir: str | None = None
    """Null: `runs/<name>`."""
    data: DataSource
    partition: Partition = Partition()
    task: Task
    model: Model
    sampling: Sampling = Sampling()
    train: Train = Train()
    evaluate: Evaluate = Evaluate()
    launch: Launch = Launch()
    sweep: Sweep | None = None
    """Null: one run."""

    @model_validator(mode="after")
    def _fanout_matches_layers(self) -> Experiment:
        if isinstance(self.task, GraphTask):
            return self
        fanouts = {"fanout": self.sampling.fanout, "eval_fanout": self.sampling.eval_fanout}
        conflicts = fanout_conflicts(self.model.layers, fanouts)
        if conflicts:
            raise ValueError("; ".join(f"sampling.{'.'.join(path)} {text}" for path, text in conflicts.items()))
        return self

    @model_validator(mode="after")
    def _fits_the_task(self) -> Experiment:
        kinds = {
            "task": self.task.kind, "model": self.model.kind, "source": self.data.source, "split": self.data.split.by,
            "evaluate": self.evaluate.method,
        }  # fmt: skip
        conflicts = task_conflicts(kinds)
        if isinstance(self.task, GraphTask) and self.data.transforms and self.sampling.threads_only:
            conflicts["sampling", "worker_kind"] = (
                "threads share the generators that data.transforms draw from; choose auto or processes, or "
                "sampling.workers=0"
            )
        if conflicts:
            raise ValueError("; ".join(f"{'.'.join(path)}: {text}" for path, text in conflicts.items()))
        return self

    @property
    def directory(self) -> str:
        """The run directory."""
        return self.run_dir or f"runs/{self.name}"
