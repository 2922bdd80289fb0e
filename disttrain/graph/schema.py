"""What a graph consists of, without its data: types, counts, attributes. Small, the same on every rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
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

    def to_json(self) -> dict[str, Any]:
        """Types and attributes, without `info`."""
        entries = [[list(key) if isinstance(key, tuple) else key, asdict(entry)] for key, entry in self._all()]
        return {"types": entries}

    @staticmethod
    def from_json(found: dict[str, Any]) -> Schema:
        nodes: dict[str, Nodes] = {}
        edges: dict[EdgeType, Edges] = {}
        for key, entry in found["types"]:
            attributes = {
                name: Attribute(**{**attribute, "shape": tuple(attribute["shape"])})
                for name, attribute in entry["attributes"].items()
            }
            if isinstance(key, str):
                nodes[key] = Nodes(entry["count"], attributes)
            else:
                edges[(key[0], key[1], key[2])] = Edges(entry["count"], attributes)
        return Schema(nodes, edges)

    def widened(self, known: Schema) -> Schema:
        """With values' ranges that hold those of another schema too, and missing values where that has some."""
        theirs = dict(known._all())

        def wide(owner: str | EdgeType, entry: Any) -> Any:
            other = theirs[owner].attributes if owner in theirs else {}
            attributes = {
                name: _wide(attribute, other[name]) if name in other else attribute
                for name, attribute in entry.attributes.items()
            }
            return replace(entry, attributes=attributes)

        nodes = {name: wide(name, entry) for name, entry in self.nodes.items()}
        return replace(self, nodes=nodes, edges={name: wide(name, entry) for name, entry in self.edges.items()})

    def _all(self) -> list[tuple[Any, Any]]:
        return [*self.nodes.items(), *self.edges.items()]


def _wide(a: Attribute, b: Attribute) -> Attribute:
    lows, highs = ([value for value in pair if value is not None] for pair in ((a.low, b.low), (a.high, b.high)))
    return replace(a, low=min(lows, default=None), high=max(highs, default=None), missing=max(a.missing, b.missing))


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
