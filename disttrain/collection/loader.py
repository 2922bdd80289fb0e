"""Mini-batches of graphs, made ahead by worker threads or processes."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from torch_geometric.data import HeteroData

from ..config import ExperimentError, Sampling
from ..config.counted import counted
from ..graph.schema import GRAPH, Wants
from ..roster import Roster
from ..sampling.line import Line
from ..sampling.seeds import Past, Seeds, divide_rest
from ..world import World
from .graphs import Graphs
from .group import Group, all_together, by_machine
from .order import Dealt, deal_batches, deal_epoch, equal_batches, steps_of_epoch
from .packing import Packing, filled_up
from .processes import Processes
from .steps import Steps, Turns


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
        roster: of training: who does which share of a step. None: each rank its own.
        joined: where machines are missing, a rank has all its shares of a step in one batch instead of one after
            another, unless `max_nodes` or `max_edges` bound what it may have at once.

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
        roster: Roster | None = None,
        joined: bool = False,
    ) -> None:
        self.cache_asked = np.zeros(2, np.int64)
        """Graphs that were in the cache (`data.cache`), and those that were not, so far."""
        self._packings: dict[int, Packing] = {}
        self.world, self.graphs, self.sampling, self.run_seed = world, graphs, sampling, run_seed
        self.wants, self.training, self._who = graphs.resolved(wants), training, str(world)
        self._processes = processes or worker_processes(world, graphs, sampling)
        if isinstance(split, str):
            ids = np.flatnonzero(graphs.node_attribute(GRAPH, split))
            split = Seeds(ids, ids)
        self.seeds = split
        self._roster = roster if roster is not None and training else Roster.whole(world)
        self._joined = joined and not sampling.by_size
        self._everything = np.arange(len(self.seeds))
        self._groups = self._grouped(self._everything, self._roster.machines)
        if sampling.by_size:
            self._refuse_too_large()
        if not training:
            self.num_steps = len(self._evaluated())
            return
        self.num_steps = self._steps_of(self._everything, self._groups)
        """Per epoch, without a `past`."""
        if not self.num_steps and len(self.seeds):
            raise ExperimentError(
                f"sampling.drop_last: {counted(len(self.seeds), 'training graph')} fill no step of "
                f"{self._roster.num_shares} x {sampling.batch_size} (ranks x sampling.batch_size); take smaller "
                "batches, or leave it out"
            )

    @property
    def rounds(self) -> int:
        """Batches that a rank has in each step."""
        return 1 if self._joined else self._roster.rounds

    def steps_of(self, epoch: int, past: Past = ()) -> int:
        """How many steps an epoch has, those of its `past` included."""
        return len(self._dealt(epoch, past)) if past else self.num_steps

    def _turns(self) -> Turns:
        roster, ranks = self._roster, range(self.world.size)
        if self._joined:
            return [[roster.shares(rank) for rank in ranks]]
        rounds = (roster.in_round(number) for number in range(roster.rounds))
        return [[() if share is None else (share,) for share in shares] for shares in rounds]

    def _grouped(self, places: np.ndarray, num_machines: int) -> list[Group]:
        if not self.graphs.sharded:
            return all_together(len(places), num_machines * self.world.local_size)
        bounds = replace(self.graphs, num_machines=num_machines).node_books[GRAPH].bounds
        return by_machine(self.seeds.ids[places], bounds, self.world.local_size)

    def _steps_of(self, places: np.ndarray, groups: list[Group]) -> int:
        if self.sampling.by_size:
            return self._packing(places, groups).num_steps
        return steps_of_epoch(groups, self.sampling.batch_size, self.sampling.drop_last)

    def _dealt(self, epoch: int, past: Past = ()) -> Dealt:
        """An epoch of training."""
        sampling = self.sampling

        def deal(places: np.ndarray, num_machines: int) -> Dealt:
            groups = self._grouped(places, num_machines)
            dealt = deal_epoch(
                groups,
                batch_size=sampling.batch_size,
                drop_last=sampling.drop_last,
                shuffle=sampling.shuffle,
                run_seed=self.run_seed,
                epoch=epoch,
                sizes=self._sizes[:, places].sum(axis=0) if sampling.balance == "size" else None,
                packing=self._packing(places, groups) if sampling.by_size else None,
            )
            return replace(dealt, places=places[dealt.places])

        return divide_rest(len(self.seeds), deal, self._roster.machines, past)

    def _evaluated(self) -> Dealt:
        sampling = self.sampling
        if sampling.by_size:
            sizes = self._bounded(self._everything)
            return deal_batches(
                self._groups, [filled_up(sizes, group.first_place, group.end) for group in self._groups]
            )
        batch_size = sampling.eval_batch_size or sampling.batch_size
        return deal_batches(self._groups, [equal_batches(group, batch_size) for group in self._groups])

    @cached_property
    def _sizes(self) -> Any:
        """int64 [2, num_seeds]: nodes, edges."""
        nodes, edges = self.graphs.sizes
        return np.stack([nodes[self.seeds.ids], edges[self.seeds.ids]])

    def _bounded(self, places: np.ndarray) -> list[tuple[np.ndarray, int]]:
        """Where there is a bound: the size of each seed, and the bound."""
        bounds = self.sampling.max_nodes, self.sampling.max_edges
        most = np.iinfo(np.int64).max // 2
        return [(size[places], min(bound, most)) for size, bound in zip(self._sizes, bounds) if bound is not None]

    def _packing(self, places: np.ndarray, groups: list[Group]) -> Packing:
        whole, num_ranks = len(places) == len(self.seeds), sum(group.num_ranks for group in groups)
        if whole and num_ranks in self._packings:
            return self._packings[num_ranks]
        shares = np.max([size / bound for size, bound in self._bounded(places)], axis=0, initial=0.0)
        packing = Packing.of(shares, groups)
        if whole:
            self._packings[num_ranks] = packing  # the same in each epoch
        return packing

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

    def batches(self, epoch: int, start: int = 0, past: Past = ()) -> Generator[HeteroData, None, None]:
        """This rank's batches of an epoch from step `start` on, in order. No rank waits for another.

        With fewer machines than the run is laid out for, there are `rounds` batches in each step.

        Args:
            past: how the epoch began, where that was with other numbers of machines.

        Raises:
            WorkerError: a worker process failed, or was killed.
        """
        with closing(self._batches(epoch, start, past)) as batches:
            for batch in batches:
                if "cache_asked" in batch:
                    self.cache_asked += batch.cache_asked
                    del batch.cache_asked
                yield batch

    def _batches(self, epoch: int, start: int, past: Past) -> Generator[HeteroData, None, None]:
        dealt = self._dealt(epoch, past) if self.training else self._evaluated()
        steps = Steps.of(dealt, self._turns(), self.world.rank, self.seeds.ids, epoch, self.wants)
        start *= self.rounds
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
