"""The run that predicts: which of its checkpoints, and its weights in a model that was built again."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ..collection.graphs import Graphs
from ..config import Experiment, ExperimentError, Launch
from ..graph.graph import Graph
from ..train.checkpoint import CheckpointDirectory, TornCheckpoint, named_checkpoint, newest_checkpoint, share_tensors
from ..world import World

_MOST_SHOWN = 8


@dataclass(frozen=True)
class Chosen:
    """A whole checkpoint."""

    checkpoints: CheckpointDirectory
    name: str
    source: int
    """The rank that can read it."""
    state: dict[str, Any]

    @property
    def step(self) -> int:
        return int(self.name.removeprefix("step-"))


def choose_checkpoint(world: World, run_directory: Path, which: str) -> Chosen:
    """Agree over all machines on a checkpoint; every rank calls it.

    Args:
        which: "best" (by the run's own metric; without validation the newest), "last", or "step-N".

    Raises:
        ExperimentError: on every rank: there is no such checkpoint that is whole.
    """
    checkpoints = CheckpointDirectory(run_directory / "checkpoints")
    newest = newest_checkpoint(world, checkpoints)
    if newest is None:
        raise ExperimentError(
            f"{run_directory} holds no checkpoint that can be read: expected the directory of a run that came to its "
            "first one (at the end of an epoch, or train.checkpoint.every_steps)"
        )
    source, name, state = newest
    wanted = _wanted(which, state) or name
    if wanted == name:
        return Chosen(checkpoints, name, source, state)
    found = named_checkpoint(world, checkpoints, wanted)
    if found is None:
        there = ", ".join(f"step-{int(other.removeprefix('step-'))}" for other in checkpoints.names())
        what = f"the best checkpoint, step-{_step(wanted)}," if which == "best" else f"the checkpoint {which}"
        raise ExperimentError(
            f"{what} of {run_directory} is not there or not whole; there are {there}; --checkpoint last takes the "
            "newest one"
        )
    return Chosen(checkpoints, found[1], found[0], found[2])


def _wanted(which: str, newest: dict[str, Any]) -> str | None:
    """The name of the checkpoint; None: the newest one."""
    if which == "last":
        return None
    if which == "best":
        step = newest["best"]["step"]
        return None if step is None else f"step-{step:010d}"
    match = re.fullmatch(r"step-(\d+)", which)
    if match is None:
        raise ExperimentError(f"--checkpoint: expected best, last or step-N, got {which!r}")
    return f"step-{int(match[1]):010d}"


def _step(name: str) -> int:
    return int(name.removeprefix("step-"))


def fit_to_world(experiment: Experiment, chosen: Chosen, world: World) -> Experiment:
    """The run's experiment for the ranks that are there: what it was sized for does not matter, and partitions that it
    made are used again where they are enough for the machines."""
    changes: dict[str, Any] = {"launch": Launch()}
    made = chosen.state["run"]["partitions"]["parts"]
    if experiment.partition.parts == "auto" and made >= world.num_machines:
        changes["partition"] = experiment.partition.model_copy(update={"parts": made})
    return experiment.model_copy(update=changes)


def refuse_other_meaning(trained_on: dict[str, Any], graph: Graph | Graphs) -> None:
    """Refuse data whose numbers stand for something else than those of the training did.

    Raises:
        ExperimentError: features of a table are scaled or coded otherwise, or classes are numbered otherwise.
    """
    info, lines = graph.schema.info, []
    then, now = trained_on.get("encoding", {}), info.get("encoding", {})
    other = [name for name in dict.fromkeys((*then, *now)) if then.get(name) != now.get(name)]
    if other:
        lines.append(
            f"the features of {', '.join(other)} are not scaled and coded as in training: tables are by their training "
            "rows (those of other types by all rows, or those before data.split.val), which must be the same ones; new "
            "rows may come without a label"
        )
    if trained_on.get("classes", {}) != info.get("classes", {}):
        lines.append(f"the classes are {info.get('classes')}, in training they were {trained_on.get('classes')}")
    if lines:
        raise ExperimentError("the model cannot be used on these data: " + "; ".join(lines))


def load_weights(model: nn.Module, chosen: Chosen, world: World) -> None:
    """Put the checkpoint's weights into the model; every rank calls it.

    Raises:
        ExperimentError: they are another model's; the message names the tensors that differ.
    """

    def readable() -> None:
        if world.rank == chosen.source:
            try:
                chosen.checkpoints.read_state(chosen.name)
            except (TornCheckpoint, OSError) as error:
                raise ExperimentError(f"checkpoint {chosen.name} can no longer be read: {error}; try again") from error

    world.together(readable, "reading the checkpoint")
    shared = share_tensors(world, chosen.checkpoints, chosen.name, chosen.source, prefix="model/")
    tensors = {name.removeprefix("model/"): tensor for name, tensor in shared.items()}
    world.together(lambda: _refuse_misfit(model.state_dict(), tensors), "loading the weights")
    model.load_state_dict(tensors)


def _refuse_misfit(ours: dict[str, Any], theirs: dict[str, Tensor]) -> None:
    lines = []
    for name in dict.fromkeys((*theirs, *ours)):
        there = str(list(theirs[name].shape)) if name in theirs else "nothing"
        here = str(list(ours[name].shape)) if name in ours else "nothing"
        if there != here:
            lines.append(f"{name}: {there} in the checkpoint, {here} for this data and experiment")
    if lines:
        more = f"\n  and {len(lines) - _MOST_SHOWN} more" if len(lines) > _MOST_SHOWN else ""
        raise ExperimentError(
            "the weights of the run do not fit the model that this experiment and data make:\n  "
            + "\n  ".join(lines[:_MOST_SHOWN])
            + more
            + "\nPredict with the settings and data that the run was trained with, or with data of the same schema "
            "(the same types, relations, widths and classes)"
        )
