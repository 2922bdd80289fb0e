"""By what the user knows the graphs of a collection: their numbers, and attributes such as a name or SMILES."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ..collection.columns import Objects
from ..collection.graphs import Graphs
from ..config import ExperimentError
from ..data.nearest import nearest
from ..graph.schema import GRAPH
from .keys import ROW

_TEXT, _NOTHING, _NUMBER = b'"', b"n", b"-0123456789NI"
"""With what JSON begins: text, null, and numbers (also NaN and Infinity)."""
_TABLE = "keys_of_graphs"


@dataclass(frozen=True)
class Attribute:
    """One value for each graph."""

    type: pa.DataType
    values: Callable[[np.ndarray], pa.Array]
    """Of the graphs of these numbers."""


@dataclass(frozen=True)
class GraphKeys:
    """See `Keys`. The number of a graph, `id`, is always among the columns."""

    num_graphs: int
    attributes: dict[str, Attribute]
    """What `--key` names; lists of ids are looked up by these, where there are some."""

    @staticmethod
    def of(graphs: Graphs, names: tuple[str, ...]) -> GraphKeys:
        """Raises:
        ExperimentError: the graphs have no such attribute, or not one number or text each.
        """
        return GraphKeys(len(graphs.collated), {name: _attribute(graphs, name) for name in names})

    @property
    def names(self) -> tuple[str, ...]:
        number = ROW
        while number in self.attributes:  # the user's own names come first
            number = f"{number}_"
        return (*self.attributes, number)

    @property
    def looked_up(self) -> tuple[str, ...]:
        return tuple(self.attributes) or self.names

    @property
    def what(self) -> str:
        return "graph"

    def take(self, rows: np.ndarray) -> dict[str, pa.Array]:
        found = {name: attribute.values(rows) for name, attribute in self.attributes.items()}
        return {**found, self.names[-1]: pa.array(rows, pa.int64())}

    def known(self, database: Any) -> str:
        rows = np.arange(self.num_graphs)
        columns = self.take(rows)
        keys = {f"key{n}": columns[name] for n, name in enumerate(self.looked_up)}
        database.register(_TABLE, pa.table({**keys, "row": pa.array(rows, pa.int64())}))
        return _TABLE

    def described(self, kinds: list[str]) -> str:
        if not self.attributes:
            return f"; ids are the numbers of graphs, 0 to {self.num_graphs - 1} (--key names an attribute instead)"
        return f", whose --key is {', '.join(f'{name} ({kind})' for name, kind in zip(self.attributes, kinds))}"


def _attribute(graphs: Graphs, name: str) -> Attribute:
    known = graphs.schema.nodes[GRAPH].attributes
    if name in known and name not in graphs.masks:
        shape = known[name].shape
        if shape not in ((), (1,)):
            raise ExperimentError(f"--key {name}: expected one value for each graph, it has the shape {list(shape)}")
        array = graphs.node_attribute(GRAPH, name)
        return Attribute(
            pa.from_numpy_dtype(array.dtype),
            lambda rows: pa.array(np.asarray(array[rows]).reshape(-1), from_pandas=True),
        )
    column = graphs.collated.stores[None].columns.get(name) if None in graphs.collated.stores else None
    if isinstance(column, Objects):
        return _of_objects(name, column)
    there = [key for key in known if key not in graphs.masks]
    if None in graphs.collated.stores:
        columns = graphs.collated.stores[None].columns.items()
        there += [key for key, column in columns if isinstance(column, Objects)]
    raise ExperimentError(
        f"--key {name}: the graphs have no such attribute with a number or text for each{nearest(name, there)}"
    )


def _of_objects(name: str, column: Objects) -> Attribute:
    """Raises:
    ExperimentError: they are neither all text nor all numbers; says which graph is not.
    """
    first = column.text[column.slices[:-1]]
    text, nothing, number = (np.isin(first, np.frombuffer(kind, np.uint8)) for kind in (_TEXT, _NOTHING, _NUMBER))
    type_: pa.DataType = pa.string() if text.any() or not number.any() else pa.float64()
    wrong = np.flatnonzero(~((text if pa.types.is_string(type_) else number) | nothing))
    if len(wrong):
        value = json.loads(column.text[column.slices[wrong[0]] : column.slices[wrong[0] + 1]].tobytes())
        expected = "text" if text.any() else "text or a number"
        raise ExperimentError(f"--key {name}: expected {expected} for each graph, graph {wrong[0]} has {value!r}")

    def values(rows: np.ndarray) -> pa.Array:
        found = (json.loads(column.text[column.slices[i] : column.slices[i + 1]].tobytes()) for i in rows)
        return pa.array(found, type_, from_pandas=True)

    return Attribute(type_, values)
