"""How many neighbours are drawn, how, and in batches of what size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt

from .section import Relation, Section

Fanout = Annotated[int, Field(ge=-1, le=1_000_000)]


class Sampling(Section):
    fanout: tuple[Fanout, ...] | dict[Relation | Literal["default"], tuple[Fanout, ...]] = (10, 5)
    """Neighbours per hop: -1 all, 0 none. One list for all relations, or a list per relation and `default`."""
    batch_size: PositiveInt = 512
    """Seeds per rank and step."""
    eval_batch_size: PositiveInt | None = None
    """Null: `batch_size`."""
    eval_fanout: tuple[Fanout, ...] | dict[Relation | Literal["default"], tuple[Fanout, ...]] | None = None
    """Fanout when evaluating; null: `fanout`."""
    replace: bool = False
    """Draw with replacement."""
    workers: Annotated[int, Field(ge=0)] = 1
    """Loader threads per rank; 0: sample in the training thread."""
    prefetch: PositiveInt = 4
    """Batches per worker that may wait, ready, for the trainer."""
    locality: bool = True
    """A rank's seeds come from its own machine's nodes first. false: a rank's seeds do not depend on the cut."""
    shuffle: bool = True
    backend: Literal["auto", "numba"] = "auto"


def fanout_conflicts(layers: int, fanouts: Mapping[str, Any]) -> dict[tuple[str, ...], str]:
    """Fanouts that are not one per layer: their path within `sampling`, and what is wrong.

    Args:
        layers: of the model.
        fanouts: key in `sampling` -> a list, a list per relation, or None.
    """
    conflicts = {}
    for key, fanout in fanouts.items():
        for path, hops in (
            {(key, relation): hops for relation, hops in fanout.items()}
            if isinstance(fanout, dict)
            else {(key,): fanout}
        ).items():
            if hops is not None and len(hops) != layers:
                conflicts[path] = (
                    f"has {len(hops)} hops ({list(hops)}), but model.layers is {layers}; give one fanout per layer"
                )
    return conflicts
