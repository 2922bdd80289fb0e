"""What a graph consists of, without its data: types, counts, attributes. Small, the same on every rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..config import EdgeType

GRAPH = "graph"
"""The node type that stands for the graphs of a collection."""


@dataclass(frozen=True)
class Attribute:
    """One node- or edge-aligned attribute."""

    dtype: str
    """NumPy's name: "float32", "int64", "bool"."""
    shape: tuple[int, ...] = ()
    """Of one row: `(128,)` for `x` of shape [num_nodes, 128], `()` for a vector."""
    low: float | None = None
    """Smallest value over all rows, NaN left out; None for booleans and where there are no rows."""
    high: float | None = None
    """Largest value over all rows, likewise."""
    missing: int = 0
    """How many values are NaN."""


@dataclass(frozen=True)
class Nodes:
    """One node type."""

    count: int
    attributes: dict[str, Attribute] = field(default_factory=dict)


@dataclass(frozen=True)
class Edges:
    """One edge type."""

    count: int
    attributes: dict[str, Attribute] = field(default_factory=dict)


@dataclass(frozen=True)
class Schema:
    """Node types and edge types, in the canonical order that everything else follows (that of the HeteroData)."""

    nodes: dict[str, Nodes]
    edges: dict[EdgeType, Edges]
    info: dict[str, Any] = field(default_factory=dict)
    """What the data source adds, e.g. `{"classes": {"flight": ["on time", "late"]}}`."""


def _merged(a: Mapping[Any, tuple[str, ...]], b: Mapping[Any, tuple[str, ...]]) -> dict[Any, tuple[str, ...]]:
    return {key: tuple(dict.fromkeys((*a.get(key, ()), *b.get(key, ())))) for key in dict.fromkeys((*a, *b))}


@dataclass(frozen=True)
class Wants:
    """What a mini-batch has to carry, as model and task say; everything else stays at home."""

    nodes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Node type -> names of node attributes."""
    edges: Mapping[EdgeType, tuple[str, ...]] = field(default_factory=dict)
    """Edge type -> names of edge attributes."""
    degrees: frozenset[EdgeType] = frozenset()
    """Edge types whose degrees in the whole graph are wanted at both ends."""

    def __or__(self, other: Wants) -> Wants:
        return Wants(
            nodes=_merged(self.nodes, other.nodes),
            edges=_merged(self.edges, other.edges),
            degrees=self.degrees | other.degrees,
        )
