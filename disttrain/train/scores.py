"""What a model says about seeds, batch by batch: what evaluation counts and prediction writes down."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch_geometric.data import HeteroData

from ..config import ExperimentError
from .contract import check_output
from .precision import Precision


class Scores(NamedTuple):
    """Of one batch of seeds, maybe none."""

    logits: Tensor
    """[batch_size, out_channels]"""
    embedding: Tensor | None
    """[batch_size, width], where they were asked for."""
    batch: HeteroData
    """In the store of the seeds' type, the seeds come first: their attributes, `batch_size`, `input_id` and `n_id`."""


def sampled_scores(
    model: nn.Module,
    task: Any,
    loader: Any,
    transfer: Callable[[Iterable[HeteroData]], Iterator[HeteroData]],
    precision: Precision,
    *,
    embeddings: bool = False,
) -> Generator[Scores, None, None]:
    """Score the seeds of a loader from the neighbours that it draws. Every rank iterates to the end.

    Args:
        model: in evaluation mode.
        embeddings: also what `model.embed` returns.

    Raises:
        ExperimentError: a module of the user's own returns something else than it should.
    """
    with closing(loader.batches(0)) as batches:
        for batch in transfer(batches):
            num_seeds = batch[task.node_type].batch_size
            with torch.no_grad(), precision.autocast():
                if embeddings:
                    logits, embedding = _with_embedding(model, batch)
                else:
                    logits, embedding = model(batch), None
            check_output(logits, num_seeds, task.out_channels)
            if embedding is not None:
                check_embedding(embedding, num_seeds)
            yield Scores(logits, embedding, batch)


def _with_embedding(model: Any, batch: HeteroData) -> tuple[Any, Any]:
    """What `model(batch)` and `model.embed(batch)` return; the work is done once where the one calls the other."""
    seen: list[Any] = []
    embed = model.embed

    def listening(*args: Any, **kwargs: Any) -> Any:
        seen.append(embed(*args, **kwargs))
        return seen[-1]

    with _replaced(model, "embed", listening):
        logits = model(batch)
    return logits, seen[0] if len(seen) == 1 else embed(batch)


@contextmanager
def _replaced(module: nn.Module, name: str, value: Any) -> Iterator[None]:
    own = vars(module).get(name)
    object.__setattr__(module, name, value)
    try:
        yield
    finally:
        if own is None:
            object.__delattr__(module, name)
        else:
            object.__setattr__(module, name, own)


def check_embedding(embedding: Any, num_seeds: int) -> None:
    """Refuse what `embed` returned unless it is a floating [batch_size, width].

    Raises:
        ExperimentError: says what came.
    """
    good = isinstance(embedding, Tensor) and embedding.dim() == 2 and embedding.size(0) == num_seeds
    if good and embedding.size(1) > 0 and embedding.is_floating_point():
        return
    came = f"{embedding.dtype} {list(embedding.shape)}" if isinstance(embedding, Tensor) else type(embedding).__name__
    raise ExperimentError(
        f"model.module: embed must return floating numbers [batch_size, width], here [{num_seeds}, ...], but returned "
        f"{came}; the contract of a module of your own is in disttrain/models/__init__.py"
    )
