"""Which attribute has a row for each node, each edge, or each graph: PyG does not say so of a collection."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..config import EdgeType, ExperimentError
from ..data.homogeneous import EDGE_TYPE, NODE_TYPE
from ..graph.schema import GRAPH, Schema
from .collated import Collated, Key
from .columns import Column, Numbers
from .ragged import Ragged
from .wanted import belongs

_OF_NODES = ("x", "x_cat", "pos", "batch")
_OF_EDGES = ("edge_attr", "edge_weight")

Owned = tuple[Key, tuple[str, ...]]
"""The key of the store of a type, and the attributes with a row for each of its nodes or edges."""


def names_of_graphs(
    collated: Collated, of_nodes: Mapping[str, Owned], of_edges: Mapping[EdgeType, Owned]
) -> dict[str, Key]:
    """Attributes with a row for each graph -> their store."""
    columns = collated.stores[None].columns if None in collated.stores else {}
    taken: set[str] = set()
    if not collated.heterogeneous:
        taken = {*of_nodes[NODE_TYPE][1], *(name for _, names in of_edges.values() for name in names)}
    return {
        name: None
        for name, column in columns.items()
        if name not in taken and (isinstance(column, Numbers) or _has_rows(column, np.ones(len(collated))))
    }


def names_of_nodes(collated: Collated, known: Schema | None) -> dict[str, Owned]:
    """Of each node type.

    Args:
        known: the graphs of the training, where a model shall predict these.

    Raises:
        ExperimentError: a type has the name that stands for the graphs.
    """
    found: dict[str, Owned] = {}
    for key, store in collated.stores.items():
        if store.num_nodes is None:
            continue
        if key == GRAPH:
            raise ExperimentError(
                f'the collection has a node type "{GRAPH}", which stands for the graphs themselves; rename it'
            )
        names = tuple(
            name
            for name, column in store.columns.items()
            if name not in _OF_EDGES
            and _has_rows(column, store.num_nodes)
            and (key is not None or belongs(name, NODE_TYPE, _OF_NODES, store.num_nodes, known))
        )
        assert not isinstance(key, tuple)
        found[NODE_TYPE if key is None else key] = key, names
    return found


def names_of_edges(collated: Collated, of_nodes: Mapping[str, Owned], known: Schema | None) -> dict[EdgeType, Owned]:
    """Of each relation with an `edge_index`; `known` as for nodes."""
    found: dict[EdgeType, Owned] = {}
    for key, store in collated.stores.items():
        index = store.columns.get("edge_index")
        if not isinstance(index, Ragged):
            continue
        counts = np.diff(index.slices)
        nodes = of_nodes[NODE_TYPE][1] if key is None else ()
        names = tuple(
            name
            for name, column in store.columns.items()
            if name not in nodes
            and _has_rows(column, counts)
            and (key is not None or belongs(name, EDGE_TYPE, _OF_EDGES, counts, known))
        )
        assert not isinstance(key, str)
        found[EDGE_TYPE if key is None else key] = key, names
    return found


def _has_rows(column: Column, counts: np.ndarray) -> bool:
    """Whether a column has as many rows for each graph."""
    return isinstance(column, Ragged) and column.axis == 0 and np.array_equal(np.diff(column.slices), counts)
