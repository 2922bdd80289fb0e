"""Control messages between ranks: everyone gets everything, and a failure anywhere is said everywhere."""

from __future__ import annotations

import os
import threading
from contextlib import closing

import numpy as np
import pytest
import torch

from disttrain.config import ExperimentError
from disttrain.world import World
from tests.ranks import RankFailed, run_ranks


def _borrow(world: World):
    """As a loader does that is left early."""
    with world.exchange_groups(2) as groups:
        yield groups


def _talk(world: World):
    assert world.gather(world.rank, "g") == list(range(world.size))
    assert world.broadcast(world.rank, "b", source=world.size - 1) == world.size - 1
    assert world.sum(torch.tensor([world.rank, 1])).tolist() == [sum(range(world.size)), world.size]
    assert world.together(lambda: world.rank * 2, "t") == world.rank * 2
    led = world.lead(lambda: ("rank", world.rank), "l")
    mine = world.lead(lambda: world.rank, "m", per_machine=True)
    # Larger than what torch's store takes at once: a list of a million ids, say.
    numbers = world.lead(lambda: np.arange(world.rank, 1_100_000 + world.rank), "n", per_machine=True)
    assert numbers.nbytes > 8 << 20 and numbers[0] == mine and numbers[-1] == 1_099_999 + mine
    with world.exchange_groups(2) as groups, world.exchange_groups(1) as other:
        assert not set(groups) & set(other)
    with world.exchange_groups(2) as again:
        assert set(again) <= {*groups, *other}
    with closing(_borrow(world)) as borrowing:
        assert set(next(borrowing)) <= {*groups, *other}
    with world.exchange_groups(2) as again:
        assert set(again) <= {*groups, *other}
    world.barrier("end")
    return led, mine, len(groups)


@pytest.mark.parametrize(("size", "machines"), [(1, 1), (2, 2), (4, 2)])
def test_everyone_hears_everything(size, machines):
    local = size // machines
    for rank, (led, mine, groups) in enumerate(run_ranks(_talk, size, machines=machines)):
        assert led == ("rank", 0)
        assert mine == rank // local * local
        assert groups == (2 if machines > 1 else 0)


def test_without_torchrun_a_world_of_one():
    with World.start(device="cpu", timeout=10) as world:
        assert (world.rank, world.size, world.num_machines) == (0, 1, 1)
        assert world.gather("x", "g") == ["x"]
        assert world.lead(lambda: 3, "l") == 3
        with world.exchange_groups(3) as groups:
            assert groups == []


def test_threads_are_the_cores_that_the_process_may_use(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 2, 5})
    before = torch.get_num_threads()
    with World.start(device="cpu", timeout=10):
        assert torch.get_num_threads() == 3
    torch.set_num_threads(before)


def _refuse_on_one(world: World):
    def check():
        if world.rank == 1:
            raise ExperimentError("no such file: here.csv")

    try:
        world.together(check, "checking")
    except ExperimentError as error:
        return str(error)


def test_one_rank_refuses_and_all_say_who():
    texts = run_ranks(_refuse_on_one, 2)
    assert texts[0] == texts[1]
    assert texts[0].startswith("rank 1 on ") and "no such file: here.csv" in texts[0]


def _refuse_on_all(world: World):
    def check():
        raise ExperimentError("bad")

    with pytest.raises(ExperimentError, match="^bad$"):
        world.together(check, "checking")
    with pytest.raises(ExperimentError, match="^bad$"):
        world.lead(check, "leading")
    return True


def test_the_same_refusal_is_said_once():
    assert run_ranks(_refuse_on_all, 2) == [True, True]


def _lead_is_silent(world: World):
    # Rank 0 never comes: the wait of rank 1 is bound, and its message names rank 0.
    if world.rank == 0:
        threading.Event().wait(6)
        raise ExperimentError("rank 0 ends")
    world.lead(lambda: None, "partitioning")


def test_a_silent_lead_is_named():
    with pytest.raises(RankFailed) as failure:
        run_ranks(_lead_is_silent, 2, timeout=2)
    assert failure.value.rank == 1
    assert "waited for rank 0 in partitioning" in failure.value.text


def _never_joins(world: World):
    if world.rank == 1:
        threading.Event().wait(12)
        raise ExperimentError("rank 1 ends")
    world.gather(0, "comparing")


def test_a_missing_rank_is_named():
    with pytest.raises(RankFailed) as failure:
        run_ranks(_never_joins, 2, timeout=4)
    assert failure.value.rank == 0
    assert "waited for rank 1 in comparing" in failure.value.text
