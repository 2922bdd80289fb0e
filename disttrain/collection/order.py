"""Which graphs each rank takes in each step: pure functions of the split, the settings, the ranks and the epoch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch.utils.data import DistributedSampler

from .group import Group
from .packing import Packing, even_ranks


@dataclass(frozen=True)
class Dealt:
    """An epoch or an evaluation, divided up: places in the split of each step and rank."""

    places: np.ndarray
    """int64: step after step, and in each rank after rank."""
    ends: np.ndarray
    """int64 [num_steps * num_ranks + 1]: where each of these parts begins, and where the last one ends."""
    num_ranks: int
    first: int = 0
    """The step that these begin with; those before it were divided up otherwise."""

    @staticmethod
    def of_keys(places: np.ndarray, steps: np.ndarray, ranks: np.ndarray, num_steps: int, num_ranks: int) -> Dealt:
        """Args:
        places, steps, ranks: int64 [n]: what to divide, in its order, and whose it is.
        """
        keys = steps * num_ranks + ranks
        ends = np.zeros(num_steps * num_ranks + 1, np.int64)
        np.cumsum(np.bincount(keys, minlength=num_steps * num_ranks), out=ends[1:])
        return Dealt(places[np.argsort(keys, kind="stable")], ends, num_ranks)

    def __len__(self) -> int:
        """Steps, the same on all ranks."""
        return self.first + (len(self.ends) - 1) // self.num_ranks

    def of(self, step: int, rank: int) -> np.ndarray:
        at = (step - self.first) * self.num_ranks + rank
        return self.places[self.ends[at] : self.ends[at + 1]]

    def num_seeds(self, step: int) -> int:
        """Over all ranks."""
        step -= self.first
        return int(self.ends[(step + 1) * self.num_ranks] - self.ends[step * self.num_ranks])

    def taken(self, num_steps: int) -> np.ndarray:
        """The places of the first so many steps."""
        return self.places[: self.ends[num_steps * self.num_ranks]]


def shuffled_places(count: int, run_seed: int, epoch: int, shuffle: bool) -> np.ndarray:
    """0 to count - 1 in the order in which torch's `DistributedSampler` deals them out in this epoch: its rank r of W
    has every W-th of them from the r-th on, and then what it repeats to fill up, which is not in here."""
    sampler: DistributedSampler[int] = DistributedSampler(
        range(count),  # pyright: ignore[reportArgumentType]  # of which it wants the length
        num_replicas=1, rank=0, shuffle=shuffle, seed=run_seed,
    )  # fmt: skip
    sampler.set_epoch(epoch)
    return np.fromiter(sampler, np.int64, count)


def deal_epoch(
    groups: list[Group],
    *,
    batch_size: int,
    drop_last: bool,
    shuffle: bool,
    run_seed: int,
    epoch: int,
    sizes: np.ndarray | None = None,
    packing: Packing | None = None,
) -> Dealt:
    """Divide a split among steps and ranks for training: each place once, equal step counts. Groups have equally many
    ranks.

    A group's step s takes the next `batch_size` places for each of its ranks of an order that seed and epoch decide,
    dealt out one by one, so that what the ranks have together does not depend on how many they are. Groups with fewer
    places than others take proportionally fewer in each step.

    Args:
        drop_last: without the last step where it is not full.
        sizes: of each place; the graphs of a step are divided so that ranks have about as much each. None: as dealt.
        packing: divides by size instead of number, and settles the number of steps.
    """
    num_ranks = sum(group.num_ranks for group in groups)
    if packing is not None:
        num_steps = packing.num_steps
    else:
        num_steps = steps_of_epoch(groups, batch_size, drop_last)
    parts = []
    for number, group in enumerate(groups):
        # Another order in each group, since equally large ones would else be shuffled in the same way.
        order = shuffled_places(group.num_places, (run_seed + number * 0x9E3779B1) % 2**63, epoch, shuffle)
        places = order + group.first_place
        if packing is not None:
            steps, ranks = packing.divide(places, group.num_ranks, run_seed + epoch)
        else:
            ends = _ends(group, groups, batch_size, num_steps)
            places = places[: ends[-1]]
            at = np.arange(len(places))
            steps = np.searchsorted(ends, at, side="right") - 1
            ranks = (at - ends[steps]) % group.num_ranks
            if sizes is not None:
                ranks = even_ranks(sizes[places], steps, num_steps, group.num_ranks)
        parts.append((places, steps, ranks + group.first_rank))
    places, steps, ranks = (np.concatenate(arrays) for arrays in zip(*parts))
    return Dealt.of_keys(places, steps, ranks, num_steps, num_ranks)


def steps_of_epoch(groups: list[Group], batch_size: int, drop_last: bool) -> int:
    """Where steps go by the number of graphs: until the group with most places is through."""
    full, rest = divmod(max(group.num_places for group in groups), groups[0].num_ranks * batch_size)
    return full if drop_last else full + bool(rest)


def _ends(group: Group, groups: list[Group], batch_size: int, num_steps: int) -> np.ndarray:
    """int64 [num_steps + 1]: where each step of a group begins in its order, and where the last one ends."""
    most = max(other.num_places for other in groups)
    # Larger ones than the split are of any size, also beyond 64 bits.
    ends = np.minimum(np.arange(num_steps + 1) * min(group.num_ranks * batch_size, max(most, 1)), most)
    return ends * group.num_places // max(most, 1)


def deal_batches(groups: list[Group], batches: list[np.ndarray]) -> Dealt:
    """Divide a split for evaluation: batches of consecutive places, dealt out to the ranks of their group; the last
    ranks may get empty ones. What a batch holds does not depend on the ranks, so scores are those of one rank, to the
    last bit.

    Args:
        batches: of each group, where its batches begin in the split, and where the last one ends.
    """
    num_ranks = sum(group.num_ranks for group in groups)
    counts = [len(ends) - 1 for ends in batches]
    num_steps = max(-(-count // group.num_ranks) for count, group in zip(counts, groups))
    parts = []
    for group, ends in zip(groups, batches):
        places = np.arange(ends[0], ends[-1])
        batch = np.searchsorted(ends, places, side="right") - 1
        parts.append((places, batch // group.num_ranks, batch % group.num_ranks + group.first_rank))
    places, steps, ranks = (np.concatenate(arrays) for arrays in zip(*parts))
    return Dealt.of_keys(places, steps, ranks, num_steps, num_ranks)


def equal_batches(group: Group, batch_size: int) -> np.ndarray:
    """int64: where batches of so many places begin, and where the last one ends."""
    batch_size = min(batch_size, max(group.num_places, 1))
    num_batches = -(-group.num_places // batch_size)
    return group.first_place + np.minimum(np.arange(num_batches + 1) * batch_size, group.num_places)
