"""What makes a run this run: a checkpoint of another one is refused, with the differences."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ..config import Experiment, ExperimentError, GraphTask
from ..config.counted import counted
from ..config.file import differences, plain
from ..roster import laid_out_for, steps_change
from ..world import World

MAY_CHANGE = (
    "name", "run_dir", "launch", "sweep", "data.storage", "data.store", "data.memory_limit",
    "data.in_memory", "data.ondisk_backend", "data.cache", "data.first",
    "partition.dir", "partition.topology", "partition.distribute",
    "sampling.workers", "sampling.worker_kind", "sampling.start_method", "sampling.prefetch",
    "sampling.cache_bytes", "sampling.cache_epochs",
    "train.epochs", "train.max_steps", "train.checkpoint", "train.log_every", "train.device", "train.threads",
    "train.timeout", "train.on_nan", "train.max_skipped", "evaluate.batch_edges", "evaluate.scratch",
)  # fmt: skip
"""Settings that may change between an interruption and the resume."""

_LENGTH = ("train.epochs", "train.max_steps")
"""Of them, those by which a learning rate that falls to the end of the run is what it is."""


_MOST_TENSORS = 5
"""As many differences of the model's tensors are listed."""


def run_identity(experiment: Experiment, world: World, manifest: dict[str, Any], model: nn.Module) -> dict[str, Any]:
    """JSON of what decides the weights a run arrives at.

    Args:
        manifest: of the partitions.
    """
    settings = plain(experiment)
    falls = experiment.train.scheduler.kind in ("cosine", "linear")
    for path in MAY_CHANGE:
        if falls and path in _LENGTH:
            continue
        section, _, key = path.rpartition(".")
        (settings[section] if section else settings).pop(key)
    settings["train"].pop("elastic")
    files = json.dumps(manifest.get("files", {}), sort_keys=True)
    return {
        "experiment": settings,
        "data": {
            "fingerprint": manifest["fingerprint"],
            **({"split": manifest["split"]} if "split" in manifest else {}),
            **_meaning(manifest.get("info", {})),
        },
        "partitions": {
            "parts": manifest["parts"],
            "digest": hashlib.blake2b(files.encode(), digest_size=8).hexdigest(),
        },
        "world": _laid_out(experiment, world),
        "model": {
            name: str(list(value.shape)) for name, value in model.state_dict().items() if isinstance(value, Tensor)
        },
    }


def _laid_out(experiment: Experiment, world: World) -> dict[str, Any]:
    """The world that the run is laid out for; which of it is there makes no difference where `launch.min_nodes` is set.

    So a run may become elastic later, as long as nothing but time is lost by it (`train.elastic.keep: batches`).
    """
    about_graphs = isinstance(experiment.task, GraphTask)
    by_machine = experiment.data.shard if about_graphs else experiment.sampling.locality
    by_machine = by_machine or steps_change(experiment)
    machines = laid_out_for(experiment, world.num_machines)
    shape: dict[str, Any] = {"ranks": machines * world.local_size, **({"machines": machines} if by_machine else {})}
    if steps_change(experiment):
        shape["elastic"] = plain(experiment.train.elastic)
    return shape


def _meaning(info: dict[str, Any]) -> dict[str, Any]:
    """What the numbers of the data stand for, where a source made them of something else."""
    return {name: info[name] for name in ("encoding", "classes") if name in info}


def check_identity(theirs: dict[str, Any], ours: dict[str, Any], run_directory: Path, sizes: Mapping[str, int]) -> None:
    """Refuse to resume a run that was another one.

    Args:
        sizes: of a collection of graphs, by its fingerprint, how many it had whenever it was extended.

    Raises:
        ExperimentError: lists every difference.
    """
    called = ("in the checkpoint", "now")
    settings = differences({**theirs, "model": {}}, {**ours, "model": {}}, called)
    lines = [line.removeprefix("experiment.") for line in settings]
    if theirs["data"]["fingerprint"] != ours["data"]["fingerprint"]:  # then their files are others anyway
        lines = [line for line in lines if not line.startswith("partitions.digest")]
    tensors = differences({"model": theirs["model"]}, {"model": ours["model"]}, called)
    # A setting of the model changes many tensors at once, and says it better.
    shown = [] if any(line.startswith("model.") for line in lines) else tensors[:_MOST_TENSORS]
    lines += shown
    if more := len(tensors) - len(shown):
        lines.append(f"and {'more: ' if shown else 'with that '}{counted(more, 'tensor')} of the model")
    if lines:
        listed = "\n  ".join(lines)
        raise ExperimentError(
            f"{run_directory} holds the checkpoints of another run, which this one cannot go on from:\n  {listed}\n"
            f"Put these back as they were{_grown(theirs, ours, sizes)}, or choose another run_dir, or begin anew in "
            "this one with --fresh" + _advice(theirs, ours)
        )


def _grown(theirs: dict[str, Any], ours: dict[str, Any], sizes: Mapping[str, int]) -> str:
    """How a collection that was extended is what it was."""
    before, now = (run["data"]["fingerprint"] for run in (theirs, ours))
    if before == now or before not in sizes:
        return ""
    return f" (with data.first={sizes[before]} the collection is what it was: it was extended)"


def _advice(theirs: dict[str, Any], ours: dict[str, Any]) -> str:
    """Where the ranks are others: how a run goes on with fewer machines."""
    before, now = theirs["world"]["ranks"], ours["world"]["ranks"]
    if before <= now:
        return ""
    nodes = theirs["world"].get("machines")
    shown = f"={nodes}" if nodes else " as many machines as it began with"
    return (
        f". To go on with fewer machines than the {counted(before, 'rank')} that it was begun with, set launch.nodes"
        f"{shown} and launch.min_nodes=1"
    )
