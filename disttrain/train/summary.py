"""`summary.json`: what a run came to."""

from __future__ import annotations

import platform
import resource
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import numpy as np

from ..collection.loader import GraphLoader
from ..graph.schema import GRAPH
from ..sampling import NodeLoader
from .evaluate import Evaluation
from .phases import STEP_PHASES

if TYPE_CHECKING:
    from .trainer import Trainer

_PHASES = ("partition", "load", "cache", "train", "evaluate", "checkpoint")


def run_summary(trainer: Trainer, test: Evaluation | None) -> dict[str, Any]:
    """Gather the figures of all ranks; every rank calls it. See the README for the fields.

    `seconds` are rank 0's, over all attempts of the run; `step_seconds`, throughput and exchanges are of this attempt.
    """
    world, position, clock = trainer.world, trainer.position, trainer.clock
    clock.collect()
    trainer.memory.look()
    steps = max(1, trainer.steps_here)
    traffics = [getattr(loader, "traffic", None) for loader in trainer.loaders.values()]
    mine = {
        "step_seconds": {phase: clock.seconds.get(phase, 0.0) / steps for phase in STEP_PHASES},
        "train": clock.seconds["train"],
        "rss": peak_rss_bytes(),
        "pss": trainer.memory.peak_pss,
        "gpu": trainer.memory.peak_gpu,
        "traffic": [(t.batches, t.exchanges, t.bytes_sent) for t in traffics if t is not None],
        "cache": _own_cache(trainer),
    }
    ranks = world.gather(mine, "summing up")
    batches, exchanges, sent = (sum(t[i] for rank in ranks for t in rank["traffic"]) for i in range(3))
    cache = _cache([rank["cache"] for rank in ranks[:: len(ranks) // world.num_machines]], [r["cache"] for r in ranks])
    seconds = trainer.all_seconds()
    evaluated = {"val": position.best_evaluation, "test": test.kept() if test else None}
    manifest = trainer.manifest
    epochs = position.epoch + (position.epoch_step > 0)  # `max_steps` may end the run within one
    return {
        "name": trainer.experiment.name,
        "task": trainer.experiment.task.kind,
        "labels": trainer.task.describe(),
        "world_size": world.size,
        "nodes": world.num_machines,
        "epochs": epochs,
        "steps": position.step,
        "skipped_steps": position.skipped,
        "best_epoch": epochs if position.best.epoch is None else position.best.epoch + 1,
        "best_metric": position.best.metric,
        **{split: found["metrics"] if found else {} for split, found in evaluated.items()},
        "num_evaluated": {split: found["num_evaluated"] if found else 0 for split, found in evaluated.items()},
        # Of a checkpoint that an older version wrote, what it does not hold is left out.
        "num_entries": {s: found["num_entries"] for s, found in evaluated.items() if found and "num_entries" in found},
        "each": {split: found["each"] for split, found in evaluated.items() if found and found.get("each")},
        "seconds": {phase: seconds.get(phase, 0.0) for phase in ("total", *_PHASES)},
        "step_seconds": {phase: sum(r["step_seconds"][phase] for r in ranks) / len(ranks) for phase in STEP_PHASES},
        "seeds_per_second": trainer.seeds_here / max(1e-9, max(rank["train"] for rank in ranks)),
        "bytes_exchanged": sent + (cache["bytes_to_fill"] if cache else 0),
        "exchanges_per_batch": exchanges / batches if batches else 0.0,
        "cache_hit_rate": cache["hit_rate"] if cache else None,
        "cache": cache,
        "peak_rss_bytes": [rank["rss"] for rank in ranks],
        "peak_pss_bytes": [rank["pss"] for rank in ranks],
        "peak_gpu_bytes": [rank["gpu"] for rank in ranks],
        "partition": {
            "parts": manifest["parts"],
            "method": manifest["method"],
            "edge_cut": manifest.get("edge_cut", {}).get("total"),
            "fingerprint": manifest["fingerprint"],
        },
        "versions": _versions(),
    }


def _own_cache(trainer: Trainer) -> dict[str, Any] | None:
    """What this machine keeps of others, and what this rank got from it; or which graphs it keeps in memory."""
    graph_loaders = [loader for loader in trainer.loaders.values() if isinstance(loader, GraphLoader)]
    if graph_loaders and graph_loaders[0].graphs.cache is not None:
        hits, misses = (int(sum(loader.cache_asked[at] for loader in graph_loaders)) for at in (0, 1))
        bound = trainer.experiment.data.cache
        return {"bytes": bound, "bytes_to_fill": 0, "rows": {GRAPH: 0}, "asked": {GRAPH: [hits, misses]}}
    loaders = [loader for loader in trainer.loaders.values() if isinstance(loader, NodeLoader)]
    if not loaders or not loaders[0].columns.cached_bytes:
        return None
    columns = loaders[0].columns
    asked = np.zeros((2, len(columns.tables)), np.int64)
    for loader in loaders:
        if loader.traffic.batches:
            asked += loader.traffic.asked
    return {
        "bytes": columns.cached_bytes,
        "bytes_to_fill": columns.bytes_to_fill,
        "rows": {table.name: len(table.cached) for table in columns.tables},
        "asked": {table.name: [int(n) for n in asked[:, at]] for at, table in enumerate(columns.tables)},
    }


def _cache(machines: list[dict[str, Any] | None], ranks: list[dict[str, Any] | None]) -> dict[str, Any] | None:
    """Of all machines together. Hit rate: of the remote rows that batches needed, the share that nobody had to send."""
    kept, seen = [m for m in machines if m], [rank for rank in ranks if rank]
    if not kept:
        return None
    names = list(kept[0]["rows"])
    hits, misses = ({name: sum(rank["asked"][name][i] for rank in seen) for name in names} for i in (0, 1))

    def rate(hit: int, missed: int) -> float | None:
        return hit / (hit + missed) if hit + missed else None

    return {
        "hit_rate": rate(sum(hits.values()), sum(misses.values())),
        "hit_rate_by_type": {name: rate(hits[name], misses[name]) for name in names},
        "bytes": sum(machine["bytes"] for machine in kept),
        "bytes_to_fill": sum(rank["bytes_to_fill"] for rank in seen),
        "rows": {name: sum(machine["rows"][name] for machine in kept) for name in names},
    }


def peak_rss_bytes() -> int:
    """The most memory this process has had resident, mapped files included."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in ("disttrain", "torch", "torch_geometric", "numpy", "numba", "torchmetrics"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found
