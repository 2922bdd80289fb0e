"""Where a step went wrong: the first tensor that is not finite, when its batches are computed once more."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import HeteroData

from ..config.counted import counted
from ..world import World
from .precision import Precision
from .randomness import seed_step


def first_bad_tensor(
    model: nn.Module, task: Any, precision: Precision, batches: Iterable[HeteroData], run_seed: int
) -> str | None:
    """What this rank's first tensor is that is not finite; None where all are.

    In the order of the computation: a parameter, what the batch carries (of features, NaN may stand for a missing value
    that the model fills in: they are named where a layer's output follows), the output of a layer, the loss, the
    gradient of a parameter.

    Cost: a forward and a backward pass over the batches, each output looked at.
    """
    was_training, buffers = model.training, {name: buffer.clone() for name, buffer in model.named_buffers()}
    model.train()
    found = None
    try:
        for batch in batches:  # to the last one: other ranks wait for this one's part in them
            if found is None:
                found = _in_batch(model, task, precision, batch, run_seed)
    finally:
        model.train(was_training)
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                buffer.copy_(buffers[name])
    return found


def _in_batch(model: nn.Module, task: Any, precision: Precision, batch: HeteroData, run_seed: int) -> str | None:
    found = [
        f"parameter {name} before the step ({_count(parameter)})"
        for name, parameter in model.named_parameters()
        if not _finite(parameter)
    ]
    seed_step(run_seed, batch.epoch, batch.step, batch.share)
    with ExitStack() as hooks:
        for name, module in model.named_modules():
            if name:
                hooks.callback(module.register_forward_hook(_output_watch(name, found)).remove)
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                hooks.callback(parameter.register_hook(_gradient_watch(name, found)).remove)
        with precision.autocast():
            logits = model(batch)
        if not found and not _finite(logits):
            found.append(f"the model's output ({_count(logits)})")
        if found:
            inputs = _bad_inputs(batch)
            return found[0] + (f"; the batch carries {inputs}" if inputs else "")
        loss = task.loss(logits, batch)
        if not _finite(loss):
            label = batch[task.node_type][task.label][: batch[task.node_type].batch_size]
            bad = f"; of the labels, {_count(label)}" if not _finite(label) else ""
            return f"the loss ({loss.item():g}), while the model's output is finite{bad}"
        # Not `backward`: nothing is to reach the replicas.
        wanted = [parameter for parameter in model.parameters() if parameter.requires_grad]
        torch.autograd.grad(loss, wanted, allow_unused=True)
    return found[0] if found else None


def _output_watch(name: str, found: list[str]) -> Any:
    def look(module: nn.Module, inputs: Any, output: Any) -> None:
        if not found:
            bad = next((tensor for tensor in _tensors(output) if not _finite(tensor)), None)
            if bad is not None:
                found.append(f"the output of {name} ({type(module).__name__}; {_count(bad)})")

    return look


def _gradient_watch(name: str, found: list[str]) -> Any:
    def look(gradient: Tensor) -> None:
        if not found and not _finite(gradient):
            found.append(f"the gradient of parameter {name} ({_count(gradient)}), while the loss is finite")

    return look


def _bad_inputs(batch: HeteroData) -> str:
    """The first attribute of the batch with values that are not finite, and where."""
    for store in batch.node_stores + batch.edge_stores:
        for attribute, value in store.items():
            if isinstance(value, Tensor) and not _finite(value):
                owner = store._key if isinstance(store._key, str) else ",".join(store._key)
                rows = (~value.isfinite()).reshape(len(value), -1).any(dim=1).nonzero().flatten()
                ids = store.get("n_id")
                first = f", the first in node {int(ids[rows[0]])} of the partition's order" if ids is not None else ""
                return (
                    f"{attribute} of {owner} with {_count(value)} in {len(rows)} of {counted(len(value), 'row')}{first}"
                )
    return ""


def _tensors(value: Any) -> Iterable[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)


def _finite(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() or bool(tensor.detach().isfinite().all())


def _count(tensor: Tensor) -> str:
    tensor = tensor.detach()
    nan, infinite = int(tensor.isnan().sum()), int(tensor.isinf().sum())
    parts = [f"{count} {what}" for count, what in ((nan, "NaN"), (infinite, "infinite")) if count]
    return f"{' and '.join(parts)} of {counted(tensor.numel(), 'value')}"


def first_over_ranks(found: str | None, step: str, world: World) -> str:
    """Of what the ranks found, the first, with its place; the same text on every rank."""
    places = world.gather((world.host, found), "looking for what is not finite")
    for rank, (host, text) in enumerate(places):
        if text is not None:
            return f"first on rank {rank} on {host}, in {step}: {text}"
    return f"in {step}: loss and gradients of each rank are finite, but their sum over the ranks is not"
