"""The training loop, to be read from the top: `Trainer.train`, `_train_epoch`, `_train_step`."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any

from torch import Tensor, nn
from torch_geometric.data import HeteroData

from .. import guard
from ..collection.loader import GraphLoader
from ..config import Experiment, ExperimentError
from ..graph.schema import GRAPH
from ..report.memory_monitor import MemoryMonitor
from ..report.progress import TrainingProgress
from ..report.table import show_summary
from ..roster import Roster, steps_change
from ..stop import StopRequest, stopped_by
from ..world import PeerError, World
from .bad_steps import BadSteps
from .caches import fill_caches
from .contract import check_learnable, check_output
from .elastic import rate_factor, take_up, world_figures
from .evaluate import Evaluation, evaluate
from .gradient import Gradient
from .identity import run_identity
from .loaders import Loader, build_loaders
from .losses import StepLosses
from .optimizer import build_optimizer
from .phases import STEP_PHASES, PhaseClock
from .position import MeanLoss, first_position
from .precision import Precision, keep_fp32
from .randomness import seed_step
from .running_statistics import RunningStatistics
from .saving import SavedRun
from .schedule import set_learning_rate
from .step_log import StepLog
from .stopping import stop_here, validate
from .summary import run_summary
from .trained_on import described_schema
from .transfer import Transfer

logger = logging.getLogger(__name__)


class Trainer:
    """Trains a model on a task, evaluates it, and keeps the run directory.

    Args:
        experiment: its `train` section, and what identifies the run.
        graph: partitioned; its manifest is part of what identifies the run.
        task: see `disttrain.tasks`: loss, metrics, splits.
        model: called with a batch; its first weights are the same on all ranks.
        loaders: "train", "val" and "test"; None: of the graph's seeds.
        seconds: what earlier phases took (`partition`, `load`), for the summary.
        fresh: begin anew, whatever the run directory holds.

    Raises:
        ExperimentError: for what can only be known now: names of layers and metrics, precision on this device.
    """

    def __init__(
        self,
        experiment: Experiment,
        world: World,
        graph: Any,
        task: Any,
        model: nn.Module,
        *,
        loaders: Mapping[str, Loader] | None = None,
        seconds: Mapping[str, float] | None = None,
        fresh: bool = False,
    ) -> None:
        self.started = time.perf_counter() - sum((seconds or {}).values())
        self.experiment, self.settings, self.world, self.task = experiment, experiment.train, world, task
        check_learnable(model)
        self.model, self.manifest, self.fresh = model.to(world.device), graph.manifest, fresh
        self.precision = Precision(self.settings.precision, world.device)
        keep_fp32(self.model, self.settings.fp32_layers, world.device)
        if self.settings.fp32_layers and self.settings.precision == "fp32" and world.is_lead:
            logger.warning("train.fp32_layers has no effect while train.precision is fp32: every layer computes in it")
        self.roster, self.rate_factor = Roster.of(experiment, world), rate_factor(experiment, world)
        machines = self.roster.machines if steps_change(experiment) else 1
        self.position = first_position(self.settings, task.directions, machines)
        self.clock = PhaseClock(world.device)
        self.clock.seconds.update(seconds or {})
        self.transfer = Transfer(world.device, self.clock)
        with self.clock.wall("load"):
            self.loaders = loaders if loaders is not None else build_loaders(experiment, world, graph, task, model)
        if not self.loaders["train"].num_steps:
            raise ExperimentError("data.split leaves no training nodes: nothing to learn from")
        if self.settings.early_stop and not self.loaders["val"].num_steps:
            raise ExperimentError("train.early_stop needs validation nodes, and data.split leaves none")
        self.optimizer = build_optimizer(self.model, self.settings)
        self.stop_request, self.memory = StopRequest(), MemoryMonitor(world.device)
        self.gradient = Gradient(
            self.model, self.optimizer, self.precision, self.settings, world, has_weights=task.has_weights,
            asked_to_stop=lambda: bool(self.stop_request.reason),
        )  # fmt: skip
        self.statistics = RunningStatistics(self.model, self.roster, self.loaders["train"].rounds, world)
        self.epoch_steps = self.loaders["train"].num_steps
        """Of the epoch at hand."""
        identity = run_identity(experiment, world, graph.manifest, model)
        self.saved = SavedRun(
            experiment, world, identity, graph.manifest.get("sizes", {}), task.describe(), described_schema(graph),
            self.position, self.model, self.optimizer, self.precision, self.statistics,
        )  # fmt: skip
        self.steps_here, self.seeds_here, self.losses = 0, 0, StepLosses()
        self.step_log = StepLog(self.clock)
        self.epoch_phases: dict[str, float] = {}
        self.epoch_cpu = 0.0
        self.noted: set[tuple[str, str]] = set()
        self.bad_steps = BadSteps(self)

    def train(self) -> dict[str, Any]:
        """Train to the end, from the newest checkpoint if there is one. Returns the summary.

        Raises:
            ExperimentError: the run directory is in use, or holds another run's checkpoints; the disk is full.
            Stopped: somebody asked for it; a checkpoint was written.
            FloatingPointError: a loss or a gradient is not finite.
            PeerError: another rank failed or did not answer.
        """
        guard.stand("opening the run directory")
        with self.memory:
            try:
                self.saved.open(self.fresh)
                seeds = "graphs" if self.task.node_type == GRAPH else "seeds"
                with TrainingProgress(self.world.is_lead, self.settings.epochs, seeds=seeds) as self.progress:
                    if not self._resume():
                        return self._already_done()
                    self._fill_caches()
                    with self.stop_request:
                        while not self._finished():
                            self._train_epoch()
                            self._end_epoch()
                    return self._finish()
            except Exception as error:
                self._place(error)
                raise
            finally:
                self._let_go()

    def _fill_caches(self) -> None:
        if self._finished():
            return
        with self.clock.wall("cache"):
            done = fill_caches(self.experiment, self.world, self.loaders, self.position.epoch)
        if done:
            self.progress.say(f"{done}, chosen in {self.clock.seconds['cache']:.1f} s")

    def _train_epoch(self) -> None:
        position = self.position
        self.progress.epoch(position.epoch, self.epoch_steps, position.epoch_step)
        self.model.train()
        self.step_log.leave_out()
        self.epoch_phases = {phase: self.clock.seconds[phase] for phase in ("train", *STEP_PHASES)}
        self.epoch_cpu = time.process_time()
        while not self._at_the_end():
            self._train_batches()
            self.bad_steps.look_into()
        position.unscored = True
        self._log_steps()

    def _train_batches(self) -> None:
        """To the end of the epoch, or to a step that came to nothing."""
        position, every = self.position, self.settings.checkpoint.every_steps
        loader = self.loaders["train"]
        with closing(loader.batches(position.epoch, start=position.epoch_step, past=position.past)) as batches:
            for batch in self.transfer(batches):
                self._train_step(batch)
                if not batch.closes_step:
                    continue
                position.epoch_step += 1
                if self.gradient.is_open:
                    continue
                position.step += 1
                last = self._at_the_end()
                save = every is not None and position.step % every == 0 and not last  # an epoch's end writes its own
                log = last or save or position.step % self.settings.log_every == 0
                stop = self.gradient.stops
                if self.bad_steps.find(look=log or stop):
                    break
                if log or stop:
                    self._log_steps(share=log)
                if save:
                    self._save()
                    self.step_log.leave_out()
                if stop:
                    position.unscored = last
                    stop_here(self)
                if last:
                    break

    def _train_step(self, batch: HeteroData) -> None:
        """One batch; with the last one of an optimizer step (`train.accumulate`, `Roster.rounds`), the step."""
        position, task = self.position, self.task
        assert (batch.epoch, batch.step) == (position.epoch, position.epoch_step), "batches come in order"
        guard.stand(self.what("training"))
        seed_step(self.experiment.seed, position.epoch, position.epoch_step, batch.share)
        num_seeds = batch[task.node_type].batch_size
        if not self.gradient.is_open:
            self.bad_steps.remember()
        last = batch.closes_step and self._closes_step(position.epoch_step)
        with self.gradient.batch(last), self.statistics.of(batch.share):
            with self.clock.on_device("forward"):
                with self.precision.autocast():
                    logits = self.gradient.replica(batch)
                check_output(logits, num_seeds, task.out_channels)
                loss, weight = task.loss(logits, batch), task.weight(batch)
            with self.clock.on_device("backward"):
                self._backward(loss, weight, num_seeds, batch.num_global_seeds)
        self.losses.add(loss, weight, num_seeds)
        if last:
            with self.clock.on_device("optimizer"):
                per_epoch = self.loaders["train"].num_steps
                set_learning_rate(self.optimizer, self.settings, per_epoch, position, self.rate_factor)
                self.losses.close(self.gradient.step())
            self.steps_here += 1
        self.seeds_here += batch.num_global_seeds

    def _end_epoch(self) -> None:
        """Validate, remember the best, write a checkpoint."""
        position = self.position
        epoch_over = position.epoch_step == self.epoch_steps
        last = position.step == self.settings.max_steps or position.epoch + 1 == self.settings.epochs
        cpu_seconds = time.process_time() - self.epoch_cpu
        due = epoch_over and (position.epoch + 1) % self.settings.eval_every == 0
        evaluation = validate(self) if self.loaders["val"].num_steps and (last or due) else None
        text = f"epoch {position.epoch + 1}/{self.settings.epochs}  loss {position.epoch_loss.mean:.4f}"
        self.saved.write(
            "epoch", loss=position.epoch_loss.mean, seeds=position.epoch_loss.num_seeds,
            seconds={phase: self.clock.seconds[phase] - before for phase, before in self.epoch_phases.items()},
            cpu_seconds=cpu_seconds,
        )  # fmt: skip
        often, step = self.settings.checkpoint, position.step
        save = (position.epoch + 1) % often.every_epochs == 0 or step % (often.every_steps or step + 1) == 0
        if evaluation is not None:
            self._write_down("val", evaluation)
            position.remember_extra(not due)
            text += "".join(f"  val {name} {value:.4f}" for name, value in evaluation.metrics.items())
            better = position.best.update(evaluation.metrics[position.best.metric], position.epoch, position.step)
            if better or position.best.value is None:  # without any value to go by, the last one counts
                position.best_evaluation = evaluation.kept()
                save = True
            if position.stop is not None:
                position.stop.update(evaluation.metrics[position.stop.metric], position.epoch, position.step)
        self.progress.say(text)
        if epoch_over:
            position.next_epoch()
            self.epoch_steps = self.loaders["train"].num_steps
        position.unscored = False
        if save or self._finished():
            self._save()

    def _at_its_length(self) -> bool:
        """Whether the run has all its epochs or steps."""
        position, most = self.position, self.settings.max_steps
        return position.epoch >= self.settings.epochs or (most is not None and position.step >= most)

    def _finished(self) -> bool:
        position, early_stop = self.position, self.settings.early_stop
        if position.unscored:
            return False
        return self._at_its_length() or (
            early_stop is not None and position.stop is not None and position.stop.since >= early_stop.patience
        )

    def _finish(self) -> dict[str, Any]:
        """Score the test split with the best weights, and close the run."""
        self.saved.load_best()
        test = self.evaluate("test") if self.loaders["test"].num_steps else None
        if test is not None:
            self._write_down("test", test)
        summary = run_summary(self, test)
        self.saved.finish(summary)
        self._show(summary)
        self.progress.say(f"everything is in {self.saved.directory}")
        self.world.barrier("ending the run")
        return summary

    def evaluate(self, split: str, look: Callable[[], None] = lambda: None) -> Evaluation:
        with self.clock.wall("evaluate"), guard.standing(self.what(f"evaluation on {split}")):
            return evaluate(
                self.model, self.task, self.loaders[split], Transfer(self.world.device, PhaseClock(self.world.device)),
                self.precision, self.world, look,
            )  # fmt: skip

    def _write_down(self, split: str, evaluation: Evaluation) -> None:
        self.saved.write("evaluation", split=split, **evaluation.figures())
        for note in evaluation.notes:
            if (split, note) not in self.noted and self.world.is_lead:
                logger.warning("%s: %s", split, note)
            self.noted.add((split, note))

    def _closes_step(self, epoch_step: int) -> bool:
        """Whether a batch of the epoch is the last one of an optimizer step."""
        return (epoch_step + 1) % self.settings.accumulate == 0 or epoch_step + 1 == self.epoch_steps

    def _at_the_end(self) -> bool:
        """Of the epoch, or of the run within an epoch (`max_steps`)."""
        position = self.position
        return position.epoch_step == self.epoch_steps or position.step == self.settings.max_steps

    # The small print: logging, checkpoints, resuming, errors.

    def _log_steps(self, share: bool = True) -> None:
        """Add up the losses since the last time over all ranks.

        Args:
            share: also average running statistics; not where an undisturbed run would not.
        """
        if not len(self.losses):
            return
        position, scaler = self.position, self.precision.scaler
        with self.clock.wall("log"):  # here the process waits for the device
            summed = self.losses.sum_up(self.world, self.memory.latest(), self.what("training"))
            self.clock.collect()
            if share:
                self.statistics.share()
        position.epoch_loss.add(summed.total, summed.weight, summed.num_seeds)
        position.skipped += summed.num_bad
        figures = self.step_log.figures(summed.steps, summed.num_seeds)
        loss = MeanLoss(summed.total, summed.weight).mean
        scale = {"scale": scaler.get_scale()} if scaler.is_enabled() else {}
        skipped = {"skipped": summed.num_bad} if summed.num_bad else {}
        self.saved.write(
            "train", loss=loss, lr=self.optimizer.param_groups[0]["lr"], **figures, memory=summed.memory.figures(),
            **scale, **skipped,
        )  # fmt: skip
        self.progress.steps(position.epoch_step, loss, figures["seeds_per_second"], summed.memory)

    def _save(self) -> None:
        with self.clock.wall("checkpoint"):
            self.statistics.share()
            self.saved.save(self.all_seconds(), self.what("writing a checkpoint"))

    def _resume(self) -> bool:
        """Go on from the newest whole checkpoint, if there is one. False: the run is over already."""
        resumed = self.saved.resume()
        if not self._at_its_length():
            self.position.forget_extra()
        if self.saved.is_done() and (not resumed or self._finished()):
            return False
        self.saved.begin()
        if resumed:
            self.epoch_steps = take_up(self.position, self.loaders["train"], self.settings)
            self.progress.say(f"resuming after step {self.position.step} (epoch {self.position.epoch + 1})")
        self.saved.write("resume" if resumed else "start", **world_figures(self.world, self.roster))
        return True

    def _already_done(self) -> dict[str, Any]:
        summary = self.saved.read_summary()
        self.progress.say(f"{self.saved.directory} holds a finished run: nothing to do (--fresh begins anew)")
        self._show(summary)
        return summary

    def _show(self, summary: dict[str, Any]) -> None:
        self.progress.stop()
        if self.world.is_lead:
            show_summary(summary, self.progress.console)

    def _backward(self, loss: Tensor, weight: Tensor | float, num_seeds: int, num_global_seeds: int) -> None:
        try:
            self.gradient.backward(loss, weight, num_seeds, num_global_seeds)
        except RuntimeError as error:
            if any(word in str(error).lower() for word in ("gloo", "nccl", "connection", "timed out")):
                raise self.world.explain(error, self.what("adding up gradients")) from error
            raise

    def what(self, what: str) -> str:
        return f"{what} (epoch {self.position.epoch + 1}, step {self.position.epoch_step} of it)"

    def _place(self, error: Exception) -> None:
        """Say where this rank was; the error itself goes its way."""
        if not isinstance(error, (ExperimentError, PeerError)) and stopped_by(error) is None:
            where, kind = self.what(self.clock.current), type(error).__name__
            logger.error("%s failed in %s: %s: %s", self.world, where, kind, error)

    def all_seconds(self) -> dict[str, float]:
        """Per phase, over all attempts."""
        here = {**self.clock.seconds, "total": time.perf_counter() - self.started}
        before = self.position.seconds
        return {phase: here.get(phase, 0.0) + before.get(phase, 0.0) for phase in {**here, **before}}

    def _let_go(self) -> None:
        """Close what is open, and drop what refers to the process group: torch may abort at exit otherwise."""
        self.saved.close()
        for loader in self.loaders.values():
            if isinstance(loader, GraphLoader):
                loader.close()
        del self.gradient, self.optimizer, self.model, self.bad_steps
        self.loaders, self.losses = {}, StepLosses()
        gc.collect()
