"""What a model was trained on, as its checkpoint says it, held against the graphs that it shall predict."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..collection.graphs import Graphs
from ..config import ExperimentError, GraphRegression, Task, edge_type_name
from ..data.split import check_labels, entries_there, has_label
from ..graph.schema import GRAPH, Schema
from ..tasks.labels import label_place


@dataclass(frozen=True)
class TrainedOn:
    """A collection."""

    fingerprint: str
    schema: Schema | None
    """None: the checkpoint does not say; then the graphs have to be those of the training."""

    @staticmethod
    def of(state: dict[str, Any]) -> TrainedOn:
        """Args:
        state: of the checkpoint.
        """
        schema = state.get("schema")
        return TrainedOn(state["run"]["data"]["fingerprint"], None if schema is None else Schema.from_json(schema))

    def knows(self, graphs: Graphs) -> bool:
        """Whether they are those of the training."""
        return self.schema is None or graphs.fingerprint == self.fingerprint


def described_schema(graph: Any) -> dict[str, Any] | None:
    """What `TrainedOn` needs to know, for the checkpoint."""
    return graph.schema.to_json() if isinstance(graph, Graphs) else None


def labelled_for(graphs: Graphs, task: Task, known: Schema) -> Graphs:
    """Graphs that a model shall predict: with the label of the training where they have it, else with none (NaN).

    Raises:
        ExperimentError: other types of nodes or relations than in training, or another kind of label.
    """
    ours, theirs = ([_named(key) for key in (*s.nodes, *s.edges)] for s in (graphs.schema, known))
    if sorted(ours) != sorted(theirs):
        raise ExperimentError(
            f"the graphs are not of the kind that the model was trained on: they have {', '.join(ours)}; there were "
            f"{', '.join(theirs)}"
        )
    where, then = label_place(GRAPH, task.label), known.nodes[GRAPH].attributes[task.label]
    there = task.label in graphs.schema.nodes[GRAPH].attributes
    now = np.asarray(graphs.node_attribute(GRAPH, task.label)) if there else _nothing(len(graphs.collated), then.shape)
    if now.shape[1:] != then.shape:
        raise ExperimentError(f"{where} has the shape {now.shape[1:]} in each graph, in training it had {then.shape}")
    numbers = isinstance(task, GraphRegression)
    labels = now[has_label(now, numbers)]
    check_labels(labels, where, numbers)
    highest = labels[entries_there(labels, numbers)].max(initial=0)
    if not numbers and then.high is not None and highest > then.high:
        raise ExperimentError(f"{where}: the highest class is {highest}, in training it was {then.high:g}")
    return replace(graphs, masks={**graphs.masks, **({} if there else {task.label: now})}, known=known)


def _nothing(count: int, shape: tuple[int, ...]) -> np.ndarray:
    return np.full((count, *shape), np.nan, np.float32)


def _named(key: Any) -> str:
    return edge_type_name(key) if isinstance(key, tuple) else key
