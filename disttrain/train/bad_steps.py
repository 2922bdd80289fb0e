"""Steps that came to nothing because a loss or a gradient was not finite: found, named, and left out or the end."""

from __future__ import annotations

import logging
from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING, Any

from ..config.counted import counted
from .batch_norms import each_by_itself
from .nonfinite import first_bad_tensor, first_over_ranks
from .phases import PhaseClock
from .transfer import Transfer

if TYPE_CHECKING:
    from .trainer import Trainer

logger = logging.getLogger(__name__)


class BadSteps:
    """Watches a trainer's steps. All ranks find the same, and do the same: `Gradient.step` sees to it."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._batches = range(0)
        """Of the epoch, those of the bad step that was found."""
        self._statistics: Any = None

    def remember(self) -> None:
        """Before a step: what a batch changes beside the weights, should the step have to be left out."""
        if self._trainer.settings.on_nan == "skip":
            self._statistics = self._trainer.statistics.copy()

    def find(self, look: bool) -> bool:
        """Whether a step came to nothing. The position goes back to it, as nothing has happened since.

        Args:
            look: also where that means to wait for the device.
        """
        trainer, position = self._trainer, self._trainer.position
        if not (look or trainer.gradient.looks_each_step):
            return False
        ago, scaler = trainer.losses.first_bad(), trainer.precision.scaler
        # Under fp16 the scaler has left the step out, and a smaller scale may help.
        if ago is None or (scaler.is_enabled() and scaler.get_scale() >= 1.0):
            return False
        trainer.losses.drop(ago)
        position.step -= ago
        size = trainer.settings.accumulate
        position.epoch_step = ((position.epoch_step - 1) // size - (ago - 1)) * size
        end = min(position.epoch_step + size, trainer.epoch_steps)
        self._batches = range(position.epoch_step, end)
        return True

    def look_into(self) -> None:
        """Name what was not finite in the step that was found, if one was; then end the run, or go on behind it.

        The step's batches are drawn and computed once more: they are a function of the position.

        Raises:
            FloatingPointError: the run is to end.
        """
        if not self._batches:
            return
        trainer, position, settings = self._trainer, self._trainer.position, self._trainer.settings
        batches, self._batches = self._batches, range(0)
        transfer = Transfer(trainer.world.device, PhaseClock(trainer.world.device))
        loader = trainer.loaders["train"]
        with (
            closing(loader.batches(position.epoch, start=batches.start, past=position.past)) as again,
            each_by_itself(trainer.model),
        ):
            found = first_bad_tensor(
                trainer.model, trainer.task, trainer.precision,
                islice(transfer(again), len(batches) * loader.rounds), trainer.experiment.seed,
            )  # fmt: skip
        text = first_over_ranks(found, f"step {position.step} (epoch {position.epoch + 1})", trainer.world)
        text = f"the loss or a gradient is not finite: {text}"
        fp16 = trainer.precision.scaler.is_enabled()
        if settings.on_nan == "stop" or fp16 or position.skipped >= settings.max_skipped:
            if position.skipped and not fp16:
                text += f". Before it, {counted(position.skipped, 'step')} came to nothing (train.max_skipped)"
            hint = "bf16, or train.fp32_layers" if fp16 else "a smaller lr, or train.grad_clip"
            raise FloatingPointError(f"{text}. Try {hint}, and look for values that are not finite in the data")
        trainer.gradient.reset()
        trainer.statistics.put_back(self._statistics)
        trainer.saved.write("skipped", reason=text)
        if trainer.world.is_lead:
            logger.warning("%s; this step is left out", text)
        position.step += 1
        position.skipped += 1
        position.epoch_step = batches.stop
