"""What one rank makes in an epoch: the same for worker threads and processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch_geometric.data import HeteroData

from ..graph.schema import GRAPH, Wants
from .order import Dealt

Turns = Sequence[Sequence[Sequence[int]]]
"""[rounds][num_ranks]: the shares of a step that each rank has in each round, in one batch."""
_NOTHING = np.empty(0, np.int64)


@dataclass(frozen=True)
class Steps:
    """The batches of one rank in one epoch, before they are made; in each step as many as there are rounds."""

    ids: np.ndarray
    """int64: the graphs, batch after batch."""
    places: np.ndarray
    """int64: their places in the split."""
    ends: np.ndarray
    """int64 [num_batches + 1]: where each batch begins in these, and where the last one ends."""
    num_seeds: np.ndarray
    """int64 [num_batches]: graphs over all ranks."""
    shares: np.ndarray
    """int64 [rounds]: the rank's share of a step in each round, -1 where it has had all its own."""
    num_ranks: int
    epoch: int
    wants: Wants

    @staticmethod
    def of(dealt: Dealt, turns: Turns, rank: int, ids: np.ndarray, epoch: int, wants: Wants) -> Steps:
        """Args:
        turns: who does which share.
        ids: int64: the graph at each place of the split.
        """
        num_ranks = len(turns[0])
        # Steps before `dealt.first` are over.
        rounds = [(step, turn) for step in range(dealt.first, len(dealt)) for turn in turns]
        parts = [np.concatenate([_NOTHING, *(dealt.of(step, s) for s in turn[rank])]) for step, turn in rounds]
        ends = np.cumsum([0, *map(len, parts)])
        counts = np.diff(dealt.ends).reshape(-1, dealt.num_ranks)
        num_seeds = np.stack([counts[:, [s for shares in turn for s in shares]].sum(axis=1) for turn in turns], axis=1)
        over = dealt.first * len(turns)
        places = np.concatenate([_NOTHING, *parts])
        return Steps(
            ids[places],
            places,
            np.concatenate([np.zeros(over, np.int64), ends]),
            np.concatenate([np.zeros(over, np.int64), num_seeds.reshape(-1)]),
            np.array([turn[rank][0] if turn[rank] else -1 for turn in turns]),
            num_ranks,
            epoch,
            wants,
        )

    def __len__(self) -> int:
        """Batches."""
        return len(self.num_seeds)

    def graphs_of(self, at: int) -> np.ndarray:
        return self.ids[self.ends[at] : self.ends[at + 1]]

    def make(self, graphs: Any, at: int) -> HeteroData:
        """A mini-batch.

        Args:
            graphs: see `Graphs.batch`.
        """
        rounds = len(self.shares)
        ids = self.graphs_of(at)
        batch = graphs.batch(ids, self.wants, self.epoch)
        batch[GRAPH].input_id = torch.from_numpy(self.places[self.ends[at] : self.ends[at + 1]])
        batch.epoch, batch.step = self.epoch, at // rounds
        batch.share, batch.closes_step = int(self.shares[at % rounds]), (at + 1) % rounds == 0
        if (cache := getattr(graphs, "cache", None)) is not None:
            batch.cache_asked = cache.asked()  # which the loader takes away again
        batch.num_global_seeds, batch.world_size = int(self.num_seeds[at]), self.num_ranks
        return batch
