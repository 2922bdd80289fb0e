"""Every seed exactly once, equal shares, equal step counts, and independence from the cut where it is promised."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from disttrain.config import ExperimentError, Share
from disttrain.sampling.fanout import Rule, fanout_rules, fanout_table
from disttrain.sampling.seeds import Seeds, Shares, share_epoch


def _share(num_seeds: int, machines: int, local: int, **changes) -> tuple[Seeds, np.ndarray, Shares]:
    rng = np.random.default_rng(num_seeds)
    seeds = Seeds(rng.permutation(num_seeds), np.sort(rng.permutation(3 * num_seeds)[:num_seeds]))
    owners = rng.choice(machines, num_seeds, p=np.arange(1, machines + 1) / np.arange(1, machines + 1).sum())
    options: dict[str, Any] = dict(batch_size=8, shuffle=True, locality=True, run_seed=3, epoch=1) | changes
    return seeds, owners, share_epoch(seeds, owners, num_machines=machines, ranks_per_machine=local, **options)


@pytest.mark.parametrize("locality", [True, False])
@pytest.mark.parametrize(
    ("num_seeds", "machines", "local"), [(0, 1, 1), (1, 3, 1), (5, 2, 4), (100, 3, 1), (1000, 2, 2)]
)
def test_every_seed_once_and_equal_shares(num_seeds, machines, local, locality):
    _, _, shares = _share(num_seeds, machines, local, locality=locality)
    everything = [share for step in shares.steps for share in step]
    assert sorted(np.concatenate([np.empty(0, int), *everything]).tolist()) == list(range(num_seeds))
    assert all(len(step) == machines * local for step in shares.steps)
    assert all(len(share) <= 8 for share in everything)
    per_rank = [sum(len(step[rank]) for step in shares.steps) for rank in range(machines * local)]
    assert max(per_rank) - min(per_rank) <= (2 if locality else 1)
    assert all(shares.num_seeds(step) > 0 for step in range(len(shares)))


def test_own_seeds_come_first():
    _, owners, shares = _share(1000, 2, 1)
    for machine in range(2):
        mine = np.concatenate([step[machine] for step in shares.steps])
        assert len(mine) == 500
        assert (owners[mine] == machine).sum() == min(500, (owners == machine).sum())


def test_epochs_differ_and_repeat():
    first, again, other = (_share(200, 1, 1, epoch=epoch)[2] for epoch in (0, 0, 1))
    assert all((a[0] == b[0]).all() for a, b in zip(first.steps, again.steps, strict=True))
    assert any((a[0] != b[0]).any() for a, b in zip(first.steps, other.steps, strict=True))


def test_without_locality_global_batches_depend_on_neither_cut_nor_ranks():
    def batches(machines, local, batch_size):
        _, _, shares = _share(100, machines, local, locality=False, batch_size=batch_size)
        return [np.concatenate(step).tolist() for step in shares.steps]

    assert batches(1, 1, 24) == batches(2, 1, 12) == batches(3, 1, 8) == batches(2, 2, 6)


def test_evaluation_keeps_the_original_order():
    _, _, shares = _share(20, 1, 1, shuffle=False)
    assert np.concatenate([step[0] for step in shares.steps]).tolist() == list(range(20))


EDGES = [("a", "to", "b"), ("b", "to", "a"), ("a", "likes", "a")]


def test_fanouts_by_relation():
    assert fanout_table([10, 5], EDGES).tolist() == [[10, 10, 10], [5, 5, 5]]
    table = fanout_table({"default": [3, -1], "a, likes, a": [0, 2]}, EDGES)
    assert table.tolist() == [[3, 3, 0], [-1, -1, 2]]


def test_wrong_fanouts_are_refused_all_at_once():
    with pytest.raises(ExperimentError) as refusal:
        fanout_table({"a,tp,b": [3, 2], "a,likes,a": [1]}, EDGES)
    message = str(refusal.value)
    assert 'did you mean "a,to,b"?' in message
    assert "no fanout for a,to,b, b,to,a" in message
    assert "one fanout per hop" in message


def test_rules_of_shares():
    share = Share(ratio=0.1, min=2, max=4)
    rules = fanout_rules({"default": [3, -1], "a,likes,a": [share, 0]}, EDGES)
    assert [rule.most for rule in rules[0]].count(4) == 1
    (rule,) = [rule for rule in rules[0] if rule.ratio]
    degrees = np.array([0, 1, 2, 3, 20, 21, 30, 31, 1000])
    assert rule.counts(degrees).tolist() == [0, 1, 2, 2, 2, 3, 3, 4, 4]
    assert Rule(-1, 0.3, 1).counts(degrees).tolist() == [0, 1, 1, 1, 6, 7, 9, 10, 300]
    assert Rule(3).counts(degrees).tolist() == [0, 1, 2, 3, 3, 3, 3, 3, 3]
    assert Rule(-1).counts(degrees).tolist() == degrees.tolist()
