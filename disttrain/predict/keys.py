"""The user's own keys of what is predicted.

Those of a node type lie in the partition directory: one Parquet file, in the user's order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..config import ExperimentError
from ..graph.graph import Graph

ROW = "id"
"""What stands for the key where the data has none: the row of the node in the user's data, from 0 on."""

_KEY = "key"
"""The column of the file."""


class Keys(Protocol):
    """By what the user knows the nodes, or the graphs of a collection."""

    @property
    def names(self) -> tuple[str, ...]:
        """The columns of the files, as the user calls them."""
        ...

    @property
    def looked_up(self) -> tuple[str, ...]:
        """Those that a list of ids has."""
        ...

    @property
    def what(self) -> str:
        """Whose keys they are, for messages: `node of type "user"`."""
        ...

    def take(self, rows: np.ndarray) -> dict[str, pa.Array]:
        """The keys of these rows of the user's data, ascending int64; user's column -> values."""
        ...

    def known(self, database: Any) -> str:
        """SQL of a table with the columns key0, key1, ... of `looked_up`, and `row`, an int64.

        Args:
            database: a DuckDB connection, in which tables may be registered for it.
        """
        ...

    def described(self, kinds: list[str]) -> str:
        """What an id has to be: the end of a message that begins with `what`.

        Args:
            kinds: the SQL types of `looked_up`.
        """
        ...


@dataclass
class NodeKeys:
    """Row of the user's data -> key, one column or several. Reads a row group at a time, and keeps the last one."""

    names: tuple[str, ...]
    path: Path | None
    """None: the data has no keys, rows stand for them."""
    composite: bool = False
    """The file's one column, `key`, holds structs of the columns."""
    node_type: str = ""
    num_nodes: int = 0
    _file: Any = field(default=None, repr=False)
    _starts: np.ndarray = field(default_factory=lambda: np.zeros(1, np.int64), repr=False)
    _group: tuple[int, Any] = field(default=(-1, None), repr=False)

    @staticmethod
    def of(graph: Graph, node_type: str) -> NodeKeys:
        """Raises:
        ExperimentError: the file is not there, or no Parquet.
        """
        name = graph.manifest.get("keys", {}).get(node_type)
        if name is None:
            return NodeKeys((ROW,), None, node_type=node_type, num_nodes=graph.num_nodes(node_type))
        path = graph.directory / name
        try:
            file = pq.ParquetFile(path)
        except (OSError, pa.ArrowException) as error:
            raise ExperimentError(f'the keys of node type "{node_type}" cannot be read from {path}: {error}') from error
        kind = file.schema_arrow.field(_KEY).type
        composite = pa.types.is_struct(kind)
        names = tuple(field.name for field in kind) if composite else (_name(graph.manifest, node_type),)
        counts = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
        starts = np.cumsum([0, *counts])
        return NodeKeys(names, path, composite, node_type, int(starts[-1]), file, starts)

    @property
    def looked_up(self) -> tuple[str, ...]:
        return self.names

    @property
    def what(self) -> str:
        return f'node of type "{self.node_type}"'

    def known(self, database: Any) -> str:
        if self.path is None:
            return f"(SELECT range AS key0, range AS row FROM range({self.num_nodes}))"
        columns = [f'"key".{quoted(name)}' for name in self.names] if self.composite else ['"key"']
        named = ", ".join(f"{column} AS key{n}" for n, column in enumerate(columns))
        source = f"read_parquet({text_literal(str(self.path))}, file_row_number = true)"
        return f"(SELECT {named}, file_row_number AS row FROM {source})"

    def described(self, kinds: list[str]) -> str:
        if self.path is None:
            return "; ids are rows of the data, whole numbers from 0 on"
        return f", whose key is {', '.join(f'{name} ({kind})' for name, kind in zip(self.names, kinds))}"

    def take(self, rows: np.ndarray) -> dict[str, pa.Array]:
        if self.path is None:
            return {ROW: pa.array(rows, pa.int64())}
        groups = np.searchsorted(self._starts, rows, side="right") - 1
        pieces: list[pa.Table] = [self._read(int(group), rows[groups == group]) for group in np.unique(groups)]
        table = pa.concat_tables(pieces) if pieces else self._file.schema_arrow.empty_table()
        columns = table.flatten().columns if self.composite else table.columns
        return {name: _one_chunk(column) for name, column in zip(self.names, columns, strict=True)}

    def _read(self, group: int, rows: np.ndarray) -> pa.Table:
        if self._group[0] != group:
            self._group = group, self._file.read_row_group(group)
        return self._group[1].take(pa.array(rows - self._starts[group]))


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _name(manifest: dict[str, Any], node_type: str) -> str:
    """How the user calls a key of one column: as the experiment did that made the partitions."""
    data = manifest.get("info", {}).get("made_from", {}).get("data", {})
    key = data.get("nodes", {}).get(node_type, {}).get("key")
    return key[0] if isinstance(key, list) and len(key) == 1 else _KEY


def quoted(column: str) -> str:
    """A column's name in SQL."""
    return '"' + column.replace('"', '""') + '"'


def text_literal(value: str) -> str:
    """Text in SQL."""
    return "'" + value.replace("'", "''") + "'"
