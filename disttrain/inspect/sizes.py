"""How large the graphs of a collection are."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..collection.collated import Collated, Key
from ..collection.columns import Sparse
from ..collection.ragged import Ragged
from ..config import edge_type_name
from ..data.homogeneous import EDGE_TYPE, NODE_TYPE
from .spread import spread


def size_facts(collated: Collated) -> dict[str, dict[str, Any]]:
    """Type of nodes or relation -> how many of them a graph has: total, least, mean, most, percentiles, share of none.

    Cost: a pass over the counts of nodes and edges, 16 bytes a graph.
    """
    counts: dict[str, np.ndarray] = {}
    for key, store in collated.stores.items():
        if store.num_nodes is not None:
            counts[_node_type(key)] = np.asarray(store.num_nodes)
    for key, store in collated.stores.items():
        found = next((store.columns[name] for name in ("edge_index", "adj_t", "adj") if name in store.columns), None)
        if isinstance(found, Sparse):
            found = found.columns
        if isinstance(found, Ragged):
            counts[edge_type_name(EDGE_TYPE if key is None else key)] = np.diff(found.slices)  # type: ignore[arg-type]
    return {name: {"total": int(each.sum()), **sizes(each)} for name, each in counts.items()}


def sizes(counts: np.ndarray) -> dict[str, Any]:
    """As `spread`, and the least and the tenth percentile."""
    ordered = np.sort(counts)
    low = int(ordered[max(0, -(-10 * len(ordered) // 100) - 1)]) if len(ordered) else 0
    return {"min": int(ordered[0]) if len(ordered) else 0, "p10": low, **spread(counts)}


def _node_type(key: Key) -> str:
    return NODE_TYPE if key is None else str(key)
