"""What a run keeps on the disk, and how it is begun, gone on with and ended: directory, checkpoints, figures.

Rank 0 keeps it. Where machines come and go (`launch.min_nodes`) and do not see rank 0's disk, each machine does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ..config import Experiment
from ..report.run_directory import RunDirectory, open_run_directory
from ..report.run_report import RunReport
from ..stop import StopRequest
from ..world import World
from .checkpoint import CheckpointDirectory, named_checkpoint, newest_checkpoint, share_tensors
from .identity import check_identity
from .optimizer import optimizer_tensors, restore_optimizer
from .position import Position
from .precision import Precision
from .running_statistics import RunningStatistics

logger = logging.getLogger(__name__)

T = TypeVar("T")


class SavedRun:
    """A run's directory, which its keepers write, and the state that checkpoints hold: every rank calls every method.

    Args:
        identity: of `run_identity`; only checkpoints of the same run are gone on from.
        sizes: of a collection of graphs, see `check_identity`.
        labels: of `Task.describe`, without which the model's output means nothing.
        schema: of the data, by which the model's tensors are sized; None: it is found again from the same data.
        position, model, optimizer, precision, statistics: what is saved, and put back in place.
    """

    def __init__(
        self,
        experiment: Experiment,
        world: World,
        identity: dict[str, Any],
        sizes: dict[str, int],
        labels: dict[str, Any],
        schema: dict[str, Any] | None,
        position: Position,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        precision: Precision,
        statistics: RunningStatistics,
    ) -> None:
        self._experiment, self._world, self._identity, self._labels = experiment, world, identity, labels
        self._sizes = sizes
        self._schema = schema
        self._position, self._model, self._optimizer, self._precision = position, model, optimizer, precision
        self._statistics = statistics
        self.directory = Path(experiment.directory)
        self.checkpoints = CheckpointDirectory(self.directory / "checkpoints")
        self._saved: tuple[int, int, bool] | None = None
        self._run: RunDirectory | None = None
        self._report: RunReport | None = None

    def open(self, fresh: bool) -> None:
        """Take the run directory.

        Args:
            fresh: begin anew, whatever it holds.

        Raises:
            ExperimentError: it is in use, or may not be written to.
        """
        self._run = open_run_directory(self._world, self.directory, fresh, self._elastic)
        if self._run is not None:
            self.checkpoints.prepare()

    def resume(self) -> bool:
        """Put back the newest whole checkpoint; whether there is one.

        Raises:
            ExperimentError: it is another run's.
        """
        found = newest_checkpoint(self._world, self.checkpoints)
        if found is None:
            return False
        source, name, state = found
        self._world.together(
            lambda: check_identity(state["run"], self._identity, self.directory, self._sizes), "resuming"
        )
        tensors = share_tensors(self._world, self.checkpoints, name, source)
        self._model.load_state_dict(_within("model/", tensors))
        restore_optimizer(self._model, self._optimizer, _within("optimizer/", tensors))
        if state.get("shares") == self._statistics.num_shares:
            self._statistics.restore(_within("share-", tensors))
        self._precision.restore(state["scaler"])
        self._position.restore(state)
        self._saved = self._place()
        StopRequest.checkpoints = self.checkpoints.directory
        return True

    def is_done(self) -> bool:
        return any(self._by_keepers(lambda run: run.is_done, "opening the run directory"))

    @property
    def _elastic(self) -> bool:
        return self._experiment.launch.min_nodes is not None

    def _by_keepers(self, work: Callable[[RunDirectory], T], what: str) -> list[T]:
        """What `work` returns where the run is kept; every rank calls it."""

        def kept() -> T | None:
            return work(self._run) if self._run is not None else None

        if not self._elastic or self._world.num_machines == 1:
            return [self._world.lead(kept, what)]  # pyright: ignore[reportReturnType]
        found = self._world.gather(self._world.lead(kept, what, per_machine=True), what)
        return [there for there in found if there is not None]

    def begin(self) -> None:
        """Write down the experiment, and the figures from here on."""

        def begin(run: RunDirectory) -> None:
            run.unmark_done()
            run.write_experiment(self._experiment)
            self._report = RunReport(self.directory, self._position.metrics_length, self._position.step)

        self._by_keepers(begin, "opening the run directory")

    def write(self, event: str, **figures: Any) -> None:
        """A line of `metrics.jsonl`. Epochs count from 1 in all that is shown."""
        if self._report is not None:
            epoch = min(self._position.epoch + 1, self._experiment.train.epochs)
            self._report.write(event, epoch, self._position.step, **figures)

    def _place(self) -> tuple[int, int, bool]:
        return self._position.epoch, self._position.step, self._position.unscored

    def save(self, seconds: dict[str, float], what: str, each: Mapping[int, Sequence[Tensor]] | None = None) -> None:
        """Write a checkpoint, unless the one of this place has been written.

        Args:
            seconds: per phase, over all attempts.
            what: the place, for messages.
            each: of this rank's shares, tensors of the model in which shares differ: to be put back where a step has
                as many; else the model's own are.

        Raises:
            ExperimentError: the disk is full.
        """
        place = self._place()
        if self._saved != place:
            own = {}
            if each and self._statistics.num_shares > 1:
                of_shares = {share: [t.cpu() for t in tensors] for share, tensors in each.items()}
                for found in self._world.gather(of_shares, what):
                    own |= {f"share-{s}/{n}": t for s, tensors in found.items() for n, t in enumerate(tensors)}
            self._by_keepers(lambda _: self._write_checkpoint(seconds, own), what)
            self._saved = place
            StopRequest.checkpoints = self.checkpoints.directory

    def _write_checkpoint(self, seconds: dict[str, float], own: dict[str, Tensor]) -> None:
        assert self._report is not None
        model = self._model.state_dict()
        tensors = {f"model/{name}": value for name, value in model.items() if isinstance(value, Tensor)}
        state = optimizer_tensors(self._model, self._optimizer)
        tensors |= {f"optimizer/{name}": value for name, value in state.items()}
        tensors |= own
        self.checkpoints.save(
            self._position.step,
            tensors,
            {
                **self._position.state(),
                "seconds": seconds,
                "scaler": self._precision.state(),
                "metrics_length": self._report.durable_length(),
                "run": self._identity,
                "labels": self._labels,
                "schema": self._schema,
                **({"shares": self._statistics.num_shares} if own else {}),
            },
        )
        keep = self._experiment.train.checkpoint.keep
        self.checkpoints.prune(keep, [_name(step) for step in self._position.best_steps])

    def load_best(self) -> None:
        """The weights of the best epoch, in the model; those that it has where there is no better epoch."""
        best = self._position.best.step
        if best is None or best == self._position.step:
            return
        found = named_checkpoint(self._world, self.checkpoints, _name(best))
        if found is None:
            logger.warning("the best checkpoint (step %d) cannot be read: scoring the last weights", best)
            return
        tensors = share_tensors(self._world, self.checkpoints, found[1], found[0])
        self._model.load_state_dict(_within("model/", tensors))

    def finish(self, summary: dict[str, Any]) -> None:
        if self._run is not None:
            self._run.write_summary(summary)
            self._run.mark_done()

    def read_summary(self) -> dict[str, Any]:
        """Of a run that is done."""

        def read(run: RunDirectory) -> dict[str, Any] | None:
            return run.read_summary() if run.is_done else None

        return next(there for there in self._by_keepers(read, "reading the summary") if there is not None)

    def close(self) -> None:
        if self._report is not None:
            self._report.close()
        if self._run is not None:
            self._run.close()
        # What refers to the process group is to be dropped before it is taken down.
        del self._model, self._optimizer, self._statistics


def _name(step: int) -> str:
    return f"step-{step:010d}"


def _within(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
