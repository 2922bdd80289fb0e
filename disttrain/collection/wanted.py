"""What a batch carries under a name that a model or a task wants."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

from ..config import EdgeType, ExperimentError
from ..graph.schema import Schema
from .collated import Store
from .columns import Column, batch_and_ptr
from .ragged import Ragged

ALL = "*"
"""Stands for all that a type has."""
_FOLLOWED = ("_batch", "_ptr")


def source_of(name: str, columns: Mapping[str, Any]) -> str | None:
    """The attribute that it is made of: itself, or `x` for `x_batch` and `x_ptr`, which PyG's `follow_batch` makes;
    None: there is none."""
    if name in columns:
        return name
    for end in _FOLLOWED:
        if name.endswith(end) and name.removesuffix(end) in columns:
            return name.removesuffix(end)
    return None


def value_of(name: str, columns: Mapping[str, Column], at: np.ndarray) -> Any:
    """What `Batch.from_data_list` makes of the graphs at these places."""
    if name in columns:
        return columns[name].take(at)
    source = source_of(name, columns)
    assert source is not None
    return batch_and_ptr(columns[source], at)[_FOLLOWED.index(name.removeprefix(source))]


def belongs(name: str, owner: str | EdgeType, names: Collection[str], counts: np.ndarray, known: Schema | None) -> bool:
    """Whether an attribute of homogeneous graphs with a row for each node (edge) is theirs: as it was in training; else
    by its name, or unless it may as well be the graphs', which have one each.

    Args:
        names: of what is always theirs.
        counts: of nodes (edges) in each graph.
        known: the graphs of the training.
    """
    there = {} if known is None else {**known.nodes, **known.edges}
    if owners := [other for other, its in there.items() if name in its.attributes]:
        return owner in owners
    return name in names or not (counts == 1).all()


def refuse_unlike(store: Store, names: Iterable[str], counts: np.ndarray, ids: np.ndarray, each: str) -> None:
    """Rows for each node, edge or graph have to be that in every graph, also after transforms.

    Args:
        names: attributes that have a row for each.
        counts: int64 [n], how many of these there are in each graph.
        ids: int64 [n], the graphs.

    Raises:
        ExperimentError: names the first one that has more or fewer.
    """
    for name in names:
        column = store.columns.get(name)
        if not isinstance(column, Ragged):
            continue
        wrong = np.flatnonzero(np.diff(column.slices) != counts)
        if len(wrong):
            rows, count = int(np.diff(column.slices)[wrong[0]]), int(counts[wrong[0]])
            raise ExperimentError(
                f"data.transforms: graph {ids[wrong[0]]} is not like the others after them: `{name}` has {rows} rows, "
                f"and there are {count} {each}; others have one for each"
            )
