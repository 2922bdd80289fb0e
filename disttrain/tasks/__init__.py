"""Tasks: which nodes are seeds, what their labels are, and what loss and metrics they get."""

from __future__ import annotations

from .. import config
from ..graph.schema import Schema
from .node import NodeClassification

__all__ = ["NodeClassification", "build_task"]


def build_task(task: config.Task, schema: Schema) -> NodeClassification:
    """Fit the experiment's task to the graph.

    Raises:
        ExperimentError: the graph lacks what the task needs.
    """
    return NodeClassification.build(task, schema)
