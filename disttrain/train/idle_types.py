"""Node types that cannot matter to the target: from them no relations lead to it within the layers of the model."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from ..config import EdgeType, Experiment, GeneratedData, TablesData
from ..config.counted import counted
from ..graph.schema import Schema
from ..models.blocks import needed_types

logger = logging.getLogger(__name__)

_MOST_SHOWN = 5


def tell_idle(experiment: Experiment, schema: Schema, target: str) -> None:
    """Warn, in one line, if no edge leads to the target, or if some node types take no part.

    Cost: none; the schema knows.
    """
    edges = {edge_type: relation.count for edge_type, relation in schema.edges.items()}
    if line := idle_line(experiment, schema.nodes, edges, target):
        logger.warning(line)


def idle_line(experiment: Experiment, node_types: Iterable[str], edges: Mapping[EdgeType, int], target: str) -> str:
    """What to say, and what helps; empty if all node types take part.

    Args:
        edges: of each relation, how many.
    """
    if not any(count for edge_type, count in edges.items() if edge_type[2] == target):
        return (
            f'no edge leads to "{target}": the model sees nothing but its own features. Add {_reverse(experiment)}, '
            "or other relations that end at it"
        )
    layers = experiment.model.layers
    needed = needed_types(edges, target, layers)[0]
    idle = [node_type for node_type in node_types if node_type not in needed]
    if not idle:
        return ""
    takes, it = ("takes", "it") if len(idle) == 1 else ("take", "them")
    return (
        f"{some(idle)} cannot reach {target} in {counted(layers, 'layer')} and {takes} no part: add "
        f"{_reverse(experiment)} or layers, or leave {it} out"
    )


def _reverse(experiment: Experiment) -> str:
    """What makes reverse relations of a source."""
    data = experiment.data
    if isinstance(data, TablesData):
        return "reverse relations (`reverse: true`, for all in data or for one of its relations)"
    if isinstance(data, GeneratedData):
        return "reverse relations (`reverse: true` in data.edges)"
    if data.transforms:
        return "reverse relations (`ToUndirected` among data.transforms)"
    return "reverse relations (data.transforms=[ToUndirected])"


def some(names: list[str]) -> str:
    """The first of them, and how many more."""
    shown = ", ".join(f'"{name}"' for name in names[:_MOST_SHOWN])
    return shown + (f" and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else "")
