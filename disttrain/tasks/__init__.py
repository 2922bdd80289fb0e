"""Tasks: which nodes are seeds, what their labels are, and what loss and metrics they get.

Those about the graphs of a collection are the same ones: a collection has its graphs as a node type.
"""

from __future__ import annotations

from .. import config
from ..graph.schema import GRAPH, Schema
from .node_classification import NodeClassification
from .node_regression import NodeRegression
from .task import Score, Task

__all__ = ["NodeClassification", "NodeRegression", "Score", "Task", "build_task"]


def build_task(task: config.Task, schema: Schema) -> Task:
    """Fit the experiment's task to the graph. What it learns from the labels themselves is to come: `Task.settled`.

    Raises:
        ExperimentError: the graph lacks what the task needs.
    """
    if isinstance(task, config.GraphClassification):
        settings = {name: getattr(task, name) for name in type(task).model_fields if name != "kind"}
        task = config.NodeClassification(kind="node_classification", node_type=GRAPH, **settings)
    if isinstance(task, config.GraphRegression):
        settings = {name: getattr(task, name) for name in type(task).model_fields if name != "kind"}
        task = config.NodeRegression(kind="node_regression", node_type=GRAPH, **settings)
    if isinstance(task, config.NodeRegression):
        return NodeRegression.build(task, schema)
    return NodeClassification.build(task, schema)
