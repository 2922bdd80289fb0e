"""How many neighbours to draw, per hop and relation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import NamedTuple

import numpy as np

from ..config import EdgeType, ExperimentError, Share, edge_type_name, parse_edge_type

Fanout = Sequence[int | Share] | Mapping[str, Sequence[int | Share]]


class Rule(NamedTuple):
    """How many neighbours a node gets: `most`, or `ratio` of its degree within `least` and `most`."""

    most: int
    """-1: all; 0: none."""
    ratio: float = 0.0
    """0: there is none, and `most` is the number."""
    least: int = 0

    def counts(self, degrees: np.ndarray) -> np.ndarray:
        """How many neighbours nodes of these degrees get, without replacement."""
        if not self.ratio:
            return degrees if self.most < 0 else np.minimum(degrees, self.most)
        # 0.1 of 30 is a little more than 3 in binary; nobody means 4 by it.
        wanted = np.maximum(np.ceil(self.ratio * degrees * (1 - 1e-12)).astype(np.int64), self.least)
        return np.minimum(degrees, wanted if self.most < 0 else np.minimum(wanted, self.most))

    def written(self) -> int | dict[str, float | int | None]:
        """As YAML and JSON have it."""
        if not self.ratio:
            return self.most
        return {"ratio": self.ratio, "min": self.least, "max": None if self.most < 0 else self.most}


def _rule(entry: int | Share) -> Rule:
    if isinstance(entry, Share):
        return Rule(-1 if entry.max is None else entry.max, entry.ratio, entry.min)
    return Rule(int(entry))


def fanout_table(fanout: Fanout, edge_types: Sequence[EdgeType], where: str = "sampling.fanout") -> np.ndarray:
    """Resolve a fanout to int64 [hops, relations], relations in the order of `edge_types`; -1 is all, 0 is none, and of
    a share it is the most.

    Raises:
        ExperimentError: as `fanout_rules`.
    """
    rules = fanout_rules(fanout, edge_types, where)
    return np.array([[rule.most for rule in hop] for hop in rules], np.int64).reshape(len(rules), len(edge_types))


def fanout_rules(
    fanout: Fanout, edge_types: Sequence[EdgeType], where: str = "sampling.fanout"
) -> tuple[tuple[Rule, ...], ...]:
    """Resolve a fanout to a rule for each hop and relation, relations in the order of `edge_types`.

    Raises:
        ExperimentError: a relation that the graph does not have, one left without a fanout, lists of unequal length.
    """
    if not isinstance(fanout, Mapping):
        return tuple((_rule(entry),) * len(edge_types) for entry in fanout)
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
    hops = len(next(iter(given.values()), ()))
    per_relation = [given.get(name, given.get("default", ())) for name in known]
    return tuple(tuple(_rule(entries[hop]) for entries in per_relation) for hop in range(hops))
