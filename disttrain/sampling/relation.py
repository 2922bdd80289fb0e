"""Drawing from one relation, in two steps: how many of each node's neighbours, then which."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from ..config import EdgeType
from ..machine_code import compiled
from . import kernels
from .drawable import Drawable
from .fanout import Rule
from .kernels import advance, mix
from .memory import BLOCKS
from .temporal import num_until
from .trees import Trees
from .weighted import draw_by_sums, draw_by_weight

OneHop = Callable[..., tuple[torch.Tensor, torch.Tensor, list[int]]]
"""See `one_hop.sample_one_hop`."""

_MUCH_ROOM = 1024
"""Picks; for a fanout of more, room is made for as many as a node really gets."""

_NO_TREES, _NO_KEYS, _NO_TIMES = np.empty(0, np.int32), np.empty(0, np.uint64), np.empty(0, np.int64)


@dataclass
class Draw:
    """What drawing for a frontier needs, see `kernels.look_up`."""

    begins: np.ndarray
    degrees: np.ndarray
    counts: np.ndarray
    states: np.ndarray
    total: int
    """Sum of the counts."""
    replace: bool
    rule: Rule
    drawn: np.ndarray | None = None
    """int64: the own places in the layout, where the draws are made already."""


class Relation:
    """One relation, cut to the destinations that this machine draws for.

    Args:
        number: its place among the edge types.
        low, high: the range of destinations; the other arrays are cut to it.
        drawable: the layout of its edges where these are drawn by weight or time.
        replace, latest: how to draw; of the latest, none is drawn twice.
        one_hop: what draws in place of the kernels, see `one_hop.sample_one_hop`.
    """

    def __init__(
        self,
        number: int,
        edge_type: EdgeType,
        low: int,
        high: int,
        csc: tuple[np.ndarray, np.ndarray, np.ndarray],
        original: np.ndarray,
        drawable: Drawable | None = None,
        *,
        replace: bool = False,
        latest: bool = False,
        one_hop: OneHop | None = None,
    ) -> None:
        self.number, self.edge_type = number, edge_type
        self.src, _, self.dst = edge_type
        self.low, self.high, self.original = low, high, original
        self.colptr, self.row, self.edge_id = csc
        self.drawable = drawable
        self.latest = latest and drawable is not None and drawable.times is not None
        self.replace = replace and not self.latest
        self.one_hop = one_hop
        self._picks, self._seen = kernels.scratch_for(1)
        self._keys = np.empty(0, np.float64)

    def look_up(self, ids: np.ndarray, rule: Rule, key: np.uint64, grown: tuple[Trees, np.ndarray] | None) -> Draw:
        """How many neighbours each of the own ones among `ids` gets, and the state that its draws begin with.

        Args:
            ids: partition-order ids of destinations; those outside the own range are left alone.
            key: of the draws of this relation and hop.
            grown: where each seed has a tree of its own, the trees and that of each id.
        """
        n = len(ids)
        draw = Draw(
            begins=BLOCKS.empty(n, np.int64),
            degrees=BLOCKS.empty(n, np.int64),
            counts=BLOCKS.empty(n, np.int32),
            states=BLOCKS.empty(n, np.uint64),
            total=0,
            # All neighbours are each taken once, with replacement or without.
            replace=self.replace and (rule.most != -1 or rule.ratio > 0),
            rule=rule,
        )
        filled = draw.begins, draw.degrees, draw.counts, draw.states
        if self.drawable is None and grown is None and not rule.ratio:
            draw.total = kernels.look_up(
                ids, self.low, self.high, self.colptr, self.original, key, rule.most, draw.replace, *filled
            )
        else:
            draw.total = self._look_up_kind(ids, rule, key, grown, draw)
        if self.one_hop is not None:
            self._draw_by_call(ids, draw, grown)
        return draw

    def _look_up_kind(
        self, ids: np.ndarray, rule: Rule, key: np.uint64, grown: tuple[Trees, np.ndarray] | None, draw: Draw
    ) -> int:
        trees, of = grown if grown is not None else (None, _NO_TREES)
        times = self.drawable.times if self.drawable is not None else None
        return look_up_kind(
            ids,
            of,
            self.low,
            self.high,
            self.colptr if self.drawable is None else self.drawable.colptr,
            self.original,
            key,
            _NO_KEYS if trees is None else trees.keys,
            _NO_TIMES if trees is None else trees.limits,
            _NO_TIMES if times is None else times,
            times is not None,
            self.latest,
            *rule,
            draw.replace,
            draw.begins,
            draw.degrees,
            draw.counts,
            draw.states,
        )

    @cached_property
    def _tensors(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """For `one_hop`: pointers from 0 on, sources, times and weights, in the order of the layout."""
        first, last = int(self.colptr[0]), int(self.colptr[-1])
        layout = self.drawable or Drawable(self.colptr - first, None)
        sources = self.row[first:last] if layout.order is None else self.row[layout.order]
        times, weights = (None if a is None else torch.from_numpy(a) for a in (layout.times, layout.weights))
        return torch.from_numpy(layout.colptr), torch.from_numpy(sources.astype(np.int64)), times, weights

    def _draw_by_call(self, ids: np.ndarray, draw: Draw, grown: tuple[Trees, np.ndarray] | None) -> None:
        """Let `one_hop` draw for the own ones among `ids`."""
        assert self.one_hop is not None
        colptr, sources, times, weights = self._tensors
        own = draw.begins >= 0
        limits = None
        if times is not None:
            assert grown is not None
            limits = torch.from_numpy(grown[0].limits[grown[1][own]])
        _, edge, ends = self.one_hop(
            colptr,
            sources,
            torch.from_numpy(ids[own].astype(np.int64) - self.low),
            draw.rule.most,
            None,
            times,
            limits,
            weights,
            True,
            draw.replace,
            True,
            times is not None,
            "last" if self.latest else "uniform",
            states=draw.states[own],
        )
        draw.counts[own] = np.diff(np.asarray(ends))
        draw.total = len(edge)
        draw.drawn = edge.numpy() + (int(self.colptr[0]) if self.drawable is None else 0)

    def draw_places(self, draw: Draw, places: np.ndarray) -> None:
        """Draw: the places in the CSC of the chosen neighbours, one id after the other; those of ids that others own
        are left."""
        drawable = self.drawable
        self._make_room(draw)
        if draw.drawn is not None:
            take_drawn(draw.begins, draw.counts, draw.drawn, places)
        elif drawable is None or drawable.weights is None:
            kernels.draw_places(
                draw.begins, draw.degrees, draw.counts, draw.states, draw.replace, self._picks, self._seen, places
            )
        elif draw.replace:
            draw_by_sums(draw.begins, draw.degrees, draw.counts, draw.states, drawable.sums, places)
        else:
            draw_by_weight(
                draw.begins, draw.degrees, draw.counts, draw.states, drawable.weights, self._keys, self._picks, places
            )
        if drawable is not None and drawable.order is not None:
            to_csc(draw.begins, draw.counts, drawable.order, places)

    def _make_room(self, draw: Draw) -> None:
        most = draw.rule.most
        if draw.rule.ratio or most > _MUCH_ROOM:
            most = int(draw.counts.max(initial=1))
        if 4 * most > len(self._seen):
            self._picks, self._seen = kernels.scratch_for(most)
        if len(self._keys) < len(self._picks):
            self._keys = np.empty(len(self._picks), np.float64)


@compiled
def look_up_kind(
    ids,
    trees,
    low,
    high,
    colptr,
    original,
    key,
    tree_keys,
    limits,
    times,
    timed,
    latest,
    most,
    ratio,
    least,
    replace,
    begins,
    degrees,
    counts,
    states,
):
    """As `kernels.look_up`, for every kind of drawing: in trees, by time, by share of the degree.

    Degrees count the edges that are not too late. Of the latest, begins and degrees are cut to those that are taken.
    """
    total = 0
    for i in range(len(ids)):
        v = ids[i]
        if not low <= v < high:
            begins[i] = -1
            continue
        begin = colptr[v - low]
        degree = colptr[v - low + 1] - begin
        state = key
        if len(tree_keys):
            state = mix(advance(key ^ tree_keys[trees[i]]))
            if timed:
                degree = num_until(times, begin, degree, limits[trees[i]])
        count = degree
        wanted = np.int64(most)
        if ratio > 0.0:
            # 0.1 of 30 is a little more than 3 in binary; nobody means 4 by it.
            wanted = max(np.int64(least), np.int64(np.ceil(ratio * degree * (1.0 - 1e-12))))
            if most >= 0:
                wanted = min(wanted, np.int64(most))
        if wanted >= 0 and ((replace and degree > 0) or degree > wanted):
            count = wanted
        if latest:
            begin += degree - count
            degree = count
        begins[i] = begin
        degrees[i] = degree
        counts[i] = count
        states[i] = state ^ mix(np.uint64(original[v - low]))
        total += count
    return total


@compiled
def take_drawn(begins, counts, drawn, places):
    """Put what was drawn for the own ids where it belongs."""
    n, at = 0, 0
    for i in range(len(begins)):
        if begins[i] >= 0:
            for q in range(counts[i]):
                places[n + q] = drawn[at]
                at += 1
        n += counts[i]


@compiled
def to_csc(begins, counts, order, places):
    """Turn places of the layout into those of the CSC, of own ids only."""
    n = 0
    for i in range(len(begins)):
        if begins[i] >= 0:
            for q in range(counts[i]):
                places[n + q] = order[places[n + q]]
        n += counts[i]
