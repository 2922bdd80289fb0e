"""Features in fp16 on the way and in the cache: which, and whether fp16 can hold them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..config import Experiment, edge_type_name
from ..graph.schema import Attribute, Schema, Wants

_LARGEST_HALF = 65504.0


def halved_attributes(experiment: Experiment, schema: Schema, task: Any, model: Any) -> Wants:
    """What `sampling.feature_precision: fp16` concerns: float32 that the model wants, and the task does not."""
    if experiment.sampling.feature_precision == "exact":
        return Wants()

    def ours(names: tuple[str, ...], attributes: Mapping[str, Attribute], theirs: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(n for n in names if n not in theirs and attributes[n].dtype == "float32")

    wants, kept = model.wants, task.wants
    return Wants(
        nodes={t: ours(n, schema.nodes[t].attributes, kept.nodes.get(t, ())) for t, n in wants.nodes.items()},
        edges={t: ours(n, schema.edges[t].attributes, kept.edges.get(t, ())) for t, n in wants.edges.items()},
    )


def halves_conflicts(experiment: Experiment, schema: Schema, task: Any, model: Any) -> list[str]:
    """Attributes whose values fp16 cannot hold, where they would be sent in it."""
    halved = halved_attributes(experiment, schema, task, model)
    concerned = [
        (node_type, name, schema.nodes[node_type]) for node_type, names in halved.nodes.items() for name in names
    ]
    concerned += [
        (edge_type_name(edge_type), name, schema.edges[edge_type])
        for edge_type, names in halved.edges.items()
        for name in names
    ]
    found = []
    for owner, name, entry in concerned:
        low, high = entry.attributes[name].low, entry.attributes[name].high
        if low is None or high is None:
            what = "values that are not finite"
        elif max(-low, high) > _LARGEST_HALF:
            what = f"values from {low:g} to {high:g}"
        else:
            continue
        if entry.count:
            found.append(
                f"sampling.feature_precision is fp16, which holds numbers of up to 65504, but `{name}` of {owner} has "
                f"{what}; scale it, or set sampling.feature_precision=exact"
            )
    return found
