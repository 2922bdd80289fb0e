"""Labels of nodes: which type has them, whether they are there, and what the training ones add up to."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from ..config import ExperimentError
from ..data.nearest import nearest
from ..graph.graph import Graph
from ..graph.schema import GRAPH, Attribute, Schema
from ..world import World

SPLITS = {"train": "train_mask", "val": "val_mask", "test": "test_mask"}

_EXACT_ROWS = 1 << 24


def find_label(schema: Schema, node_type: str | None, label: str) -> tuple[str, Attribute]:
    """The node type with the label (of that name, or the only one), and the label.

    Raises:
        ExperimentError: there is no such type or label, no split, or the label has more than two axes.
    """
    node_type = _node_type(schema, node_type, label)
    attributes = schema.nodes[node_type].attributes
    if label not in attributes:
        raise ExperimentError(
            f'task.label: node type "{node_type}" has no attribute "{label}"{nearest(label, attributes)}'
        )
    for mask in SPLITS.values():
        if mask not in attributes:
            raise ExperimentError(f'task.node_type: "{node_type}" has no {mask}; say with data.split how to divide it')
    found = attributes[label]
    if len(found.shape) > 1:
        rows = "1" if node_type == GRAPH else "num_nodes"
        raise ExperimentError(
            f"{label_place(node_type, label)} has shape [{rows}, {', '.join(map(str, found.shape))}]; expected one or "
            "two axes"
        )
    return node_type, found


def label_place(node_type: str, label: str) -> str:
    """How messages begin."""
    if node_type == GRAPH:
        return f'task.label: attribute "{label}" of the graphs'
    return f'task.label: attribute "{label}" of node type "{node_type}"'


def _node_type(schema: Schema, node_type: str | None, label: str) -> str:
    if node_type is not None:
        if node_type not in schema.nodes:
            raise ExperimentError(
                f'task.node_type: the graph has no node type "{node_type}"{nearest(node_type, schema.nodes)}'
            )
        return node_type
    having = [name for name, nodes in schema.nodes.items() if label in nodes.attributes]
    if len(having) != 1:
        came = f"several have ({', '.join(having)})" if having else "none has"
        raise ExperimentError(
            f'task.node_type: expected one node type with the attribute "{label}", {came}; '
            f"set task.node_type to one of {', '.join(schema.nodes)}"
        )
    return having[0]


def own_training_labels(world: World, graph: Graph, node_type: str, label: str) -> np.ndarray:
    """The labels of the training nodes that this machine owns, [n, ...]; none on ranks but the first of a machine.

    Over all ranks, each training label is there once.
    """
    low, high = graph.node_books[node_type].range_of(graph.machine)
    if not world.leads_machine:
        high = low
    labels = graph.node_attribute(node_type, label)[low:high]
    return np.asarray(labels[graph.node_attribute(node_type, SPLITS["train"])[low:high]])


def exact_sum(values: np.ndarray) -> Fraction:
    """The sum of finite float64 numbers without any rounding, so that it does not depend on their order.

    Each is a whole number of 54 bits, taken in two halves, times a power of two: halves of the same power add up in
    float64 without loss as long as there are no more than 2**26 of them. Cost: some 20 ns a number.
    """
    total = Fraction(0)
    for start in range(0, len(values), _EXACT_ROWS):
        mantissa, exponent = np.frexp(values[start : start + _EXACT_ROWS].astype(np.float64))
        whole = np.ldexp(mantissa, 53).astype(np.int64)
        lowest = int(exponent.min())
        for half, power in ((whole >> 26, 26), (whole & ((1 << 26) - 1), 0)):
            sums = np.bincount(exponent - lowest, weights=half)
            for place in np.flatnonzero(sums):
                total += int(sums[place]) * Fraction(2) ** (lowest + int(place) + power - 53)
    return total


def mean_and_std(world: World, columns: np.ndarray, what: str) -> tuple[np.ndarray, np.ndarray]:
    """Of each column of what all ranks give together, float64 [K]; exact, so the same however it is divided. Both are 0
    of a column that has nothing.

    Args:
        columns: this rank's rows, [n, K], finite or NaN, which is left out.
    """
    width, there = columns.shape[1], ~np.isnan(columns)
    own = [columns[there[:, k], k] for k in range(width)]
    counts = world.gather([len(values) for values in own], what)
    count = [max(1, sum(each[k] for each in counts)) for k in range(width)]
    sums = world.gather([exact_sum(values) for values in own], what)
    mean = np.array([float(sum(s[k] for s in sums) / count[k]) for k in range(width)])
    squares = world.gather([exact_sum(np.square(values - mean[k])) for k, values in enumerate(own)], what)
    variance = [float(sum(s[k] for s in squares) / count[k]) for k in range(width)]
    return mean, np.sqrt(variance)
