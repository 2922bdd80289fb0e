"""What becomes of a run that goes on with another number of machines: `train.elastic`."""

from __future__ import annotations

import math
from typing import Any

from ..config import Experiment, Train
from ..roster import Roster, laid_out_for
from ..world import World
from .position import Position


def rate_factor(experiment: Experiment, world: World) -> float:
    """What the learning rate is multiplied by where a step has fewer seeds, or more, than the run is laid out for."""
    elastic, share = experiment.train.elastic, world.num_machines / laid_out_for(experiment, world.num_machines)
    if elastic.keep == "batches":
        return 1.0
    return {"linear": share, "sqrt": math.sqrt(share), "constant": 1.0}[elastic.lr]


def take_up(position: Position, loader: Any, train: Train) -> int:
    """Settle a position that was restored into the steps of the machines that are there.

    The epoch has its remaining seeds left, each once. The schedule of the learning rate goes on at the share of the run
    that is done, counted in steps of these machines; where `max_steps` ends the run, steps are steps.

    Returns:
        How many steps the epoch has, those that are done included.
    """
    epoch_steps = loader.steps_of(position.epoch, position.past) if position.past else loader.num_steps
    if position.moved:
        left = epoch_steps - position.epoch_step
        per_epoch = -(-loader.num_steps // train.accumulate)
        done = position.epoch * per_epoch + -(-max(0, loader.num_steps - left) // train.accumulate)
        by_steps = train.max_steps is not None and train.max_steps <= per_epoch * train.epochs
        position.ahead = 0 if by_steps else done - position.step
    return epoch_steps


def world_figures(world: World, roster: Roster) -> dict[str, Any]:
    """For `metrics.jsonl`, each time that a run is begun or gone on with."""
    shares = {"shares": roster.num_shares} if roster.num_shares != world.size else {}
    return {"world_size": world.size, "nodes": world.num_machines, **shares}
