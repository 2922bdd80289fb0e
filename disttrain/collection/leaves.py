"""The parts of a collection that are as large as its graphs: what each graph has of them is a run of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from .collated import Collated, Key, Store
from .columns import Column, Numbers, Objects, Sequence, Sparse
from .columns import Mapping as Named
from .joining import Names
from .ragged import Ragged


def leaves(collated: Collated, names: Names | None = None) -> dict[str, Ragged]:
    """Name -> values, in the order of the attributes.

    Args:
        names: the attributes that count; None: all.
    """
    found: dict[str, Ragged] = {}
    for key, store in collated.stores.items():
        owner = _owner(key)
        for name, column in store.columns.items():
            if names is None or name in names.get(key, ()):
                found |= {f"{owner}/{path}": leaf for path, leaf in _leaves(_part(name), column)}
    return found


def _owner(key: Key) -> str:
    if isinstance(key, tuple):
        return ",".join(map(_part, key))
    return "" if key is None else _part(key)


def _part(name: str) -> str:
    """Of a path: what names hold must not divide it."""
    return name.replace("%", "%25").replace("/", "%2F").replace(",", "%2C")


def _leaves(path: str, column: Column) -> Iterator[tuple[str, Ragged]]:
    if isinstance(column, Ragged):
        yield path, column
    elif isinstance(column, Objects):
        yield path, Ragged(column.text, column.slices, 0, "uint8")
    elif isinstance(column, Sparse):
        for part in ("rows", "columns", "values"):
            yield f"{path}/{part}", getattr(column, part)
    elif isinstance(column, Named):
        for name, inner in column.columns.items():
            yield from _leaves(f"{path}/{_part(name)}", inner)
    elif isinstance(column, Sequence):
        for number, inner in enumerate(column.columns):
            yield from _leaves(f"{path}/{number}", inner)


def picked(collated: Collated, ids: np.ndarray, values: Mapping[str, np.ndarray], names: Names | None) -> Collated:
    """A collection of just these graphs, in this order.

    Args:
        collated: of which the large arrays are not touched.
        values: for each of `leaves(collated, names)`, those of these graphs: their tensors put together.
        names: the attributes that are wanted; None: all.
    """
    made: dict[Key, Store] = {}
    for key, store in collated.stores.items():
        owner = _owner(key)
        columns = {
            name: _picked(f"{owner}/{_part(name)}", column, ids, values.__getitem__)
            for name, column in store.columns.items()
            if names is None or name in names.get(key, ())
        }
        counts = None if store.num_nodes is None else store.num_nodes[ids]
        made[key] = replace(store, columns=columns, num_nodes=counts)
    return Collated(len(ids), collated.heterogeneous, made)


def _picked(path: str, column: Any, ids: np.ndarray, values: Callable[[str], np.ndarray]) -> Any:
    if isinstance(column, Ragged):
        increments = None if column.increments is None else column.increments[ids]
        return Ragged.of(values(path), column.sizes(ids), column.axis, column.dtype, increments)
    if isinstance(column, Objects):
        leaf = Ragged.of(values(path), column.slices[ids + 1] - column.slices[ids], 0, "uint8")
        return Objects(leaf.values, leaf.slices, column.mixed)
    if isinstance(column, Numbers):
        return Numbers(column.values[ids], None if column.increments is None else column.increments[ids])
    if isinstance(column, Sparse):
        parts = {
            part: _picked(f"{path}/{part}", getattr(column, part), ids, values)
            for part in ("rows", "columns", "values")
        }
        return replace(column, **parts, shapes=column.shapes[ids], coalesced=column.coalesced[ids])
    if isinstance(column, Named):
        columns = column.columns.items()
        return Named({name: _picked(f"{path}/{_part(name)}", inner, ids, values) for name, inner in columns})
    assert isinstance(column, Sequence)
    return Sequence([_picked(f"{path}/{n}", inner, ids, values) for n, inner in enumerate(column.columns)])
