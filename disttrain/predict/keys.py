"""The user's own keys of a node type, as they lie in the partition directory: one Parquet file, in the user's order."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..config import ExperimentError
from ..graph.graph import Graph

ROW = "id"
"""What stands for the key where the data has none: the row of the node in the user's data, from 0 on."""

_KEY = "key"
"""The column of the file."""


@dataclass
class NodeKeys:
    """Row of the user's data -> key, one column or several. Reads a row group at a time, and keeps the last one."""

    names: tuple[str, ...]
    """Columns as the user calls them."""
    path: Path | None
    """None: the data has no keys, rows stand for them."""
    composite: bool = False
    """The file's one column, `key`, holds structs of the columns."""
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
            return NodeKeys((ROW,), None)
        path = graph.directory / name
        try:
            file = pq.ParquetFile(path)
        except (OSError, pa.ArrowException) as error:
            raise ExperimentError(f'the keys of node type "{node_type}" cannot be read from {path}: {error}') from error
        kind = file.schema_arrow.field(_KEY).type
        composite = pa.types.is_struct(kind)
        names = tuple(field.name for field in kind) if composite else (_name(graph.manifest, node_type),)
        counts = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
        return NodeKeys(names, path, composite, file, np.cumsum([0, *counts]))

    def take(self, rows: np.ndarray) -> dict[str, pa.Array]:
        """The keys of these rows, ascending int64; user's column -> values."""
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
