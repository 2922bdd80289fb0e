"""What the graphs of a collection are like after transforms: some are looked at, and all where that has to be known."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..config import ExperimentError
from ..graph.columns import Summary, summarise
from .access import Transformed
from .collated import Collated, Key, collate, named
from .columns import Numbers, Sparse
from .joining import join
from .objects import graphs_of
from .ragged import Ragged

_MOST_LOOKED_AT = 128
_AT_ONCE = 256
_CODES = "x_cat"


@dataclass(frozen=True)
class Look:
    """What was found."""

    collated: Collated
    """Some graphs after the transforms."""
    ids: np.ndarray
    """Which ones."""
    same: frozenset[tuple[Key, str]]
    """Attributes that the transforms leave as they are stored, in all of these."""
    same_nodes: frozenset[Key]
    """Types of which they leave the number of nodes."""
    summaries: dict[tuple[Key, str], Summary] = field(default_factory=dict)
    """Of the others."""
    of_graphs: dict[str, np.ndarray] = field(default_factory=dict)
    """The label of all graphs, where the transforms make or change it: [num_graphs, ...]"""
    seen_all: bool = False
    """All graphs had to go through the transforms for it."""


def look_over(access: Transformed, num_graphs: int, label: str) -> Look:
    """Send some graphs through the transforms, spread evenly over the collection; and all of them, once, where labels
    or codes of categories come from there, since classes and the sizes of embeddings depend on all.

    Args:
        label: attribute of the graphs that is learnt.

    Raises:
        ExperimentError: the graphs differ from each other afterwards; names one.
    """
    ids = np.unique(np.linspace(0, num_graphs - 1, _MOST_LOOKED_AT).astype(np.int64))
    picked, places = access.source.pick(ids)
    before, after = graphs_of(picked, places), access.graphs(ids)
    collated = _collated(after, ids)
    if access.own_class is None:
        _refuse_own_rules(picked, places, collate(before, "data.transforms: graphs as PyG's own classes"), collated)
    same = frozenset(
        (key, name)
        for key, store in collated.stores.items()
        for name in store.columns
        if all(_equal(_value(a, key, name), _value(b, key, name)) for a, b in zip(before, after))
    )
    same_nodes = frozenset(
        key
        for key, store in collated.stores.items()
        if store.num_nodes is not None
        and key in picked.stores
        and (theirs := picked.stores[key].num_nodes) is not None
        and np.array_equal(theirs[places], store.num_nodes)
    )
    changed = {
        key: tuple(name for name in store.columns if (key, name) not in same) for key, store in collated.stores.items()
    }
    summaries = {
        (key, name): _summary(name, column.values)
        for key, names in changed.items()
        for name in names
        if isinstance(column := collated.stores[key].columns[name], (Ragged, Numbers)) and _is_real(column)
    }
    found = Look(collated, ids, same, same_nodes, summaries)
    wanted = {
        key: tuple(name for name in names if name == _CODES or (key is None and name == label))
        for key, names in changed.items()
    }
    return _all_of(access, num_graphs, found, wanted, label) if any(wanted.values()) else found


def _all_of(access: Transformed, num_graphs: int, found: Look, wanted: dict[Key, tuple[str, ...]], label: str) -> Look:
    labels: list[np.ndarray] = []
    codes: dict[Key, tuple[int, int]] = {}
    for start in range(0, num_graphs, _AT_ONCE):
        ids = np.arange(start, min(start + _AT_ONCE, num_graphs))
        joined = join(access.graphs(ids), ids, found.collated, wanted)
        for key, names in wanted.items():
            for name in names:
                column = joined.stores[key].columns[name]
                if not isinstance(column, (Ragged, Numbers)):
                    continue
                if key is None and name == label:
                    labels.append(column.values)
                if name == _CODES and column.values.size and column.values.dtype.kind in "iu":
                    low, high = codes.get(key, (0, 0))
                    codes[key] = min(low, int(column.values.min())), max(high, int(column.values.max()))
    of_graphs = {label: np.concatenate(labels)} if labels else {}
    summaries = dict(found.summaries)
    for key, (low, high) in codes.items():
        summaries[key, _CODES] = Summary(low, high, 0, None, None)
    if labels:
        summaries[None, label] = _summary(label, of_graphs[label])
    return Look(found.collated, found.ids, found.same, found.same_nodes, summaries, of_graphs, seen_all=True)


def _collated(graphs: list[Any], ids: np.ndarray) -> Collated:
    """Those that are looked at first."""
    like = collate(graphs[:1], "data.transforms")
    rest = join(graphs, ids, like)
    return Collated(rest.num_graphs, rest.heterogeneous, rest.stores, like.left_out)


def _refuse_own_rules(stored: Collated, places: np.ndarray, plain: Collated, after: Collated) -> None:
    """Of a collection that does not say of which class its graphs are, transforms get PyG's own, so rules of the user's
    (`__inc__`, `__cat_dim__`), which are known for the graphs as they are stored, would be lost.

    Args:
        stored, places: where graphs are, by their own rules.
        plain: the same by PyG's rules.
        after: what transforms leave of them.

    Raises:
        ExperimentError: there are such rules.
    """
    for key, store in after.stores.items():
        for name in store.columns:
            columns = [side.stores[key].columns.get(name) if key in side.stores else None for side in (stored, plain)]
            if None in columns:
                continue
            own, theirs = (_rules(column, at) for column, at in zip(columns, (places, slice(None))))
            if own != theirs:
                raise ExperimentError(
                    f"data.transforms: {named(key, name)} is put together by rules of your own class of graphs "
                    "(__inc__, __cat_dim__), and the collection, which an older version made, does not say which class "
                    "that is; remove it, and the next run makes it again"
                )


def _rules(column: Any, at: Any) -> Any:
    if isinstance(column, Sparse):
        return column.diagonal
    if not isinstance(column, (Ragged, Numbers)):
        return None
    moved = None if column.increments is None else column.increments[at]
    shape_and_moved = None if moved is None or not moved.any() else (moved.shape[1:], moved.tolist())
    return getattr(column, "axis", 0), shape_and_moved


def _value(graph: Any, key: Key, name: str) -> Any:
    for store in graph.stores:
        if store._key == key:
            return store._mapping.get(name)
    return None


def _equal(before: Any, after: Any) -> bool:
    if before is None or type(before) is not type(after):
        return False
    if isinstance(before, Tensor):
        if before is after:
            return True
        dense = before.layout == after.layout == torch.strided
        if not dense or before.dtype != after.dtype or before.shape != after.shape:
            return False
        same = before == after
        return bool((same | (before.isnan() & after.isnan()) if before.is_floating_point() else same).all())
    return before is after or (isinstance(before, (str, int, float)) and before == after)


def _is_real(column: Ragged | Numbers) -> bool:
    real = column.values.dtype.kind in "biuf"
    return real and (isinstance(column, Numbers) or (column.axis == 0 and str(column.values.dtype) == column.dtype))


def _summary(name: str, values: np.ndarray) -> Summary:
    found = summarise(values, feature=name == "x")
    # Others than those looked at may have NaN; what models do about it costs nothing where there is none.
    missing = max(found.missing, 1) if values.dtype.kind == "f" and name == "x" else found.missing
    return Summary(found.low, found.high, missing, found.mean, found.std)
