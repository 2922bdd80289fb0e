"""Which batches are drawn before training to find the rows that a machine keeps of the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..config import Experiment
from ..config.counted import counted
from ..sampling import NodeLoader
from ..sampling.cache import Draws, fill_cache
from ..sampling.columns import Columns
from ..world import World


def fill_caches(experiment: Experiment, world: World, loaders: Mapping[str, Any], first_epoch: int) -> str | None:
    """Keep the hot rows that `sampling.cache_bytes` has room for. Every rank calls it.

    What an epoch from `first_epoch` on asks for counts, and an evaluation for as often as there is one.

    Returns:
        What was done, in words; None if there is no cache.
    """
    sampling, train = experiment.sampling, experiment.train
    if sampling.cache_bytes == 0 or world.num_machines == 1 or not isinstance(loaders["train"], NodeLoader):
        return None
    columns: Columns = loaders["train"].columns
    last_epoch = max(first_epoch + 1, min(first_epoch + sampling.cache_epochs, train.epochs))
    epochs = range(first_epoch, last_epoch)
    draws = [Draws(loaders["train"], epochs, weight=train.eval_every)]
    if isinstance(loaders["val"], NodeLoader) and loaders["val"].num_steps:
        draws.append(Draws(loaders["val"], [0], weight=len(epochs)))
    fill_cache(world, columns, draws, sampling.cache_bytes)
    rows = sum(len(table.cached) for table in columns.tables)
    return f"keeping {counted(rows, 'row')} of other machines ({columns.cached_bytes / 2**20:,.1f} MiB)"
