"""What one rank makes in an epoch: the same for worker threads and processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch_geometric.data import HeteroData

from ..graph.schema import GRAPH, Wants
from .order import Dealt


@dataclass(frozen=True)
class Steps:
    """The batches of one rank in one epoch, before they are made."""

    ids: np.ndarray
    """int64: the graphs, step after step."""
    places: np.ndarray
    """int64: their places in the split."""
    ends: np.ndarray
    """int64 [num_steps + 1]: where each step begins in these, and where the last one ends."""
    num_seeds: np.ndarray
    """int64 [num_steps]: graphs over all ranks."""
    num_ranks: int
    epoch: int
    wants: Wants

    @staticmethod
    def of(dealt: Dealt, rank: int, ids: np.ndarray, epoch: int, wants: Wants) -> Steps:
        """Args:
        ids: int64: the graph at each place of the split.
        """
        num_steps = len(dealt)
        parts = [dealt.of(step, rank) for step in range(num_steps)]
        ends = np.cumsum([0, *map(len, parts)])
        places = np.concatenate([np.empty(0, np.int64), *parts])
        num_seeds = np.array([dealt.num_seeds(step) for step in range(num_steps)], np.int64)
        return Steps(ids[places], places, ends, num_seeds, dealt.num_ranks, epoch, wants)

    def __len__(self) -> int:
        return len(self.num_seeds)

    def graphs_of(self, step: int) -> np.ndarray:
        return self.ids[self.ends[step] : self.ends[step + 1]]

    def make(self, graphs: Any, step: int) -> HeteroData:
        """A mini-batch.

        Args:
            graphs: see `Graphs.batch`.
        """
        ids = self.graphs_of(step)
        batch = graphs.batch(ids, self.wants, self.epoch)
        batch[GRAPH].input_id = torch.from_numpy(self.places[self.ends[step] : self.ends[step + 1]])
        batch.epoch, batch.step = self.epoch, step
        if (cache := getattr(graphs, "cache", None)) is not None:
            batch.cache_asked = cache.asked()  # which the loader takes away again
        batch.num_global_seeds, batch.world_size = int(self.num_seeds[step]), self.num_ranks
        return batch
