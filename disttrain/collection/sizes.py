"""How large the graphs of a collection are."""

from __future__ import annotations

import numpy as np

from .collated import Collated
from .columns import Sparse
from .ragged import Ragged

_EDGES = ("edge_index", "adj_t", "adj")


def sizes_of(collated: Collated) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and edges of each graph, of all types: int64 [num_graphs] each."""
    nodes, edges = np.zeros((2, len(collated)), np.int64)
    for store in collated.stores.values():
        if store.num_nodes is not None:
            nodes += store.num_nodes
        for name in _EDGES:
            column = store.columns.get(name)
            if isinstance(column, Sparse):
                column = column.columns
            if isinstance(column, Ragged):
                edges += np.diff(column.slices)
                break
    return nodes, edges
