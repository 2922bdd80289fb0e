"""Random assignment: every type, and its training seeds, in equal shares; nothing else is looked at."""

from __future__ import annotations

import numpy as np

from .arrays import GraphArrays


def random_parts(graph: GraphArrays, parts: int, seed: int) -> dict[str, np.ndarray]:
    """The part of each node, int32 [N] per type.

    Shares of a type differ by one node at most, those of its training nodes too. Cost: a sort per type.
    """
    result = {}
    for index, (node_type, nodes) in enumerate(graph.nodes.items()):
        rng = np.random.default_rng([seed, index])
        order = np.lexsort((rng.permutation(nodes.count), nodes.is_train_seed))
        part = np.empty(nodes.count, dtype=np.int32)
        # A random part begins, or the remainders of all types would meet in part 0.
        part[order] = (np.arange(nodes.count) + rng.integers(parts)) % parts
        result[node_type] = part
    return result
