"""Labels: how many nodes or graphs of each split have which."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..collection.graphs import Graphs
from ..data.split import entries_there
from ..graph.graph import Graph

_ROWS_AT_ONCE = 1 << 20


def label_facts(graph: Graph | Graphs, task: Any) -> dict[str, Any]:
    """Of the target: nodes with and without a label, and per split how many nodes, and how many of each class.

    Classes: for one class per node, nodes of that class; for several labels, nodes that have the label. Of several
    labels or targets, also the share of a split's nodes that lack each. Cost: a pass over labels and masks.
    """
    node_type, count = task.node_type, graph.num_nodes(task.node_type)
    num_classes = getattr(task, "num_classes", 0)
    names = ("train", "val", "test")
    sizes, labelled = dict.fromkeys(names, 0), 0
    classes = {name: np.zeros(num_classes, np.int64) for name in names}
    numbers = {name: _Moments() for name in names}
    columns = num_classes if getattr(task, "multilabel", False) else getattr(task, "num_targets", 1)
    lacking = {name: np.zeros(columns, np.int64) for name in names}
    for first in range(0, count, _ROWS_AT_ONCE):
        rows = slice(first, min(first + _ROWS_AT_ONCE, count))
        labels = np.asarray(graph.node_attribute(node_type, task.label)[rows])
        present = task.has_label(labels)
        labelled += int(present.sum())
        for name in names:
            chosen = np.asarray(graph.node_attribute(node_type, task.splits[name])[rows]).astype(bool)
            sizes[name] += int(chosen.sum())
            own = labels[chosen & present]
            if columns > 1:
                lacking[name] += (~entries_there(own, not num_classes)).sum(axis=0, dtype=np.int64)
            if not num_classes:
                numbers[name].add(own[entries_there(own, numbers=True)].astype(np.float64))
            elif task.multilabel:
                classes[name] += (own > 0).sum(axis=0, dtype=np.int64)
            else:
                classes[name] += np.bincount(own.reshape(-1).astype(np.int64), minlength=num_classes)
    known = graph.schema.info.get("classes", {}).get(node_type) or [str(n) for n in range(num_classes)]
    return {
        "attribute": task.label,
        "nodes": count,
        "labelled": labelled,
        "several_per_node": bool(getattr(task, "multilabel", False)),
        "splits": {
            name: {
                "nodes": sizes[name],
                **(
                    {"classes": {str(known[n]): int(c) for n, c in enumerate(classes[name]) if n < len(known)}}
                    if num_classes
                    else numbers[name].facts()
                ),
                **({"missing": (lacking[name] / max(1, sizes[name])).tolist()} if columns > 1 else {}),
            }
            for name in names
        },
    }


class _Moments:
    """Mean, deviation and range of numbers that come in pieces (Chan, Golub and LeVeque, COMPSTAT 1982); of dates in
    seconds, too, whose squares have more digits than a float."""

    def __init__(self) -> None:
        self.count, self.mean, self.squares, self.low, self.high = 0, 0.0, 0.0, np.inf, -np.inf

    def add(self, numbers: np.ndarray) -> None:
        if not numbers.size:
            return
        mean, total = float(numbers.mean()), self.count + numbers.size
        apart = mean - self.mean
        self.squares += float(np.square(numbers - mean).sum()) + apart**2 * self.count * numbers.size / total
        self.mean, self.count = self.mean + apart * numbers.size / total, total
        self.low, self.high = min(self.low, float(numbers.min())), max(self.high, float(numbers.max()))

    def facts(self) -> dict[str, Any]:
        if not self.count:
            return {}
        std = (self.squares / self.count) ** 0.5
        return {"mean": self.mean, "std": std, "low": self.low, "high": self.high}
