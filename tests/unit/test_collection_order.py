"""Which graphs each rank takes in each step: those of torch's `DistributedSampler`, without what it repeats."""

from __future__ import annotations

from itertools import chain, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DistributedSampler

from disttrain.collection.group import Group, all_together, by_machine
from disttrain.collection.order import Dealt, deal_batches, deal_epoch, equal_batches, steps_of_epoch
from disttrain.collection.packing import Packing, filled_up

OPTIONS = {"batch_size": 4, "drop_last": False, "shuffle": True, "run_seed": 11, "epoch": 3}


def deal(count: int, ranks: int, **options: object) -> Dealt:
    return deal_epoch(all_together(count, ranks), **{**OPTIONS, **options})  # pyright: ignore[reportArgumentType]


def flat(lists: Any) -> list[int]:
    return list(chain.from_iterable(lists))


def shares(dealt: Dealt) -> list[list[list[int]]]:
    return [[dealt.of(step, rank).tolist() for rank in range(dealt.num_ranks)] for step in range(len(dealt))]


def unions(dealt: Dealt) -> list[list[int]]:
    return [sorted(flat(step)) for step in shares(dealt)]


@given(st.integers(1, 60), st.integers(1, 5), st.integers(1, 7), st.booleans(), st.booleans())
def test_it_is_the_order_of_torch(count: int, ranks: int, batch_size: int, shuffle: bool, drop_last: bool) -> None:
    dealt = deal(count, ranks, batch_size=batch_size, shuffle=shuffle, drop_last=drop_last)
    for rank in range(ranks):
        sampler = DistributedSampler(
            range(count),  # pyright: ignore[reportArgumentType]
            num_replicas=ranks, rank=rank, shuffle=shuffle, seed=11, drop_last=drop_last,
        )  # fmt: skip
        sampler.set_epoch(3)
        theirs = list(BatchSampler(sampler, batch_size, drop_last=drop_last))
        assert len(theirs) == len(dealt)
        ours = [dealt.of(step, rank).tolist() for step in range(len(dealt))]
        if drop_last:
            assert ours == theirs
        else:  # but for what it repeats, at the very end, so that all have equally many
            repeated = sum(map(len, theirs)) - sum(map(len, ours))
            assert repeated == (rank >= count % ranks > 0) and flat(theirs)[: -1 if repeated else None] == flat(ours)
    everything = [flat(step) for step in shares(dealt)]
    assert [len(step) for step in everything] == [dealt.num_seeds(step) for step in range(len(dealt))]
    assert len(flat(everything)) == len(set(flat(everything)))
    if not drop_last:
        assert len(flat(everything)) == count


@given(st.integers(0, 60), st.booleans(), st.booleans())
def test_what_a_step_has_does_not_depend_on_the_ranks(count: int, drop_last: bool, balanced: bool) -> None:
    sizes = np.random.default_rng(count).integers(1, 50, count) if balanced else None
    one, two, four = (
        unions(deal(count, ranks, batch_size=12 // ranks, drop_last=drop_last, sizes=sizes)) for ranks in (1, 2, 4)
    )
    assert one == two == four


def test_epochs_are_shuffled_and_repeat_themselves() -> None:
    assert unions(deal(30, 2)) == unions(deal(30, 2)) != unions(deal(30, 2, epoch=4))


SHARDS = {
    "one machine": [30],
    "equal": [12, 12, 12],
    "uneven": [13, 12, 2],
    "one has none": [7, 0, 5],
    "fewer than ranks": [1, 0, 0],
    "none": [0, 0],
}


@pytest.mark.parametrize("counts", SHARDS.values(), ids=list(SHARDS))
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("local", [1, 2])
def test_each_machine_shuffles_its_own(counts: list[int], drop_last: bool, local: int) -> None:
    bounds = np.concatenate([[0], np.cumsum(counts)])
    ids = np.arange(sum(counts)) * 3 + 1  # a split: every third graph
    groups = by_machine(ids, bounds * 3, local)
    assert [group.num_places for group in groups] == counts
    dealt = deal_epoch(groups, **{**OPTIONS, "drop_last": drop_last})  # pyright: ignore[reportArgumentType]
    most = -(-max(counts) // (4 * local)) if not drop_last else max(counts) // (4 * local)
    assert len(dealt) == most == steps_of_epoch(groups, 4, drop_last)
    found: list[int] = []
    for machine, (low, high) in enumerate(pairwise(bounds)):
        mine = [dealt.of(s, machine * local + r) for s in range(len(dealt)) for r in range(local)]
        assert all(((part >= low) & (part < high)).all() and len(part) <= 4 for part in mine)
        found += np.concatenate([np.empty(0, np.int64), *mine]).tolist()
        for step in range(len(dealt)):  # as many in each step, in proportion, so that none runs out before the others
            has = sum(len(dealt.of(step, machine * local + r)) for r in range(local))
            wanted = dealt_on_the_fullest(counts, local, step) * counts[machine] / max(max(counts), 1)
            assert abs(has - wanted) < 1
    assert len(found) == len(set(found)) and (drop_last or sorted(found) == list(range(sum(counts))))
    if len(counts) == 1:
        assert shares(dealt) == shares(deal(counts[0], local, drop_last=drop_last))


def dealt_on_the_fullest(counts: list[int], local: int, step: int) -> int:
    return min(4 * local, max(counts) - step * 4 * local)


def test_machines_with_equally_many_do_not_shuffle_alike() -> None:
    dealt = deal_epoch(by_machine(np.arange(40), np.array([0, 20, 40]), 1), **OPTIONS)  # pyright: ignore[reportArgumentType]
    assert dealt.of(0, 0).tolist() != (dealt.of(0, 1) - 20).tolist()


def spread(dealt: Dealt, sizes: np.ndarray) -> np.ndarray:
    """Of each step: the most that a rank has, over the mean of the ranks."""
    loads = np.array(
        [[sizes[dealt.of(step, rank)].sum() for rank in range(dealt.num_ranks)] for step in range(len(dealt))]
    )
    return loads.max(axis=1) / loads.mean(axis=1)


@pytest.mark.parametrize("ranks", [2, 4])
def test_balanced_ranks_have_about_as_much(ranks: int) -> None:
    sizes = np.random.default_rng(0).lognormal(3.5, 0.8, 2000).astype(np.int64) + 1
    as_dealt, balanced = (deal(2000, ranks, batch_size=16, sizes=given) for given in (None, sizes))
    assert unions(as_dealt) == unions(balanced)
    assert spread(as_dealt, sizes).mean() > 1.1
    # In the last step, of a few graphs, one may be larger than the others together.
    assert spread(balanced, sizes).mean() < 1.01 and spread(balanced, sizes)[:-1].max() < 1.1


def packed(sizes: np.ndarray, most: float, ranks: int, epoch: int = 0, groups: list[Group] | None = None) -> Dealt:
    groups = groups or all_together(len(sizes), ranks)
    packing = Packing.of(sizes / most, groups)
    options = {**OPTIONS, "epoch": epoch, "packing": packing}
    return deal_epoch(groups, **options)  # pyright: ignore[reportArgumentType]


@settings(max_examples=60)
@given(st.lists(st.integers(1, 100), max_size=120), st.integers(1, 4), st.integers(100, 600))
def test_no_rank_has_more_than_it_may(drawn: list[int], ranks: int, most: int) -> None:
    sizes = np.array(drawn, np.int64)
    dealt = [packed(sizes, most, ranks, epoch) for epoch in (0, 1)]
    assert len(dealt[0]) == len(dealt[1])
    for each in dealt:
        assert sorted(flat(unions(each))) == list(range(len(sizes)))
        for step in range(len(each)):
            assert all(sizes[each.of(step, rank)].sum() <= most for rank in range(ranks))


def test_packed_steps_are_full_and_do_not_depend_on_the_ranks() -> None:
    sizes = np.random.default_rng(0).integers(5, 40, 3000)
    one, two = packed(sizes, 4000, 1), packed(sizes, 2000, 2)
    assert unions(one) == unions(two)
    assert spread(two, sizes).max() < 1.02
    loads = np.array([sizes[step].sum() for step in unions(two)])
    assert loads.min() > 0.98 * loads.max() and loads.mean() > 0.88 * 4000
    assert unions(packed(sizes, 2000, 2, epoch=1)) != unions(two)


def test_large_graphs_and_machines_of_their_own() -> None:
    generator = np.random.default_rng(0)
    sizes = np.where(generator.random(400) < 0.1, generator.integers(60, 101, 400), generator.integers(1, 10, 400))
    groups = by_machine(np.arange(400), np.array([0, 150, 400]), 2)
    dealt = packed(sizes, 100, 4, groups=groups)
    assert sorted(flat(unions(dealt))) == list(range(400))
    for step in range(len(dealt)):
        for rank in range(4):
            places = dealt.of(step, rank)
            assert sizes[places].sum() <= 100 and ((places < 150) == (rank < 2)).all()
    firsts = [[dealt.of(step, 0)[0] for step in range(3)] for dealt in (dealt, packed(sizes, 100, 4, 1, groups))]
    assert firsts[0] != firsts[1]


@pytest.mark.parametrize(("count", "ranks"), [(10, 1), (10, 3), (2, 3), (0, 2), (12, 4)])
def test_evaluation_has_each_place_once_in_batches_that_are_those_of_one_rank(count: int, ranks: int) -> None:
    groups = all_together(count, ranks)
    dealt = deal_batches(groups, [equal_batches(groups[0], 4)])
    batches = [part for step in shares(dealt) for part in step]
    filled = [part for part in batches if part]
    assert filled == [list(range(at, min(at + 4, count))) for at in range(0, count, 4)]
    assert len(batches) - len(filled) < ranks and batches[: len(filled)] == filled


def test_evaluation_by_machine_and_by_size() -> None:
    groups = by_machine(np.arange(11), np.array([0, 3, 3, 11]), 2)
    dealt = deal_batches(groups, [equal_batches(group, 2) for group in groups])
    assert shares(dealt) == [[[0, 1], [2], [], [], [3, 4], [5, 6]], [[], [], [], [], [7, 8], [9, 10]]]
    nodes, edges = np.array([3, 3, 3, 9, 1, 1]), np.array([0, 0, 9, 0, 5, 5])
    ends = filled_up([(nodes, 9), (edges, 9)], 0, 6)
    assert ends.tolist() == [0, 3, 4, 5, 6]
    assert filled_up([(nodes, 9)], 2, 2).tolist() == [2]
