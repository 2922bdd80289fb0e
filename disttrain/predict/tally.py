"""What was written, counted: rows, which nodes, and the metrics of those that have a label."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch_geometric.data import HeteroData

from ..train.evaluate import merged_scores
from ..world import World
from .selection import SPLITS
from .tables import Scored

NONE = "none"
"""What stands for no split."""


@dataclass(frozen=True)
class Found:
    """Over all ranks."""

    rows: int
    checksum: int
    """Of the rows of the user's data that were written, in any order."""
    splits: dict[str, dict[str, int]]
    """Split (`none`: in no split) -> `rows`, and how many of them are `labelled`."""
    metrics: dict[str, dict[str, float]]
    """Split -> metric -> value, over its labelled rows that were predicted; and `loss`, their mean."""


class Tally:
    """One rank's count."""

    def __init__(self, task: Any) -> None:
        self.task = task
        self.checksum = np.uint64(0)
        self.counts = torch.zeros(len(SPLITS) + 1, 2, dtype=torch.int64)
        self.metrics = [task.metrics() for _ in (*SPLITS, NONE)]
        self.loss = torch.zeros(len(SPLITS) + 1, 2, dtype=torch.float64)

    def add(self, scored: Scored) -> None:
        self.checksum ^= self.checksum_of(scored.rows)
        for number in range(-1, len(SPLITS)):
            here = scored.split == number
            labelled = torch.from_numpy(np.flatnonzero(here & scored.present))
            self.counts[number] += torch.tensor([int(here.sum()), len(labelled)])
            if len(labelled):
                logits, batch = scored.logits[labelled], HeteroData()
                batch[self.task.node_type][self.task.label] = scored.labels[labelled]
                batch[self.task.node_type].batch_size = len(labelled)
                self.task.update(self.metrics[number], logits, batch)
                self.loss[number, 0] += self.task.loss(logits, batch).double()
                self.loss[number, 1] += self.task.weight(batch)

    @staticmethod
    def checksum_of(rows: np.ndarray) -> np.uint64:
        """Exclusive or of a hash of each row: does not depend on their order; a row that comes twice is missing.

        The hash is the finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
        """
        with np.errstate(over="ignore"):
            hashed = (rows.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
            hashed = (hashed ^ (hashed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            hashed = (hashed ^ (hashed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            return np.bitwise_xor.reduce(hashed ^ (hashed >> np.uint64(31)), initial=np.uint64(0))

    def over_all_ranks(self, world: World) -> Found:
        """Every rank calls it."""
        counts = world.sum(self.counts, "counting the predictions")
        loss = world.sum(self.loss, "counting the predictions")
        checksums = world.gather(int(self.checksum), "counting the predictions")
        metrics: dict[str, dict[str, float]] = {}
        names = (*SPLITS, NONE)
        for number, name in enumerate(names):
            scores = merged_scores(self.metrics[number], self.task, world)
            if counts[number, 1]:
                total, weight = loss[number].tolist()
                values = {metric: score.value for metric, score in scores.items()}
                metrics[name] = {**values, "loss": total / weight if weight else float("nan")}
        return Found(
            rows=int(counts[:, 0].sum()),
            checksum=int(np.bitwise_xor.reduce(np.array(checksums, np.uint64))),
            splits={
                name: {"rows": int(counts[n, 0]), "labelled": int(counts[n, 1])}
                for n, name in enumerate(names)
                if counts[n, 0]
            },
            metrics=metrics,
        )
