"""Graphs of differing size, divided so that all ranks and steps have about as much, and none more than it may have.

PyG's `DynamicBatchSampler` fills one batch after the other up to a number of nodes or of edges: how many batches that
makes changes with each shuffle and is not the same on all ranks, and a graph that is larger than allowed is skipped, or
is not. Here both bounds hold at once and for each rank, the number of steps is known beforehand and the same in each
epoch, and each graph is there once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..data.split import shuffled
from .group import Group
from .kernels import even_out, fill_bins

_SLACK = 0.1
"""Of what a rank may have, this share is left free; so the graphs that are no larger than it fit in without looking."""
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Packing:
    """Steps in which no rank has more than it may have.

    Graphs go one after the other, in the order of the epoch, to the step that has least so far. Within a step they are
    divided as evenly as the largest first makes it. Those that take more than a tenth of a rank's share are placed
    before the others. Without such ones, what a step's ranks have together does not depend on their number.
    """

    shares: np.ndarray
    """float64: of each place of the split, the share of what a rank may have in a step; at most 1."""
    num_steps: int
    """In each epoch."""

    @staticmethod
    def of(shares: np.ndarray, groups: list[Group]) -> Packing:
        """With as few steps as all groups can do with."""
        steps = [_fewest_steps(shares[group.first_place : group.end], group.num_ranks) for group in groups]
        return Packing(shares, max(steps))

    def divide(self, places: np.ndarray, num_ranks: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """The step and the rank of each of these places.

        Args:
            places: int64 [n], in the order of the epoch.
            seed: of the steps that large graphs come in.
        """
        shares = self.shares[places]
        large = shares > _SLACK
        steps, ranks = np.empty(len(places), np.int64), np.empty(len(places), np.int64)
        load = np.zeros((self.num_steps, num_ranks))
        if large.any():
            at = np.flatnonzero(large)
            at = at[np.argsort(-shares[at], kind="stable")]
            # The largest ones come into different steps first, and then to different ranks.
            bins = fill_bins(shares[at], np.zeros(self.num_steps * num_ranks))
            steps[at] = shuffled(np.arange(self.num_steps), seed)[bins % self.num_steps]
            ranks[at] = bins // self.num_steps
            np.add.at(load, (steps[at], ranks[at]), shares[at])
        small = np.flatnonzero(~large)
        steps[small] = fill_bins(shares[small], load.sum(axis=1))
        ranks[small] = _even(shares[small], steps[small], load)
        return steps, ranks


def even_ranks(sizes: np.ndarray, steps: np.ndarray, num_steps: int, num_ranks: int) -> np.ndarray:
    """The rank of each graph, such that the ranks of a step have about as much each: the largest graph first, each to
    the rank that has least so far (Graham 1969: at most 4/3 of the least possible).

    Args:
        sizes: [n]
        steps: int64 [n], of each graph.
    """
    return _even(sizes.astype(np.float64), steps, np.zeros((num_steps, num_ranks)))


def _even(sizes: np.ndarray, steps: np.ndarray, load: np.ndarray) -> np.ndarray:
    """Args:
    load: float64 [num_steps, num_ranks], what the ranks have already.
    """
    order = np.lexsort((-sizes, steps))
    ranks = np.empty(len(sizes), np.int64)
    ranks[order] = even_out(sizes[order], steps[order], load)
    return ranks


def _fewest_steps(shares: np.ndarray, num_ranks: int) -> int:
    """So many that everything fits, whatever the order: a graph of at most `_SLACK` goes where there is no more than
    the mean, which is at most 1 - `_SLACK`; and for the larger ones it is tried out."""
    steps = int(np.ceil(shares.sum() / ((1 - _SLACK) * num_ranks) - _ROUNDING))
    large = np.sort(shares[shares > _SLACK])[::-1]
    while len(large) and _fullest(large, steps * num_ranks) > 1 + _ROUNDING:
        steps += 1 + steps // 50
    return max(steps, 1 if len(shares) else 0)


def _fullest(sizes: np.ndarray, num_bins: int) -> float:
    bins = fill_bins(sizes, np.zeros(num_bins))
    return float(np.bincount(bins, weights=sizes, minlength=num_bins).max())


def filled_up(sizes: list[tuple[np.ndarray, int]], first: int, last: int) -> np.ndarray:
    """int64: where batches of consecutive places begin, each as full as may be, and where the last one ends.

    Args:
        sizes: of each place, and the most in a batch; of nodes, of edges.
        first, last: the places from `first` to before `last`.
    """
    ends = [first]
    totals = [(np.concatenate([[0], np.cumsum(size)]), most) for size, most in sizes]
    while ends[-1] < last:
        fits = [int(np.searchsorted(total, total[ends[-1]] + most, side="right")) - 1 for total, most in totals]
        ends.append(min(max(min(fits), ends[-1] + 1), last))
    return np.array(ends)
