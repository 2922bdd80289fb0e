"""What a route brings is what was sent, however sizes change from one exchange to the next; one collective for most."""

from __future__ import annotations

import numpy as np
import pytest
import torch.distributed as dist

from disttrain.sampling.route import Route
from disttrain.world import World
from tests.ranks import run_ranks


def _sizes(seed: int, exchange: int, machines: int) -> np.ndarray:
    """[from, to]: about the same for a while, then ten times as large, one pair beyond that; then small, then none."""
    usual = np.random.default_rng([seed, exchange]).integers(950, 1000, (machines, machines))
    scale = {0: 1, 1: 10, 2: 1, 3: 0}[min(exchange // 5, 3)]
    sizes = usual * scale // (10 if exchange == 14 else 1)
    if exchange == 12:
        sizes[0, 1] *= 3
    np.fill_diagonal(sizes, 0)
    return sizes.astype(np.int64)


def _sent(exchange: int, sender: int, receiver: int, size: int, dtype: str) -> np.ndarray:
    return (np.arange(size) * 7 + 31 * exchange + 5 * sender + receiver).astype(dtype)


def _exchanges(world: World, dtype: str) -> list[int]:
    me, machines = world.machine, world.num_machines
    collectives = [0]
    send = dist.all_to_all_single

    def counted(*args, **options):
        collectives[0] += 1
        return send(*args, **options)

    dist.all_to_all_single = counted
    taken = []
    with world.exchange_groups(1) as groups:
        route = Route(world, groups[0])
        for exchange in range(18):
            sizes = _sizes(3, exchange, machines)
            message = np.concatenate([_sent(exchange, me, m, sizes[me, m], dtype) for m in range(machines)])
            collectives[0] = 0
            known = sizes[:, me].copy() if exchange == 17 else None
            inbox, got = route.exchange(message, sizes[me].copy(), "a test" if known is None else "another", known)
            assert got.tolist() == sizes[:, me].tolist()
            expected = [_sent(exchange, m, me, sizes[m, me], dtype) for m in range(machines)]
            assert inbox.dtype == np.dtype(dtype) and inbox.tolist() == np.concatenate(expected).tolist()
            taken.append(collectives[0])
        assert route.exchanges == 18
    return taken


@pytest.mark.parametrize(("machines", "dtype"), [(2, "int32"), (3, "int64"), (3, "uint8")])
def test_what_comes_is_what_was_sent(machines, dtype):
    found = run_ranks(_exchanges, machines, dtype)
    assert all(taken == found[0] for taken in found)
    twice = [exchange for exchange, taken in enumerate(found[0]) if taken == 2]
    assert set(found[0]) == {1, 2} and twice == [0, 5, 12]
