"""Which seeds each rank takes in each step: pure functions of the split, the world's shape and the epoch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import numpy as np

from ..config import ExperimentError
from ..config.counted import counted
from ..graph.graph import Graph
from ..world import World
from .kernels import shuffle_keys, stream_key
from .temporal import NEVER, time_keys

_SHUFFLE = 0x5EED
"""Keeps the shuffle's stream apart from those of the draws."""


@dataclass(frozen=True)
class Seeds:
    """All seeds of a split, over all ranks, in the order of their original ids."""

    ids: np.ndarray
    """int64 [num_seeds], partition order"""
    original: np.ndarray
    """int64 [num_seeds], ascending"""
    times: np.ndarray | None = None
    """[num_seeds], where times matter"""

    def __len__(self) -> int:
        return len(self.ids)


def split_seeds(world: World, graph: Graph, node_type: str, mask: str, time: str | None = None) -> Seeds:
    """The nodes of a type whose boolean attribute `mask` is set, with their times; see `gather_seeds`."""

    def chosen(low: int, high: int) -> np.ndarray:
        return np.flatnonzero(graph.node_attribute(node_type, mask)[low:high])

    return gather_seeds(world, graph, node_type, chosen, f"gathering the seeds of {mask}", time)


def gather_seeds(
    world: World,
    graph: Any,
    node_type: str,
    chosen: Callable[[int, int], np.ndarray],
    what: str,
    time: str | None = None,
) -> Seeds:
    """Nodes of a type: each machine chooses among its own, then all are gathered. Every rank calls it.

    Args:
        graph: partitioned, or a collection, whose graphs are a type of nodes.
        chosen: (low, high), the machine's own range, -> int [num_chosen], which of it, counted from `low`.
        time: the attribute that holds their times, where these matter.

    Raises:
        ExperimentError: a seed has no time.

    Cost: that of choosing, and 16 bytes (24 with times) a seed to every rank.
    """
    low, high = graph.node_books[node_type].range_of(graph.machine)
    mine = None
    if world.leads_machine:
        ids = low + chosen(low, high)
        mine = [ids, np.asarray(graph.original_ids(node_type)[ids], dtype=np.int64)]
        if time is not None:
            mine.append(graph.node_attribute(node_type, time)[ids].reshape(-1))
    parts = [part for part in world.gather(mine, what) if part is not None]
    ids, original, *times = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    order = np.argsort(original)
    seeds = Seeds(ids[order], original[order], times[0][order] if times else None)
    if seeds.times is not None:
        missing = np.flatnonzero(time_keys(seeds.times) == NEVER)
        if len(missing):
            raise ExperimentError(
                f"sampling.time_attr: {len(missing)} of {counted(len(seeds), 'seed')} without `{time}` ({what}), the "
                f"first is node {seeds.original[missing[0]]} of type `{node_type}`; without it nothing is known "
                "to be before them. Leave them out of the split, or fill in their times"
            )
    return seeds


@dataclass(frozen=True)
class Shares:
    """One epoch, divided up: places in the split (see `Seeds`) of each rank and step."""

    steps: tuple[tuple[np.ndarray, ...], ...]
    """[num_steps][num_ranks] arrays of places; some may be empty."""
    first: int = 0
    """The step that these begin with; those before it were divided up otherwise."""

    def __len__(self) -> int:
        return self.first + len(self.steps)

    def of(self, step: int, rank: int) -> np.ndarray:
        return self.steps[step - self.first][rank]

    def num_seeds(self, step: int) -> int:
        """Over all ranks."""
        return sum(len(share) for share in self.steps[step - self.first])

    def taken(self, num_steps: int) -> np.ndarray:
        """The places of the first so many steps."""
        parts = [share for step in self.steps[:num_steps] for share in step]
        return np.concatenate([np.empty(0, np.int64), *parts])


Past = tuple[tuple[int, int], ...]
"""Of an epoch that has begun with other numbers of machines: (machines, steps done with these), in their order."""


class Divided(Protocol):
    """`Shares`, and what a collection has in their stead: a dataclass with `first`, the step that it begins with."""

    def taken(self, num_steps: int) -> np.ndarray: ...


AnyShares = TypeVar("AnyShares", bound=Divided)


def divide_rest(
    num_seeds: int, divide: Callable[[np.ndarray, int], AnyShares], num_machines: int, past: Past = ()
) -> AnyShares:
    """Divide up what an epoch has left, so that each seed comes once in it, whatever the machines.

    Args:
        divide: (places, machines) -> those places of the split, divided up among so many machines.
        num_machines: that are there now.
    """
    left, done = np.arange(num_seeds), 0
    for machines, steps in past:
        left = np.setdiff1d(left, divide(left, machines).taken(steps), assume_unique=True)
        done += steps
    return replace(divide(left, num_machines), first=done)  # pyright: ignore[reportArgumentType]


def share_epoch(
    seeds: Seeds,
    owners: np.ndarray,
    *,
    num_machines: int,
    ranks_per_machine: int,
    batch_size: int,
    shuffle: bool,
    locality: bool,
    run_seed: int,
    epoch: int,
    places: np.ndarray | None = None,
) -> Shares:
    """Divide a split among ranks and steps: every seed exactly once, equal shares (to within one), equal step counts.

    With `locality`, each machine takes of its own seeds first, up to its equal share; what is left over on machines
    that own more fills up those that own fewer. Without, step s of W ranks takes the places s*W*batch_size and on of
    the (shuffled) order, so that a global batch depends on neither the cut nor the number of ranks it is divided among.

    Args:
        owners: int [num_seeds], the machine that owns each seed.
        places: int64, ascending: of the split, those that are to be divided; None: all.
    """
    order = np.arange(len(seeds)) if places is None else places
    num_seeds, num_ranks = len(order), num_machines * ranks_per_machine
    if shuffle:
        keys = shuffle_keys(np.uint64(stream_key(run_seed, epoch, _SHUFFLE, 0, 0)), seeds.original[order])
        order = order[np.argsort(keys, kind="stable")]
    if not locality:
        whole = num_ranks * batch_size
        return Shares(
            tuple(tuple(np.array_split(order[at : at + whole], num_ranks)) for at in range(0, num_seeds, whole))
        )

    quota = np.diff(np.arange(num_machines + 1) * num_seeds // num_machines)
    machine_of = owners[order].copy()
    surplus = []
    for machine in range(num_machines):
        surplus.append(np.flatnonzero(machine_of == machine)[quota[machine] :])
    spare = np.sort(np.concatenate(surplus)) if surplus else np.empty(0, np.int64)
    at = 0
    for machine in range(num_machines):
        lacking = max(0, int(quota[machine] - (owners[order] == machine).sum()))
        machine_of[spare[at : at + lacking]] = machine
        at += lacking
    shares = [
        order[machine_of == machine][local::ranks_per_machine]
        for machine in range(num_machines)
        for local in range(ranks_per_machine)
    ]
    num_steps = -(-max((len(share) for share in shares), default=0) // batch_size)
    return Shares(
        tuple(tuple(share[s * batch_size : (s + 1) * batch_size] for share in shares) for s in range(num_steps))
    )


def share_batches(num_seeds: int, num_ranks: int, batch_size: int) -> Shares:
    """Divide a split into batches of consecutive seeds, and these among ranks; the last ones may get empty batches.

    What a batch holds depends on neither the ranks nor the cut, and what is computed for a seed depends on the batch
    that it is in: a node that is a seed and another seed's neighbour is drawn for as a seed. So scores are those of one
    rank, to the last bit.
    """
    batches = [np.arange(at, min(at + batch_size, num_seeds)) for at in range(0, num_seeds, batch_size)]
    batches += [np.empty(0, np.int64)] * (-len(batches) % num_ranks)
    return Shares(tuple(tuple(batches[at : at + num_ranks]) for at in range(0, len(batches), num_ranks)))
