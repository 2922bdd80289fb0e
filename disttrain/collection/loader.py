"""Mini-batches of graphs, cut from the arrays by worker threads."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
import torch
from torch_geometric.data import HeteroData

from ..config import Sampling
from ..graph.schema import GRAPH, Wants
from ..sampling.line import Line
from ..sampling.seeds import Seeds, Shares, share_batches, share_epoch
from ..world import World
from .graphs import Graphs


class GraphLoader:
    """Mini-batches of a split of a collection, the same number on every rank, each graph once an epoch.

    In training, step s of W ranks takes the graphs s * W * batch_size and on of an order that seed and epoch decide,
    divided among the ranks: what the ranks have together does not depend on how many they are. In evaluation batches
    are of consecutive graphs, dealt out to the ranks; some may be empty.

    Args:
        split: the attribute of the graphs that marks its members; or these themselves.
        sampling: batch sizes, workers, prefetch, shuffle.
        wants: what batches have to carry.
        training: shuffle, with `batch_size`; otherwise `eval_batch_size`, and the same batches each time.

    Raises:
        ExperimentError: the graphs lack what is wanted.
    """

    def __init__(
        self,
        world: World,
        graphs: Graphs,
        split: str | Seeds,
        *,
        sampling: Sampling,
        run_seed: int,
        wants: Wants,
        training: bool,
    ) -> None:
        graphs.refuse_unknown(wants)
        self.world, self.graphs, self.sampling, self.run_seed = world, graphs, sampling, run_seed
        self.wants, self.training = wants, training
        if isinstance(split, str):
            ids = np.flatnonzero(graphs.node_attribute(GRAPH, split))
            split = Seeds(ids, ids)
        self.seeds = split
        self.num_steps = len(self._shares(0))

    def _shares(self, epoch: int) -> Shares:
        sampling = self.sampling
        if not self.training:
            return share_batches(len(self.seeds), self.world.size, sampling.eval_batch_size or sampling.batch_size)
        return share_epoch(
            self.seeds,
            np.zeros(len(self.seeds), np.int64),
            num_machines=self.world.num_machines,
            ranks_per_machine=self.world.local_size,
            batch_size=sampling.batch_size,
            shuffle=sampling.shuffle,
            locality=False,
            run_seed=self.run_seed,
            epoch=epoch,
        )

    def batches(self, epoch: int, start: int = 0) -> Generator[HeteroData, None, None]:
        """This rank's batches of an epoch from step `start` on, in order. No rank waits for another."""
        shares, workers = self._shares(epoch), self.sampling.workers
        if workers == 0:
            for step in range(start, len(shares)):
                yield self._make(None, shares, epoch, step)
            return
        line = Line([None] * workers, self._make, shares, epoch, start, self.sampling.prefetch, str(self.world))
        try:
            for step in range(start, len(shares)):
                yield line.next(step)
        finally:
            line.close()

    def _make(self, worker: Any, shares: Shares, epoch: int, step: int) -> HeteroData:
        places = shares.of(step, self.world.rank)
        batch = self.graphs.batch(self.seeds.ids[places], self.wants)
        batch[GRAPH].input_id = torch.from_numpy(places)
        batch.epoch, batch.step = epoch, step
        batch.num_global_seeds, batch.world_size = shares.num_seeds(step), self.world.size
        return batch
