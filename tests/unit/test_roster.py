"""Every share of a step is done once, by whatever machines are there."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from disttrain.collection.group import all_together
from disttrain.collection.order import deal_epoch
from disttrain.roster import Roster
from disttrain.sampling.rounds import Rounds
from disttrain.sampling.seeds import Past, Seeds, Shares, divide_rest, share_epoch


@pytest.mark.parametrize(("machines", "local"), list(product(range(1, 9), (1, 3))))
def test_each_share_is_done_once_in_as_few_rounds_as_can_be(machines: int, local: int) -> None:
    for present in range(1, machines + 1):
        roster = Roster(machines, local, present)
        ranks = range(present * local)
        assert sorted(share for rank in ranks for share in roster.shares(rank)) == list(range(machines * local))
        assert roster.rounds == -(-machines // present) == max(len(roster.shares(rank)) for rank in ranks)
        in_rounds = [roster.in_round(number) for number in range(roster.rounds)]
        assert [[turn[rank] for turn in in_rounds if turn[rank] is not None] for rank in ranks] == [
            list(roster.shares(rank)) for rank in ranks
        ]
        assert all(roster.shares(rank) for rank in ranks)
    assert [Roster(machines, local, machines).shares(rank) for rank in range(machines * local)] == [
        (rank,) for rank in range(machines * local)
    ]


def split(num_seeds: int) -> Seeds:
    rng = np.random.default_rng(num_seeds)
    return Seeds(rng.permutation(num_seeds), np.sort(rng.permutation(3 * num_seeds)[:num_seeds]))


def divided(num_seeds: int, machines: int, past: Past = (), locality: bool = False, local: int = 2) -> Shares:
    """The node with the number v of n belongs to machine floor(vM/n) of M; none to the last one."""
    seeds = split(num_seeds)

    def divide(places: np.ndarray, count: int) -> Shares:
        owners = np.minimum(seeds.ids * count // max(num_seeds, 1), max(count - 2, 0))
        return share_epoch(
            seeds, owners, num_machines=count, ranks_per_machine=local, batch_size=5, shuffle=True, locality=locality,
            run_seed=3, epoch=1, places=places,
        )  # fmt: skip

    return divide_rest(num_seeds, divide, machines, past)


@pytest.mark.parametrize("present", [1, 2, 3])
@pytest.mark.parametrize("locality", [True, False])
def test_rounds_have_the_shares_of_the_whole_world(present: int, locality: bool) -> None:
    whole, roster = divided(100, 3, locality=locality), Roster(3, 2, present)
    rounds = Rounds(whole, roster)
    assert len(rounds) == len(whole) * roster.rounds
    found: dict[tuple[int, int], list[int]] = {}
    for at in range(len(rounds)):
        total = 0
        for rank in range(present * 2):
            share, places = rounds.share(at, rank), rounds.of(at, rank)
            total += len(places)
            if share < 0:
                assert not len(places)
                continue
            assert (rounds.step(at), share) not in found
            found[rounds.step(at), share] = places.tolist()
        assert rounds.num_seeds(at) == total
        assert rounds.closes_step(at) == (at % roster.rounds == roster.rounds - 1)
    assert found == {(step, share): whole.of(step, share).tolist() for step in range(len(whole)) for share in range(6)}


PASTS: list[Past] = [(), ((2, 2),), ((3, 1), (1, 3)), ((1, 4), (3, 1), (1, 1)), ((2, 0), (1, 2))]


@pytest.mark.parametrize("past", PASTS)
@pytest.mark.parametrize("locality", [True, False])
@pytest.mark.parametrize("machines", [1, 2, 3])
def test_an_epoch_has_each_seed_once_whatever_machines_come_and_go(past: Past, machines: int, locality: bool) -> None:
    taken, done = [], 0
    for at, (machines_then, steps) in enumerate(past):
        then = divided(101, machines_then, past[:at], locality)
        assert then.first == done
        for step in range(done, done + steps):
            taken += [then.of(step, rank) for rank in range(machines_then * 2)]
        done += steps
    rest = divided(101, machines, past, locality)
    for step in range(done, len(rest)):
        shares = [rest.of(step, rank) for rank in range(machines * 2)]
        assert max(map(len, shares)) <= 5
        assert rest.num_seeds(step) == sum(map(len, shares)) > 0
        taken += shares
    assert sorted(np.concatenate(taken).tolist()) == list(range(101))


@pytest.mark.parametrize("past", PASTS)
@pytest.mark.parametrize("drop_last", [True, False])
def test_so_has_an_epoch_of_a_collection(past: Past, drop_last: bool) -> None:
    def deal(places: np.ndarray, machines: int):
        dealt = deal_epoch(
            all_together(len(places), machines), batch_size=5, drop_last=drop_last, shuffle=True, run_seed=3, epoch=1
        )
        return dealt.__class__(places[dealt.places], dealt.ends, dealt.num_ranks)

    taken, done = [], 0
    for at, (machines, steps) in enumerate((*past, (2, -1))):
        dealt = divide_rest(101, deal, machines, past[:at])
        end = done + steps if steps >= 0 else len(dealt)
        for step in range(done, end):
            taken += [dealt.of(step, rank) for rank in range(machines)]
            assert dealt.num_seeds(step) == sum(len(dealt.of(step, rank)) for rank in range(machines))
        done = end
    found = np.concatenate(taken).tolist()
    assert len(found) == len(set(found))
    left_out = 101 - len(found)
    assert 0 <= left_out < 10 if drop_last else left_out == 0


def test_what_was_done_is_a_function_of_the_past_alone() -> None:
    first, again = divided(100, 2, ((3, 1),), True), divided(100, 2, ((3, 1),), True)
    for step in range(1, len(first)):
        for rank in range(4):
            assert np.array_equal(first.of(step, rank), again.of(step, rank))
