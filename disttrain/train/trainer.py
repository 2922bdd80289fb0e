"""The training loop, to be read from the top: `Trainer.train`, `_train_epoch`, `_train_step`."""

from __future__ import annotations

import gc
import logging
import signal
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch_geometric.data import HeteroData

from ..config import Experiment, ExperimentError
from ..report.progress import TrainingProgress
from ..report.run_directory import RunDirectory, open_run_directory
from ..report.run_report import RunReport
from ..report.table import show_summary
from ..world import PeerError, World
from .checkpoint import CheckpointDirectory, named_checkpoint, newest_checkpoint, share_tensors
from .contract import check_gradients, check_learnable, check_output
from .evaluate import Evaluation, evaluate
from .identity import check_identity, run_identity
from .loaders import Loader, build_loaders
from .losses import StepLosses
from .optimizer import build_optimizer, optimizer_tensors, restore_optimizer
from .phases import STEP_PHASES, PhaseClock
from .position import MeanLoss, first_position
from .precision import Precision, keep_fp32
from .randomness import seed_step
from .replicas import mean_running_statistics, replicate
from .schedule import learning_rate_factor
from .stop import Interrupted, StopRequest
from .summary import run_summary
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
        self.directory, self.fresh = Path(experiment.directory), fresh
        check_learnable(model)
        self.model = model.to(world.device)
        self.identity = run_identity(experiment, world, graph.manifest, model)
        self.manifest = graph.manifest
        self.precision = Precision(self.settings.precision, world.device)
        keep_fp32(self.model, self.settings.fp32_layers, world.device)
        if self.settings.fp32_layers and self.settings.precision == "fp32" and world.is_lead:
            logger.warning("train.fp32_layers has no effect while train.precision is fp32: every layer computes in it")
        self.position = first_position(self.settings, list(task.metrics().keys()))
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
        self.replica = replicate(self.model)
        self.checkpoints = CheckpointDirectory(self.directory / "checkpoints")
        self.stop_request = StopRequest()
        self.steps_here, self.seeds_here = 0, 0
        self.losses = StepLosses()
        self.logged_at, self.logged_phases = time.perf_counter(), dict.fromkeys(STEP_PHASES, 0.0)
        self.epoch_phases: dict[str, float] = {}
        self.epoch_cpu = 0.0
        self.saved: tuple[int, int] | None = None
        self.run: RunDirectory | None = None
        self.report: RunReport | None = None

    def train(self) -> dict[str, Any]:
        """Train to the end, from the newest checkpoint if there is one. Returns the summary.

        Raises:
            ExperimentError: the run directory is in use, or holds another run's checkpoints; the disk is full.
            Interrupted: SIGTERM or SIGINT came; a checkpoint was written.
            FloatingPointError: the loss is not finite.
            PeerError: another rank failed or did not answer.
        """
        try:
            self.run = open_run_directory(self.world, self.directory, self.fresh)
            with TrainingProgress(self.world.is_lead, self.settings.epochs) as self.progress, self.stop_request:
                if not self._resume():
                    return self._already_done()
                while not self._finished():
                    self._train_epoch()
                    self._end_epoch()
                return self._finish()
        except Exception as error:
            self._place(error)
            raise
        finally:
            self._let_go()

    def _train_epoch(self) -> None:
        position, loader = self.position, self.loaders["train"]
        self.progress.epoch(position.epoch, loader.num_steps, position.epoch_step)
        self.model.train()
        self.logged_at = time.perf_counter()
        self.epoch_phases = {phase: self.clock.seconds[phase] for phase in ("train", *STEP_PHASES)}
        self.epoch_cpu = time.process_time()
        with closing(loader.batches(position.epoch, start=position.epoch_step)) as batches:
            for batch in self.transfer(batches):
                self._train_step(batch)
                position.epoch_step += 1
                position.step += 1
                last = self._at_the_end()
                if last or position.step % self.settings.log_every == 0:
                    self._log_steps()
                every = self.settings.checkpoint.every_steps
                if every and position.step % every == 0 and not last:  # the end of the epoch writes its own
                    self._log_steps()
                    self._save()
                    self.logged_at = time.perf_counter()
                if last:
                    break

    def _train_step(self, batch: HeteroData) -> None:
        position, world, scaler = self.position, self.world, self.precision.scaler
        assert (batch.epoch, batch.step) == (position.epoch, position.epoch_step), "batches come in order"
        seed_step(self.experiment.seed, position.epoch, position.epoch_step, world.rank)
        self._set_learning_rate()
        num_seeds = batch[self.task.node_type].batch_size
        with self.clock.on_device("forward"):
            with self.precision.autocast():
                logits = self.replica(batch)
            check_output(logits, num_seeds, self.task.out_channels)
            loss = self.task.loss(logits, batch)
        with self.clock.on_device("backward"):
            # A rank's loss is the sum over its seeds, and DDP takes the mean over ranks: so, the mean over all seeds.
            self._backward(scaler.scale(loss * (world.size / max(1, batch.num_global_seeds))))
            check_gradients(self.model, num_seeds)
        with self.clock.on_device("optimizer"):
            if self.settings.grad_clip is not None:
                scaler.unscale_(self.optimizer)
                nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.grad_clip)
            scaler.step(self.optimizer)
            scaler.update()
            self.optimizer.zero_grad(set_to_none=True)
        self.losses.add(loss, num_seeds)
        self.seeds_here += batch.num_global_seeds
        self.steps_here += 1

    def _end_epoch(self) -> None:
        """Validate, remember the best, write a checkpoint."""
        position = self.position
        epoch_over = position.epoch_step == self.loaders["train"].num_steps
        last = position.step == self.settings.max_steps or position.epoch + 1 == self.settings.epochs
        mean_running_statistics(self.model, self.world)
        text = f"epoch {position.epoch + 1}/{self.settings.epochs}  loss {position.epoch_loss.mean:.4f}"
        self._write(
            "epoch", loss=position.epoch_loss.mean, seeds=position.epoch_loss.num_seeds,
            seconds={phase: self.clock.seconds[phase] - before for phase, before in self.epoch_phases.items()},
            cpu_seconds=time.process_time() - self.epoch_cpu,
        )  # fmt: skip
        if self.loaders["val"].num_steps and (last or (position.epoch + 1) % self.settings.eval_every == 0):
            evaluation = self._evaluate("val")
            text += "".join(f"  val {name} {value:.4f}" for name, value in evaluation.metrics.items())
            if position.best.update(evaluation.metrics[position.best.metric], position.epoch, position.step):
                position.best_evaluation = {"metrics": evaluation.metrics, "num_evaluated": evaluation.num_evaluated}
            if position.stop is not None:
                position.stop.update(evaluation.metrics[position.stop.metric], position.epoch, position.step)
        self.progress.say(text)
        if epoch_over:
            position.epoch, position.epoch_step, position.epoch_loss = position.epoch + 1, 0, MeanLoss()
        self._save()

    def _finished(self) -> bool:
        position, early_stop = self.position, self.settings.early_stop
        return (
            position.epoch >= self.settings.epochs
            or (self.settings.max_steps is not None and position.step >= self.settings.max_steps)
            or (early_stop is not None and position.stop is not None and position.stop.since >= early_stop.patience)
        )

    def _finish(self) -> dict[str, Any]:
        """Score the test split with the best weights, and close the run."""
        best = self.position.best
        if best.step is not None and best.step != self.position.step:
            found = named_checkpoint(self.world, self.checkpoints, f"step-{best.step:010d}")
            if found is None:
                logger.warning("the best checkpoint (step %d) cannot be read: scoring the last weights", best.step)
            else:
                self._load_model(share_tensors(self.world, self.checkpoints, found[1], found[0]))
        test = self._evaluate("test") if self.loaders["test"].num_steps else None
        summary = run_summary(self, test)
        if self.run is not None:
            self.run.write_summary(summary)
            self.run.mark_done()
            self.progress.stop()
            show_summary(summary, self.progress.console)
            self.progress.say(f"everything is in {self.directory}")
        self.world.barrier("ending the run")
        return summary

    def _evaluate(self, split: str) -> Evaluation:
        with self.clock.wall("evaluate"):
            evaluation = evaluate(
                self.model, self.task, self.loaders[split], Transfer(self.world.device, PhaseClock(self.world.device)),
                self.precision, self.world,
            )  # fmt: skip
        self._write("evaluation", split=split, num_evaluated=evaluation.num_evaluated, metrics=evaluation.metrics)
        return evaluation

    def _at_the_end(self) -> bool:
        """Of the epoch, or of the run within an epoch (`max_steps`)."""
        position = self.position
        return position.epoch_step == self.loaders["train"].num_steps or position.step == self.settings.max_steps

    # The small print: logging, checkpoints, resuming, errors.

    def _log_steps(self) -> None:
        """Add up the losses since the last time over all ranks, look for trouble, and agree on whether to stop."""
        if not len(self.losses):
            return
        position, scaler = self.position, self.precision.scaler
        with self.clock.wall("log"):  # here the process waits for the device
            summed = self.losses.sum_up(self.world, self.stop_request.signal != 0, self._what("training"))
            self.clock.collect()
            mean_running_statistics(self.model, self.world)
        # Under fp16 such a step was skipped, and a smaller scale may help.
        if summed.num_bad and (not scaler.is_enabled() or scaler.get_scale() < 1.0):
            self._refuse_loss(summed.first_bad)
        position.epoch_loss.add(summed.total, summed.num_seeds)
        now = time.perf_counter()
        seconds, self.logged_at = now - self.logged_at, now
        self.clock.seconds["train"] += seconds
        phases = {phase: self.clock.seconds[phase] for phase in STEP_PHASES}
        per_step = {phase: (phases[phase] - self.logged_phases[phase]) / summed.steps for phase in STEP_PHASES}
        self.logged_phases = phases
        loss, rate = summed.total / max(1, summed.num_seeds), summed.num_seeds / max(1e-9, seconds)
        scale = {"scale": scaler.get_scale()} if scaler.is_enabled() else {}
        self._write(
            "train", loss=loss, lr=self.optimizer.param_groups[0]["lr"], seeds_per_second=rate, steps=summed.steps,
            step_seconds=per_step, **scale,
        )  # fmt: skip
        self.progress.steps(position.epoch_step, loss, rate)
        if summed.stop:
            self._stop()

    def _refuse_loss(self, first_bad: int | None) -> None:
        step = None if first_bad is None else self.position.step - first_bad
        places = self.world.gather((step, self.world.host), "comparing losses")
        step, rank = min((step, rank) for rank, (step, _) in enumerate(places) if step is not None)
        hint = (
            "bf16, or train.fp32_layers" if self.precision.scaler.is_enabled() else "a smaller lr, or train.grad_clip"
        )
        raise FloatingPointError(
            f"the loss is not finite: first on rank {rank} on {places[rank][1]}, in step {step} (epoch "
            f"{self.position.epoch + 1}). Try {hint}, and look for values that are not finite in the features"
        )

    def _stop(self) -> None:
        numbers = [n for n in self.world.gather(self.stop_request.signal, "stopping") if n]
        if self._at_the_end():
            self._end_epoch()
        else:
            self._save()
        text = (
            f"stopped by {signal.Signals(numbers[0]).name} after step {self.position.step}; a checkpoint is in "
            f"{self.checkpoints.directory}, and the same command goes on from it"
        )
        self.progress.say(text)
        self.world.barrier("stopping")  # torchrun ends all ranks when the first one leaves
        raise Interrupted(text)

    def _save(self) -> None:
        place = (self.position.epoch, self.position.step)
        if self.saved == place:
            return
        with self.clock.wall("checkpoint"):
            mean_running_statistics(self.model, self.world)
            self.world.lead(self._write_checkpoint, self._what("writing a checkpoint"))
        self.saved = place

    def _write_checkpoint(self) -> None:
        assert self.report is not None
        best, model = self.position.best, self.model.state_dict()
        tensors = {f"model/{name}": value for name, value in model.items() if isinstance(value, Tensor)}
        state = optimizer_tensors(self.model, self.optimizer)
        tensors |= {f"optimizer/{name}": value for name, value in state.items()}
        self.checkpoints.save(
            self.position.step,
            tensors,
            {
                **self.position.state(),
                "seconds": self.all_seconds(),
                "scaler": self.precision.state(),
                "metrics_length": self.report.durable_length(),
                "run": self.identity,
            },
        )
        self.checkpoints.prune(self.settings.checkpoint.keep, None if best.step is None else f"step-{best.step:010d}")

    def _resume(self) -> bool:
        """Go on from the newest whole checkpoint, if there is one. False: the run is over already."""
        if self.run is not None:
            self.checkpoints.prepare()
        found = newest_checkpoint(self.world, self.checkpoints)
        length = 0
        if found is not None:
            source, name, state = found
            self.world.together(lambda: check_identity(state["run"], self.identity, self.directory), "resuming")
            tensors = share_tensors(self.world, self.checkpoints, name, source)
            self._load_model(tensors)
            named = {k.removeprefix("optimizer/"): v for k, v in tensors.items() if k.startswith("optimizer/")}
            restore_optimizer(self.model, self.optimizer, named)
            self.precision.restore(state["scaler"])
            self.position.restore(state)
            self.saved = (self.position.epoch, self.position.step)
            length = state["metrics_length"]
        done = self.world.lead(lambda: self.run is not None and self.run.is_done, "opening the run directory")
        if done and (found is None or self._finished()):
            return False

        def begin() -> None:
            assert self.run is not None
            self.run.unmark_done()
            self.run.write_experiment(self.experiment)
            self.report = RunReport(self.directory, length, self.position.step)

        self.world.lead(begin, "opening the run directory")
        if found is not None:
            self.progress.say(f"resuming after step {self.position.step} (epoch {self.position.epoch + 1})")
        self._write("resume" if found else "start", world_size=self.world.size)
        return True

    def _load_model(self, tensors: dict[str, Tensor]) -> None:
        named = {k.removeprefix("model/"): v for k, v in tensors.items() if k.startswith("model/")}
        self.model.load_state_dict(named)

    def _already_done(self) -> dict[str, Any]:
        def read() -> dict[str, Any]:
            assert self.run is not None
            return self.run.read_summary()

        summary = self.world.lead(read, "reading the summary")
        self.progress.say(f"{self.directory} holds a finished run: nothing to do (--fresh begins anew)")
        self.progress.stop()
        if self.world.is_lead:
            show_summary(summary, self.progress.console)
        return summary

    def _set_learning_rate(self) -> None:
        steps_per_epoch = self.loaders["train"].num_steps
        num_steps = steps_per_epoch * self.settings.epochs
        if self.settings.max_steps is not None:
            num_steps = min(num_steps, self.settings.max_steps)
        factor = learning_rate_factor(self.settings.scheduler, self.position.step, num_steps, steps_per_epoch)
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.lr * factor

    def _backward(self, loss: Tensor) -> None:
        if not loss.requires_grad:
            return  # `check_gradients` names all parameters
        try:
            loss.backward()
        except RuntimeError as error:
            if any(word in str(error).lower() for word in ("gloo", "nccl", "connection", "timed out")):
                raise self.world.explain(error, self._what("adding up gradients")) from error
            raise

    def _what(self, what: str) -> str:
        return f"{what} (epoch {self.position.epoch + 1}, step {self.position.epoch_step} of it)"

    def _place(self, error: Exception) -> None:
        """Say where this rank was; the error itself goes its way."""
        if not isinstance(error, (ExperimentError, PeerError, Interrupted)):
            where, kind = self._what(self.clock.current), type(error).__name__
            logger.error("%s failed in %s: %s: %s", self.world, where, kind, error)

    def _write(self, event: str, **figures: Any) -> None:
        """Epochs count from 1 in all that is shown."""
        if self.report is not None:
            epoch = min(self.position.epoch + 1, self.settings.epochs)
            self.report.write(event, epoch, self.position.step, **figures)

    def all_seconds(self) -> dict[str, float]:
        """Per phase, over all attempts."""
        here = {**self.clock.seconds, "total": time.perf_counter() - self.started}
        before = self.position.seconds
        return {phase: here.get(phase, 0.0) + before.get(phase, 0.0) for phase in {**here, **before}}

    def _let_go(self) -> None:
        """Close what is open, and drop what refers to the process group: torch may abort at exit otherwise."""
        if self.report is not None:
            self.report.close()
        if self.run is not None:
            self.run.close()
        del self.replica, self.optimizer, self.model
        self.loaders = {}
        self.losses = StepLosses()
        gc.collect()
