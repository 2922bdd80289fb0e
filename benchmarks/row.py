"""What a contestant of `sampling.py` came to, at one fanout."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field

from contestant import Took


@dataclass
class Row:
    """One contestant at one fanout, over all repetitions."""

    name: str
    took: list[Took] = field(default_factory=list)
    against: dict[str, list[Took]] = field(default_factory=dict)
    """Kernels -> what PyG's loader took for the same seeds, right after."""

    def add(self, took: Took, pyg: dict[str, Took]) -> None:
        self.took.append(took)
        for kernels, other in pyg.items():
            self.against.setdefault(kernels, []).append(other)

    def ratio(self, kernels: str, rate: Callable[[Took], float]) -> float:
        """Median over repetitions of how many times as fast as PyG's loader."""
        return statistics.median(rate(a) / rate(b) for a, b in zip(self.took, self.against[kernels]))


def total(parts: Sequence[Took]) -> Took:
    """Of all ranks: CPU seconds add up, the slowest rank's wall time counts."""
    summed = {key: sum(asdict(p)[key] for p in parts) for key in asdict(parts[0])}
    return Took(**{**summed, "wall_seconds": max(p.wall_seconds for p in parts)})


def bytes_per_seed(took: list[Took]) -> float:
    return sum(t.bytes_sent for t in took) / sum(t.num_seeds for t in took)


def between(one: Row, other: Row) -> float:
    """Median over repetitions of how many times as fast `one` is, per CPU second."""
    return statistics.median(a.per_cpu_second / b.per_cpu_second for a, b in zip(one.took, other.took))
