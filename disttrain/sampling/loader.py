"""Mini-batches, made ahead by worker threads: seeds -> neighbours -> features -> HeteroData."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch_geometric.data import HeteroData

from ..config import ExperimentError, Sampling
from ..graph.graph import Graph
from ..graph.schema import Wants
from ..roster import Roster
from ..world import World
from .columns import Columns, by_store
from .drawable import lay_out
from .features import FeatureFetcher
from .kind import kind_conflicts, kind_of
from .line import Line
from .neighbors import NeighborSampler
from .one_hop import one_hop_of
from .rounds import Rounds
from .route import Route
from .seeds import Past, Seeds, Shares, divide_rest, share_batches, share_epoch
from .subgraph import Subgraph
from .temporal import comparable, time_keys

_EVALUATION = 0x7E57
"""Stands for the epoch in the draws of evaluation, which are the same in each of them."""


@dataclass
class Traffic:
    """What a loader's workers have exchanged with other machines, over all epochs."""

    batches: int = 0
    exchanges: int = 0
    bytes_sent: int = 0
    asked: np.ndarray = field(default_factory=lambda: np.zeros((2, 0), np.int64))
    """[2, tables]: remote rows that batches needed: those that the cache had, and those that came from others."""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, exchanges: int, bytes_sent: int, asked: np.ndarray) -> None:
        with self._lock:
            self.batches += 1
            self.exchanges += exchanges
            self.bytes_sent += bytes_sent
            self.asked = asked + (self.asked if self.asked.shape == asked.shape else 0)


class _Worker:
    """What one thread needs to make batches: a sampler, a fetcher, and a line to the other machines."""

    def __init__(self, loader: NodeLoader) -> None:
        sampling = loader.sampling
        self.loader = loader
        self.route = Route(loader.world)
        fanout = sampling.fanout if loader.training else (sampling.eval_fanout or sampling.fanout)
        self.sampler = NeighborSampler(
            loader.graph,
            fanout,
            self.route,
            replace=sampling.replace,
            run_seed=loader.run_seed,
            places_of=[edge_type for edge_type, names in loader.wants.edges.items() if names],
            disjoint=sampling.disjoint,
            kind=loader.kind,
            one_hop=one_hop_of(sampling.backend),
        )
        self.fetcher = FeatureFetcher(loader.columns, self.route)

    def draw(self, rounds: Rounds, epoch: int, at: int) -> Subgraph:
        """The neighbourhood of this rank's seeds, without attributes. A collective, as `make`."""
        loader = self.loader
        places, step = rounds.of(at, loader.world.rank), rounds.step(at)
        return self.sampler.sample(
            loader.node_type,
            loader.seeds.ids[places],
            epoch=epoch if loader.training else _EVALUATION,
            step=step if loader.training else 0,
            original=loader.seeds.original[places],
            times=None if loader.time_keys is None else loader.time_keys[places],
        )

    def make(self, rounds: Rounds, epoch: int, at: int) -> HeteroData:
        """One mini-batch of this rank. A collective: each machine's worker of this number makes its own."""
        loader, node_type = self.loader, self.loader.node_type
        exchanges, bytes_sent, asked = self.route.exchanges, self.route.bytes_sent, self.fetcher.asked.copy()
        places = rounds.of(at, loader.world.rank)
        drawn = self.draw(rounds, epoch, at)
        stores = by_store(self.fetcher.fetch(drawn))

        batch = HeteroData()
        for name, ids in drawn.nodes.items():
            store = batch[name]
            for key, tensor in stores.get(name, {}).items():
                store[key] = tensor
            store.num_nodes = len(ids)
            store.num_sampled_nodes = drawn.num_nodes[name]
            if name in drawn.tree:
                store.batch = torch.from_numpy(drawn.tree[name])
        batch[node_type].batch_size = len(places)
        batch[node_type].input_id = torch.from_numpy(places)
        if loader.seeds.times is not None:
            batch[node_type].seed_time = torch.from_numpy(loader.seeds.times[places])
        for edge_type, index in drawn.edge_index.items():
            store = batch[edge_type]
            store.edge_index = torch.from_numpy(index)
            store.e_id = torch.from_numpy(drawn.edge_id[edge_type])
            for key, tensor in stores.get(edge_type, {}).items():
                store[key] = tensor
            store.num_sampled_edges = drawn.num_edges[edge_type]
        batch.epoch, batch.step = epoch, rounds.step(at)
        batch.share, batch.closes_step = rounds.share(at, loader.world.rank), rounds.closes_step(at)
        batch.num_global_seeds = rounds.num_seeds(at)
        batch.world_size = loader.world.size
        loader.traffic.add(
            self.route.exchanges - exchanges, self.route.bytes_sent - bytes_sent, self.fetcher.asked - asked
        )
        return batch


class NodeLoader:
    """Mini-batches of a split of one node type, the same number on every rank.

    Worker w makes the steps w, w + W, w + 2W, ... of each epoch in a thread of its own, up to `sampling.prefetch`
    batches ahead each; they arrive in order. An exception in a worker is raised where the batch would have arrived.

    Args:
        world, graph: all ranks make their loaders in the same order.
        node_type: of the seeds.
        seeds: the split, see `split_seeds`.
        sampling: fanouts, batch sizes, workers.
        run_seed: of shuffles and draws.
        wants: what batches have to carry.
        training: shuffle, with `fanout` and `batch_size`; otherwise original order, with `eval_fanout`,
            `eval_batch_size`, and the same batches and draws each time, whatever the ranks.
        columns: what batches carry, where loaders share it (and with it the cache); otherwise made of `wants`.
        roster: of training: who does which share of a step. None: each rank its own.

    Raises:
        ExperimentError: the fanout does not fit the graph, or it lacks the weights or times to draw by.
    """

    def __init__(
        self,
        world: World,
        graph: Graph,
        node_type: str,
        seeds: Seeds,
        *,
        sampling: Sampling,
        run_seed: int,
        wants: Wants,
        training: bool,
        columns: Columns | None = None,
        roster: Roster | None = None,
    ) -> None:
        self.world, self.graph, self.node_type, self.seeds = world, graph, node_type, seeds
        self.sampling, self.run_seed, self.wants, self.training = sampling, run_seed, wants, training
        if conflicts := kind_conflicts(sampling, graph.schema, node_type):
            raise ExperimentError("\n".join(conflicts))
        self.kind = kind_of(sampling, graph.schema, node_type)
        self.time_keys = None
        if self.kind.time_attr is not None:
            assert seeds.times is not None, "seeds need their times (`split_seeds`) where neighbours have some"
            self.time_keys = time_keys(comparable(seeds.times, self.kind.floating))
        with world.exchange_groups(1) as groups:
            lay_out(graph, Route(world, groups[0] if groups else None), self.kind)
        if sampling.backend == "pyg-lib" and training and world.is_lead:
            warnings.warn(
                "sampling.backend is pyg-lib: its draws depend on the order of the calls, so batches differ from run "
                "to run, and with the partitions and the number of workers",
                stacklevel=2,
            )
        self.columns = columns or Columns.of(graph, wants)
        self.traffic = Traffic()
        self._roster = roster if roster is not None and training else Roster.whole(world)
        self._owners: dict[int, np.ndarray] = {}
        self._workers = [_Worker(self)]
        self.num_steps = len(self._shares(0))
        """Per epoch, without a `past`."""

    @property
    def rounds(self) -> int:
        """Batches that a rank has in each step."""
        return self._roster.rounds

    def steps_of(self, epoch: int, past: Past = ()) -> int:
        """How many steps an epoch has, those of its `past` included."""
        return len(self._shares(epoch, past)) if past else self.num_steps

    def _shares(self, epoch: int, past: Past = ()) -> Shares:
        sampling = self.sampling
        if not self.training:
            return share_batches(len(self.seeds), self.world.size, sampling.eval_batch_size or sampling.batch_size)

        def divide(places: np.ndarray, num_machines: int) -> Shares:
            return share_epoch(
                self.seeds,
                self._owners_among(num_machines),
                num_machines=num_machines,
                ranks_per_machine=self.world.local_size,
                batch_size=sampling.batch_size,
                shuffle=sampling.shuffle,
                locality=sampling.locality,
                run_seed=self.run_seed,
                epoch=epoch,
                places=places,
            )

        return divide_rest(len(self.seeds), divide, self._roster.machines, past)

    def _owners_among(self, num_machines: int) -> np.ndarray:
        """int64 [num_seeds]: which of so many machines owns each seed."""
        if num_machines not in self._owners:
            books = self.graph.seen_by(0, num_machines).node_books
            self._owners[num_machines] = books[self.node_type].owners(self.seeds.ids)
        return self._owners[num_machines]

    def batches(self, epoch: int, start: int = 0, past: Past = ()) -> Generator[HeteroData, None, None]:
        """The batches of one epoch from step `start` on, in order. Every rank iterates, and leaves, at the same step.

        With fewer machines than the run is laid out for, there are `rounds` batches in each step.

        Args:
            past: how the epoch began, where that was with other numbers of machines.

        Leaving early is clean: batches that workers of other machines may be waiting for are still made (at most
        `workers * prefetch`), then the threads end.

        Raises:
            PeerError: another machine failed, or did not answer in time.
        """
        yield from self._steps(epoch, start, _Worker.make, past)

    def draw(self, epoch: int, see: Callable[[Sequence[np.ndarray]], None]) -> int:
        """Draw the batches of one epoch without fetching their attributes. Every rank calls it.

        Args:
            see: is called for each batch, by the worker threads, with the ids whose rows it would need, per table of
                `columns`.

        Returns:
            How many bytes this rank sent.

        Raises:
            PeerError: another machine failed, or did not answer in time.
        """

        def look(worker: _Worker, rounds: Rounds, epoch: int, at: int) -> int:
            before = worker.route.bytes_sent
            see(worker.fetcher.ids_of(worker.draw(rounds, epoch, at)))
            return worker.route.bytes_sent - before

        return sum(self._steps(epoch, 0, look))

    def _steps(
        self, epoch: int, start: int, make: Callable[[_Worker, Rounds, int, int], Any], past: Past = ()
    ) -> Generator[Any, None, None]:
        """What `make` returns for each round of each step, in order."""
        rounds = Rounds(self._shares(epoch, past), self._roster)
        start *= self.rounds
        with self._borrowed_workers() as workers:
            if self.sampling.workers == 0:
                for at in range(start, len(rounds)):
                    yield make(workers[0], rounds, epoch, at)
                return
            line = Line(
                workers, make, rounds, epoch, start, self.sampling.prefetch, self.world.timeout, str(self.world)
            )
            try:
                for at in range(start, len(rounds)):
                    yield line.next(at)
            finally:
                line.close()

    @contextmanager
    def _borrowed_workers(self):
        count = max(1, self.sampling.workers)
        with ExitStack() as stack:
            groups = stack.enter_context(self.world.exchange_groups(count))
            while len(self._workers) < count:
                self._workers.append(_Worker(self))
            for worker, group in zip(self._workers, groups, strict=False):
                worker.route.group = group
            yield self._workers
