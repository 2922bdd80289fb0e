"""What `sampling.py` has to reach, and what of it was missed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from contestant import Fanout
from rank_pool import RankPool
from row import Row, between, bytes_per_seed
from yardstick import PAIR

FLOORS = {
    ("1 rank", "torch-sparse"): {(10, 5): 5.0, (15, 10, 5): 5.0},
    ("1 rank", "pyg-lib"): {(10, 5): 1.5, (15, 10, 5): 1.5},
    ("2 machines", "torch-sparse"): {(10, 5): 2.0, (15, 10, 5): 2.5},
    ("2 machines, cache", "torch-sparse"): {(10, 5): 3.0, (15, 10, 5): 4.0},
    ("2 machines, cache", "torch-sparse" + PAIR): {(10, 5): 3.0, (15, 10, 5): 4.0},
}
"""Least seeds per CPU second, as a multiple of PyG's local loader with these kernels."""

REPLICATED_FLOOR = 0.6
"""Least seeds per CPU second of two machines with all edges and a cache, as a multiple of one rank's."""
SAVED_FLOOR: dict[Fanout, float] = {(10, 5): 0.6}
"""Least share of the bytes that the cache saves."""
MOST_POINTS = 0.03
"""The hit rate may be so far below that of the best possible choice of rows."""


def check_hits(pool: RankPool, fanouts: Sequence[Fanout]) -> tuple[list[dict[str, Any]], list[str]]:
    """In an epoch that was not drawn: hit rates of the rows that were chosen, and of the best possible choice."""
    figures, missed = [], []
    for fanout in fanouts:
        machines = pool.call("hit_rates", "cache", fanout)
        cache, best = (sum(machine[key] for machine in machines) / len(machines) for key in ("cache", "best"))
        figures.append({"fanout": list(fanout), "cache": cache, "best": best})
        print(f"{list(fanout)}: hit rate in another epoch {cache:.1%}, of the best possible choice of rows {best:.1%}")
        if best - cache > MOST_POINTS:
            missed.append(f"hit rate at {list(fanout)}: {cache:.1%}, the best possible is {best:.1%}")
    return figures, missed


def floors_missed(fanout: Fanout, rows: list[Row]) -> list[str]:
    missed = []
    for row in rows:
        for kernels in row.against:
            floor = FLOORS.get((row.name, kernels), {}).get(fanout)
            ratio = row.ratio(kernels, lambda t: t.per_cpu_second)
            if floor is not None and ratio < floor:
                missed.append(f"{row.name} at {list(fanout)}: {ratio:.2f} times PyG on {kernels}, must be {floor}")
    by_name = {row.name: row for row in rows}
    ratio = between(by_name["2 machines, replicated, cache"], by_name["1 rank"])
    print(f"all edges on both of two machines, and a cache: {ratio:.2f} times one rank, per CPU second")
    if ratio < REPLICATED_FLOOR:
        missed.append(f"replicated, cache at {list(fanout)}: {ratio:.2f} times one rank, must be {REPLICATED_FLOOR}")
    return missed


def bytes_missed(fanout: Fanout, rows: list[Row]) -> list[str]:
    by_name = {row.name: row for row in rows}
    saved = 1 - bytes_per_seed(by_name["2 machines, cache"].took) / bytes_per_seed(by_name["2 machines"].took)
    print(f"the cache saves {saved:.1%} of the bytes")
    assert saved > 0, "the cache saves something on any graph"
    floor = SAVED_FLOOR.get(fanout, 0.0)
    return [f"the cache saves {saved:.1%} of the bytes at {list(fanout)}, must be {floor:.0%}"] if saved < floor else []
