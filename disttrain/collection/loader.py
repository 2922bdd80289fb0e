"""Mini-batches of graphs, made ahead by worker threads or processes."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from functools import cached_property
from typing import Any

import numpy as np
from torch_geometric.data import HeteroData

from ..config import ExperimentError, Sampling
from ..config.counted import counted
from ..graph.schema import GRAPH, Wants
from ..sampling.line import Line
from ..sampling.seeds import Seeds
from ..world import World
from .graphs import Graphs
from .group import Group, all_together, by_machine
from .order import Dealt, deal_batches, deal_epoch, equal_batches, steps_of_epoch
from .packing import Packing, filled_up
from .processes import Processes
from .steps import Steps


class GraphLoader:
    """Mini-batches of a split of a collection, the same number on every rank, each graph once an epoch.

    In training, the ranks together take in each step the next graphs of an order that seed and epoch decide, see
    `deal_epoch`: what they have together does not depend on how many they are, unless each machine has graphs of its
    own (`graphs.sharded`) or `max_nodes` or `max_edges` bound what a rank may have. In evaluation batches are of
    consecutive graphs, dealt out to the ranks; some may be empty.

    Args:
        split: the attribute of the graphs that marks its members; or these themselves.
        sampling: batch sizes, workers, prefetch, shuffle.
        wants: what batches have to carry.
        training: shuffle, with `batch_size`; otherwise `eval_batch_size`, and the same batches each time.
        processes: of `worker_processes`, where loaders share them.

    Raises:
        ExperimentError: the graphs lack what is wanted, or one is larger than a rank may have, or no step is full where
            only full ones count.
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
        processes: Processes | None = None,
    ) -> None:
        self.cache_asked = np.zeros(2, np.int64)
        """Graphs that were in the cache (`data.cache`), and those that were not, so far."""
        self.world, self.graphs, self.sampling, self.run_seed = world, graphs, sampling, run_seed
        self.wants, self.training, self._who = graphs.resolved(wants), training, str(world)
        self._processes = processes or worker_processes(world, graphs, sampling)
        if isinstance(split, str):
            ids = np.flatnonzero(graphs.node_attribute(GRAPH, split))
            split = Seeds(ids, ids)
        self.seeds = split
        self._groups = self._grouped()
        if sampling.by_size:
            self._refuse_too_large()
        if not training:
            self.num_steps = len(self._dealt(0))
        elif sampling.by_size:
            self.num_steps = self._packing.num_steps
        else:
            self.num_steps = steps_of_epoch(self._groups, sampling.batch_size, sampling.drop_last)
            if not self.num_steps and len(self.seeds):
                raise ExperimentError(
                    f"sampling.drop_last: {counted(len(self.seeds), 'training graph')} fill no step of {world.size} x "
                    f"{sampling.batch_size} (ranks x sampling.batch_size); take smaller batches, or leave it out"
                )

    def _grouped(self) -> list[Group]:
        if not self.graphs.sharded:
            return all_together(len(self.seeds), self.world.size)
        return by_machine(self.seeds.ids, self.graphs.node_books[GRAPH].bounds, self.world.local_size)

    def _dealt(self, epoch: int) -> Dealt:
        sampling = self.sampling
        if self.training:
            return deal_epoch(
                self._groups,
                batch_size=sampling.batch_size,
                drop_last=sampling.drop_last,
                shuffle=sampling.shuffle,
                run_seed=self.run_seed,
                epoch=epoch,
                sizes=self._sizes.sum(axis=0) if sampling.balance == "size" else None,
                packing=self._packing if sampling.by_size else None,
            )
        if sampling.by_size:
            return deal_batches(
                self._groups, [filled_up(self._bounded, group.first_place, group.end) for group in self._groups]
            )
        batch_size = sampling.eval_batch_size or sampling.batch_size
        return deal_batches(self._groups, [equal_batches(group, batch_size) for group in self._groups])

    @cached_property
    def _sizes(self) -> Any:
        """int64 [2, num_seeds]: nodes, edges."""
        nodes, edges = self.graphs.sizes
        return np.stack([nodes[self.seeds.ids], edges[self.seeds.ids]])

    @property
    def _bounded(self) -> list[tuple[np.ndarray, int]]:
        """Where there is a bound: the size of each seed, and the bound."""
        bounds = self.sampling.max_nodes, self.sampling.max_edges
        most = np.iinfo(np.int64).max // 2
        return [(size, min(bound, most)) for size, bound in zip(self._sizes, bounds) if bound is not None]

    @cached_property
    def _packing(self) -> Packing:
        shares = np.max([size / bound for size, bound in self._bounded], axis=0, initial=0.0)
        return Packing.of(shares, self._groups)

    def _refuse_too_large(self) -> None:
        for name, sizes, most in zip(
            ("nodes", "edges"), self._sizes, (self.sampling.max_nodes, self.sampling.max_edges)
        ):
            if most is not None and len(sizes) and sizes.max() > most:
                raise ExperimentError(
                    f"sampling.max_{name} is {most:,}, and graph {self.seeds.ids[sizes.argmax()]} alone has "
                    f"{sizes.max():,} ({counted(int((sizes > most).sum()), 'graph')} of {len(sizes):,} have more than "
                    f"{most:,}); allow as many, or leave such graphs out (data.pre_filter)"
                )

    def batches(self, epoch: int, start: int = 0) -> Generator[HeteroData, None, None]:
        """This rank's batches of an epoch from step `start` on, in order. No rank waits for another.

        Raises:
            WorkerError: a worker process failed, or was killed.
        """
        with closing(self._batches(epoch, start)) as batches:
            for batch in batches:
                if "cache_asked" in batch:
                    self.cache_asked += batch.cache_asked
                    del batch.cache_asked
                yield batch

    def _batches(self, epoch: int, start: int) -> Generator[HeteroData, None, None]:
        steps = Steps.of(self._dealt(epoch), self.world.rank, self.seeds.ids, epoch, self.wants)
        if self._processes is not None:
            yield from self._processes.batches(steps, start)
            return
        if self.sampling.workers == 0:
            for step in range(start, len(steps)):
                yield steps.make(self.graphs, step)
            return
        workers, ahead = [self.graphs] * self.sampling.workers, self.sampling.prefetch
        line = Line(workers, _make, steps, epoch, start, ahead, self.world.timeout, self._who)
        try:
            for step in range(start, len(steps)):
                yield line.next(step)
        finally:
            line.close()

    def close(self) -> None:
        """End worker processes, where there are some."""
        if self._processes is not None:
            self._processes.close()


def worker_processes(world: World, graphs: Graphs, sampling: Sampling) -> Processes | None:
    """The worker processes of a rank, for its loaders to share; None: its workers are threads, or it has none."""
    if not sampling.in_processes(transforms=graphs.look is not None):
        return None
    return Processes(graphs, sampling.workers, sampling.prefetch, sampling.start_method, world.timeout, str(world))


def _make(graphs: Graphs, steps: Steps, epoch: int, step: int) -> HeteroData:
    return steps.make(graphs, step)
