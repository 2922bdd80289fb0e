"""The gradient of one optimizer step: over the seeds of all ranks, of one batch or of several."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from ..config import Train
from ..world import World
from .contract import check_gradients
from .precision import Precision
from .replicas import replicate
from .running_statistics import running_statistics

_STEPS_BEHIND = 2
"""Of what is read from a GPU, so that it always has a step to go on with."""


class Gradient:
    """Adds up the gradients of batches and takes the step, as one big batch on one rank would.

    What a rank's batch adds is the gradient of its summed loss over a divisor that all ranks know beforehand. The right
    one, the sum of the weights of all seeds of the step, comes out of the very all-reduce that adds up the gradients:
    the replicas carry three numbers beside the parameters, whose gradients are that sum, 0 unless the loss of a rank
    was not finite, and how many batches of the step were computed on ranks that had been asked to stop. So neither
    weights nor the watch for NaN nor that all ranks stop at the same step cost an exchange of their own.

    A step whose loss or gradient is not finite is not taken: weights and optimizer stay as they were, on all ranks
    alike, since all see the same reduced gradients. On the CPU that is known at once (`looks_each_step`). On a GPU,
    Adam and AdamW leave the weights alone without the processor asking: that step, and each one after it until
    `reset`, so that nothing has happened when it is noticed later.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        precision: Precision,
        settings: Train,
        world: World,
        has_weights: bool,
        asked_to_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Args:
        asked_to_stop: whether this rank is.
        """
        self.replica = replicate(model)
        self._optimizer, self._scaler, self._world = optimizer, precision.scaler, world
        self._clip, self._has_weights = settings.grad_clip, has_weights
        self._named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._probe: nn.Parameter = self.replica.module.probe  # pyright: ignore[reportAttributeAccessIssue]
        self._touched: set[str] = set()
        for name, parameter in self._named.items():
            parameter.register_post_accumulate_grad_hook(self._toucher(name))
        waits = world.device.type == "cpu" or settings.optimizer == "sgd"
        self.looks_each_step = not self._scaler.is_enabled() and (waits or bool(running_statistics(model)))
        """Whether `step` tells at once that a step was not taken; with running statistics, which such a batch spoils
        too, it has to."""
        self._stuck = torch.zeros((), device=world.device)
        self._asked_to_stop = asked_to_stop
        self._to_be_heard: deque[tuple[Tensor, torch.cuda.Event]] = deque()
        self.stops = False
        """Whether a rank was asked to stop: the same on all ranks after each step. On a GPU they hear of it two steps
        later, so as not to wait for the device."""
        self._num_batches, self._divisor, self._num_seeds = 0, 1, 0

    def _toucher(self, name: str) -> Callable[[Tensor], None]:
        return lambda _: self._touched.add(name)

    @property
    def is_open(self) -> bool:
        """Whether batches were added since the last step."""
        return self._num_batches > 0

    @contextmanager
    def batch(self, last: bool) -> Iterator[None]:
        """Around the forward and backward pass of one batch.

        Args:
            last: of its step: only then are the gradients added up over ranks.
        """
        with nullcontext() if last else self.replica.no_sync():
            yield

    def backward(self, loss: Tensor, weight: Tensor | float, num_seeds: int, num_global_seeds: int) -> None:
        """Add the gradient of a batch.

        Args:
            loss, weight: sums over this rank's seeds.
            num_global_seeds: of the batch, over all ranks.

        Raises:
            ExperimentError: the model made no use of some of its parameters.
        """
        if not self._num_batches:
            self._divisor, self._num_seeds = max(1, num_global_seeds), 0
        self._num_batches += 1
        self._num_seeds += num_global_seeds
        self._touched.clear()
        if loss.requires_grad:
            weighed = weight if isinstance(weight, Tensor) else loss.new_full((), weight)
            asked = loss.new_full((), float(self._asked_to_stop()))
            figures = torch.stack([weighed.to(loss.dtype), loss.detach() * 0.0, asked])
            # DDP takes the mean over ranks.
            scaled = self._scaler.scale(loss * (self._world.size / self._divisor))
            (scaled + (self._probe * figures).sum()).backward()
        check_gradients([name for name in self._named if name not in self._touched], num_seeds)

    def step(self) -> Tensor:
        """Take the step, unless something is not finite; a bool scalar on the device says whether it was."""
        assert self._probe.grad is not None
        weight, blemish, asked = (self._probe.grad * self._world.size).unbind()
        self._hear(asked)
        parameters = list(self._named.values())
        gradients = [p.grad for p in parameters if p.grad is not None]
        self._scaler.unscale_(self._optimizer)
        if self._has_weights:
            _scale(gradients, torch.where(weight > 0, self._divisor / weight, 0.0))
        elif self._num_seeds > self._divisor:
            _scale(gradients, self._divisor / self._num_seeds)
        norm = get_total_norm(gradients)
        if self._clip is not None:
            clip_grads_with_norm_(parameters, self._clip, norm)
        bad = ~(norm.isfinite() & blemish.isfinite())
        if self._scaler.is_enabled():
            self._scaler.step(self._optimizer)
            self._scaler.update()
        elif not self.looks_each_step:
            self._stuck = torch.maximum(self._stuck, bad.float())
            self._optimizer.found_inf = self._stuck  # pyright: ignore[reportAttributeAccessIssue]
            self._optimizer.step()
        elif not bad:
            self._optimizer.step()
        self.drop()
        return bad

    def _hear(self, asked: Tensor) -> None:
        if asked.device.type != "cuda":
            self.stops |= bool(asked > 0)
            return
        there, arrived = torch.empty((), pin_memory=True), torch.cuda.Event()
        there.copy_(asked, non_blocking=True)
        arrived.record()
        self._to_be_heard.append((there, arrived))
        if len(self._to_be_heard) > _STEPS_BEHIND:
            there, arrived = self._to_be_heard.popleft()
            arrived.synchronize()
            self.stops |= bool(there > 0)

    def drop(self) -> None:
        """Forget what was added."""
        self._optimizer.zero_grad(set_to_none=True)
        self._probe.grad = None
        self._num_batches = 0

    def reset(self) -> None:
        """Steps are taken again after one that was not."""
        self._stuck = torch.zeros_like(self._stuck)


def _scale(tensors: list[Tensor], factor: Tensor | float) -> None:
    torch._foreach_mul_(tensors, factor)  # pyright: ignore[reportPrivateImportUsage]
