"""By what neighbours are drawn: evenly, by weight, by time; and whether the graph has what that needs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from ..config import EdgeType, Sampling, edge_type_name
from ..config.check import nearest
from ..graph.schema import Attribute, Schema
from .temporal import NOT_A_TIME

_EXACT = 2**53
"""Up to here floating numbers hold all whole ones."""


@dataclass(frozen=True)
class Kind:
    """By what neighbours are drawn: the settings of the same names."""

    weight_attr: str | None = None
    time_attr: str | None = None
    latest: bool = False
    """temporal_strategy: last"""
    seed_time: str | None = None
    """Node attribute that holds the times of the seeds."""
    floating: bool = False
    """Times are compared as floating numbers."""


PLAIN = Kind()


def kind_of(sampling: Sampling, schema: Schema, node_type: str) -> Kind:
    """What the settings mean on this graph, for seeds of one node type."""
    times = _time_attributes(sampling, schema, node_type).values()
    return Kind(
        weight_attr=sampling.weight_attr,
        time_attr=sampling.time_attr,
        latest=sampling.time_attr is not None and sampling.temporal_strategy == "last",
        seed_time=seed_time_attribute(sampling),
        floating=any(_is_floating(attribute) for attribute in times),
    )


def missing_attributes(
    sampling: Sampling,
    nodes: Mapping[str, Collection[str]],
    edges: Mapping[EdgeType, Collection[str]],
    node_type: str | None,
) -> list[str]:
    """Attributes that the settings name and the graph does not have, a line each.

    Args:
        nodes, edges: the names of the attributes of each type.
        node_type: of the seeds, where it is known.
    """
    found = []
    of_edges = _names(edges.values())
    if sampling.weight_attr is not None and sampling.weight_attr not in of_edges:
        found.append(
            f"sampling.weight_attr: no relation has an edge attribute `{sampling.weight_attr}`"
            f"{_hint(sampling.weight_attr, of_edges)}"
        )
    if sampling.time_attr is None:
        return found
    of_all = _names([*nodes.values(), *edges.values()])
    if sampling.time_attr not in of_all:
        found.append(
            f"sampling.time_attr: no node type and no relation has an attribute `{sampling.time_attr}`"
            f"{_hint(sampling.time_attr, of_all)}"
        )
    seed_time = sampling.seed_time or sampling.time_attr
    if node_type is not None and node_type in nodes and seed_time not in nodes[node_type]:
        key = "seed_time" if sampling.seed_time is not None else "time_attr"
        found.append(
            f"sampling.{key}: the node type of the seeds, `{node_type}`, has no attribute `{seed_time}`; name the one "
            f"that holds the times of the seeds, sampling.seed_time{_hint(seed_time, nodes[node_type])}"
        )
    return found


def kind_conflicts(sampling: Sampling, schema: Schema, node_type: str) -> list[str]:
    """Where weights and times do not fit the graph, a line each: missing, or not of values that can be drawn by."""
    found = missing_attributes(
        sampling,
        {key: nodes.attributes for key, nodes in schema.nodes.items()},
        {key: edges.attributes for key, edges in schema.edges.items()},
        node_type,
    )
    for edge_type, edges in schema.edges.items():
        weight = edges.attributes.get(sampling.weight_attr or "")
        if weight is not None and edges.count and (wrong := _wrong_weights(weight)):
            found.append(
                f"sampling.weight_attr: `{sampling.weight_attr}` of `{edge_type_name(edge_type)}` {wrong}; weights are "
                "numbers from 0 on, one for each edge"
            )
    if sampling.time_attr is None:
        return found
    times = _time_attributes(sampling, schema, node_type)
    for where, attribute in times.items():
        if wrong := _wrong_times(attribute):
            found.append(f"sampling.time_attr: {where} {wrong}; times are whole or floating numbers, one for each row")
    exact = [where for where, a in times.items() if not _is_floating(a) and _largest(a) > _EXACT]
    floating = [where for where, a in times.items() if _is_floating(a)]
    if exact and floating:
        found.append(
            f"sampling.time_attr: {exact[0]} holds whole numbers above 2**53, which do not compare exactly with the "
            f"floating ones of {floating[0]}; give both in the same unit and type"
        )
    return found


def seed_time_attribute(sampling: Sampling) -> str | None:
    """The node attribute that holds the seeds' times; None where times do not matter."""
    return None if sampling.time_attr is None else sampling.seed_time or sampling.time_attr


def _time_attributes(sampling: Sampling, schema: Schema, node_type: str) -> dict[str, Attribute]:
    """All attributes that times are read from, by what messages call them."""
    if sampling.time_attr is None:
        return {}
    name, found = sampling.time_attr, {}
    for key, owner in {**schema.nodes, **{edge_type_name(e): edges for e, edges in schema.edges.items()}}.items():
        if name in owner.attributes:
            found[f"`{name}` of `{key}`"] = owner.attributes[name]
    seed_time = seed_time_attribute(sampling)
    if seed_time in schema.nodes[node_type].attributes:
        found[f"`{seed_time}` of `{node_type}`"] = schema.nodes[node_type].attributes[seed_time]
    return found


def _is_floating(attribute: Attribute) -> bool:
    return attribute.dtype.startswith("float")


def _is_a_number(attribute: Attribute) -> bool:
    return attribute.shape in ((), (1,))


def _largest(attribute: Attribute) -> float:
    """Of those that are not missing, which the smallest int64 stands for."""
    low = 0 if attribute.low == NOT_A_TIME else attribute.low or 0
    return max(abs(low), abs(attribute.high or 0))


def _wrong_weights(weight: Attribute) -> str | None:
    if not _is_a_number(weight):
        return f"has rows of shape {list(weight.shape)}"
    if weight.missing:
        return f"is missing (NaN) in {weight.missing} edges"
    if _is_floating(weight) and (weight.low is None or weight.high is None):
        return "is infinite in some edges"
    if weight.low is not None and weight.low < 0:
        return f"is negative in some edges, down to {weight.low:g}"
    return None


def _wrong_times(time: Attribute) -> str | None:
    if not _is_a_number(time):
        return f"has rows of shape {list(time.shape)}"
    if time.dtype == "bool":
        return "is true or false"
    if time.high is not None and not _is_floating(time) and time.high >= 2**63:
        return f"goes up to {time.high}, past 2**63"
    return None


def _names(owners: Iterable[Collection[str]]) -> set[str]:
    return {name for names in owners for name in names}


def _hint(name: str | None, known: Collection[str]) -> str:
    close = nearest(name, known)
    if close:
        return f"; did you mean `{close}`?"
    return f"; there are {', '.join(sorted(known))}" if known else "; there are none"
