"""How many neighbours to draw, per hop and relation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches

import numpy as np

from ..config import EdgeType, ExperimentError, edge_type_name, parse_edge_type

Fanout = Sequence[int] | Mapping[str, Sequence[int]]


def fanout_table(fanout: Fanout, edge_types: Sequence[EdgeType], where: str = "sampling.fanout") -> np.ndarray:
    """Resolve a fanout to int64 [hops, relations], relations in the order of `edge_types`; -1 is all, 0 is none.

    Raises:
        ExperimentError: a relation that the graph does not have, one left without a fanout, lists of unequal length.
    """
    if not isinstance(fanout, Mapping):
        return np.repeat(np.asarray(fanout, dtype=np.int64)[:, None], len(edge_types), axis=1)
    known = {edge_type_name(edge_type): place for place, edge_type in enumerate(edge_types)}
    given = {
        name if name == "default" else edge_type_name(parse_edge_type(name)): hops for name, hops in fanout.items()
    }
    problems = []
    for name in given:
        if name != "default" and name not in known:
            nearest = get_close_matches(name, known, n=1)
            hint = f'; did you mean "{nearest[0]}"?' if nearest else ""
            problems.append(f'{where}["{name}"]: the graph has no such relation, it has {", ".join(known)}{hint}')
    left_out = [name for name in known if name not in given]
    if left_out and "default" not in given:
        problems.append(f'{where}: no fanout for {", ".join(left_out)}; name them, or give a "default"')
    lengths = {name: len(hops) for name, hops in given.items()}
    if len(set(lengths.values())) > 1:
        problems.append(f"{where}: every list must have one fanout per hop, got {lengths} hops")
    if problems:
        raise ExperimentError("\n".join(problems))
    return np.asarray([given.get(name, given.get("default")) for name in known], dtype=np.int64).T.copy()
