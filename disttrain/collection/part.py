"""A machine's own range of a collection."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np

from .access import Access
from .collated import Collated
from .columns import Mapping, Numbers, Objects, Sequence, Sparse
from .parcel import shared
from .ragged import Ragged


class Part:
    """Access to graphs of which those of a range are held apart, in memory; others come from where all are.

    Args:
        held: the graphs from number `first` on, see `part_of`.
        others: all graphs.
    """

    def __init__(self, held: Collated, first: int, others: Access) -> None:
        self.held, self.first, self.others = held, first, others

    def pick(self, ids: np.ndarray, epoch: int = 0, names: Any = None) -> tuple[Collated, np.ndarray]:
        """See `Access`."""
        at = ids - self.first
        if len(at) and (at.min() < 0 or at.max() >= len(self.held)):
            return self.others.pick(ids, epoch, names)
        return self.held, at


def part_of(collated: Collated, first: int, end: int) -> Collated:
    """The graphs from number `first` to before `end`; arrays are views of those of the whole."""
    stores = {
        key: replace(
            store,
            columns={name: _part(column, first, end) for name, column in store.columns.items()},
            num_nodes=None if store.num_nodes is None else store.num_nodes[first:end],
        )
        for key, store in collated.stores.items()
    }
    return Collated(end - first, collated.heterogeneous, stores, collated.left_out)


def in_memory(collated: Collated, names: Collection[str] | None = None) -> Collated:
    """The same in memory that worker processes get at too, each array read once.

    Args:
        names: attributes, of all types; the others stay where they are. None: all.
    """
    plain = Collated(collated.num_graphs, collated.heterogeneous, collated.stores, collated.left_out)
    if names is None:
        return shared(plain, files=True)
    stores = {
        key: replace(
            store,
            columns={
                name: shared(column, files=True) if name in names else column for name, column in store.columns.items()
            },
        )
        for key, store in plain.stores.items()
    }
    return replace(plain, stores=stores)


def _part(column: Any, first: int, end: int) -> Any:
    if isinstance(column, Ragged):
        values, slices = _rows(column.values, column.slices, first, end)
        return replace(column, values=values, slices=slices, increments=_of(column.increments, first, end))
    if isinstance(column, Objects):
        text, slices = _rows(column.text, column.slices, first, end)
        return replace(column, text=text, slices=slices)
    if isinstance(column, Numbers):
        return Numbers(column.values[first:end], _of(column.increments, first, end))
    if isinstance(column, Sparse):
        parts = {name: _part(getattr(column, name), first, end) for name in ("rows", "columns", "values")}
        return replace(column, **parts, shapes=column.shapes[first:end], coalesced=column.coalesced[first:end])
    if isinstance(column, Mapping):
        return Mapping({name: _part(inner, first, end) for name, inner in column.columns.items()})
    assert isinstance(column, Sequence)
    return Sequence([_part(inner, first, end) for inner in column.columns])


def _rows(values: np.ndarray, slices: np.ndarray, first: int, end: int) -> tuple[np.ndarray, np.ndarray]:
    own = np.array(slices[first : end + 1])
    return values[int(own[0]) : int(own[-1])], own - own[0]


def _of(increments: np.ndarray | None, first: int, end: int) -> np.ndarray | None:
    return None if increments is None else increments[first:end]
