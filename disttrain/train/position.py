"""Where a run is, and the figures it has gathered: all that a checkpoint holds besides tensors."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..config import ExperimentError, Train
from ..sampling.seeds import Past
from ..tasks.task import Direction
from .stop import BestSoFar


@dataclass
class MeanLoss:
    """The exact (weighted) mean over seeds of all ranks."""

    total: float = 0.0
    weight: float = 0.0
    """As many as there are seeds, where each counts 1."""
    num_seeds: int = 0

    def add(self, total: float, weight: float, num_seeds: int) -> None:
        self.total += total
        self.weight += weight
        self.num_seeds += num_seeds

    @property
    def mean(self) -> float:
        return self.total / self.weight if self.weight else float("nan")


@dataclass
class Position:
    """What was consumed (not what was prefetched). The same on all ranks whenever a checkpoint is written."""

    best: BestSoFar
    stop: BestSoFar | None
    """For early stopping."""
    machines: int = 1
    """Among whose ranks a step is divided, where that changes within a run (`roster.steps_change`); else 1: the same
    ranks may be those of other machines."""
    epoch: int = 0
    epoch_step: int = 0
    """Batches of this epoch that are done."""
    past: Past = ()
    """Of them, those that were done with other numbers of machines."""
    step: int = 0
    """Optimizer steps of all epochs that are done."""
    ahead: int = 0
    """Steps that the learning rate's schedule is further, as some were done with other numbers of machines."""
    skipped: int = 0
    """Of the steps, those that came to nothing because something was not finite."""
    epoch_loss: MeanLoss = field(default_factory=MeanLoss)
    best_evaluation: dict[str, Any] | None = None
    """Of the best epoch's validation, see `Evaluation.kept`; of the last one while the metric has no value."""
    before_extra: dict[str, Any] | None = None
    """What was best before the evaluation at the run's end, where only the end made it: a run that is given more epochs
    or steps afterwards goes on as if it had not been (`forget_extra`)."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Per phase, of the attempts before this one."""
    unscored: bool = False
    """The end of an epoch, or of the run within one, has been reached, and what is done there is still to be done."""
    moved: bool = False
    """Whether the checkpoint that this one was restored from was written with another number of machines."""
    metrics_length: int = 0
    """Bytes of `metrics.jsonl` when the checkpoint was written."""

    def state(self) -> dict[str, Any]:
        """JSON."""
        return {
            "epoch": self.epoch,
            "epoch_step": self.epoch_step,
            "worlds": [*self.past, (self.machines, self.epoch_step - sum(steps for _, steps in self.past))],
            "ahead": self.ahead,
            "step": self.step,
            "skipped": self.skipped,
            "epoch_loss": [self.epoch_loss.total, self.epoch_loss.weight, self.epoch_loss.num_seeds],
            **self._scores(),
            "before_extra": self.before_extra,
            "unscored": self.unscored,
        }

    def _scores(self) -> dict[str, Any]:
        return {
            "best": self.best.state(),
            "stop": self.stop.state() if self.stop else None,
            "best_evaluation": self.best_evaluation,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.epoch, self.epoch_step, self.step = state["epoch"], state["epoch_step"], state["step"]
        self.skipped, self.ahead = state["skipped"], state.get("ahead", 0)
        # Of the epoch, in the end with the machines of the checkpoint.
        *past, last = [tuple(world) for world in state.get("worlds", [(self.machines, self.epoch_step)])]
        past = past if last[0] == self.machines else [*past, last]
        self.past = tuple((machines, steps) for machines, steps in past if steps)
        self.moved = last[0] != self.machines
        self.epoch_loss = MeanLoss(*state["epoch_loss"])
        self._restore_scores(state)
        self.before_extra = state.get("before_extra")
        self.unscored = state.get("unscored", False)
        self.seconds = state["seconds"]
        self.metrics_length = state["metrics_length"]

    def _restore_scores(self, state: dict[str, Any]) -> None:
        self.best.restore(state["best"])
        if self.stop is not None and state["stop"] is not None:
            self.stop.restore(state["stop"])
        self.best_evaluation = state["best_evaluation"]

    def remember_extra(self, extra: bool) -> None:
        """Called before each evaluation: whether only the run's end makes it."""
        self.before_extra = self._scores() if extra else None

    def forget_extra(self) -> None:
        """The run does not end where it was."""
        if self.before_extra is not None:
            self._restore_scores(self.before_extra)
            self.before_extra = None

    def next_epoch(self) -> None:
        self.epoch, self.epoch_step, self.past, self.epoch_loss = self.epoch + 1, 0, (), MeanLoss()

    @property
    def best_steps(self) -> list[int]:
        """Whose weights are still wanted."""
        steps = self.best.step, self.before_extra["best"]["step"] if self.before_extra is not None else None
        return [step for step in steps if step is not None]


def first_position(train: Train, directions: Mapping[str, Direction], machines: int = 1) -> Position:
    """Where a run begins, with the metrics that choose its best epoch and its end.

    Args:
        directions: the task's metrics, and which way each gets better; `loss` comes with them.
        machines: see `Position`.

    Raises:
        ExperimentError: a metric that the task has not, or one that should get better the other way.
    """
    known: dict[str, Direction] = {**directions, "loss": "min"}
    early_stop = train.early_stop
    for path, name in (("early_stop.metric", early_stop and early_stop.metric), ("best_metric", train.best_metric)):
        if name is not None and name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else "add it to task.metrics"
            raise ExperimentError(f"train.{path}: the task has no metric {name!r}, only {', '.join(known)}; {hint}")
    if early_stop and early_stop.mode not in ("auto", known[early_stop.metric]):
        better = known[early_stop.metric]
        raise ExperimentError(
            f"train.early_stop: {early_stop.metric} gets better as it {'falls' if better == 'min' else 'rises'}; set "
            f"train.early_stop.mode={better}, or leave it out"
        )
    chosen = train.best_metric or (early_stop.metric if early_stop else next(iter(known)))
    stop = BestSoFar(early_stop.metric, known[early_stop.metric]) if early_stop else None
    return Position(best=BestSoFar(chosen, known[chosen]), stop=stop, machines=machines)
