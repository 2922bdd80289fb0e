"""How nodes are scored: in validation, in the test, and by `disttrain predict`."""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveInt

from .section import Section


class Evaluate(Section):
    method: Literal["sampled", "layerwise"] = "sampled"
    """`sampled`: from drawn neighbours, as in training. `layerwise`: exact, layer after layer over the whole graph,
    each node once with all its neighbours; see docs/predict.md for what either costs."""
    batch_edges: PositiveInt = 200_000
    """`layerwise`: nodes and edges per batch, at most, unless one node has more."""
    scratch: str | None = None
    """`layerwise`: folder on each machine for the vectors between layers; null: the system's for temporary files."""
