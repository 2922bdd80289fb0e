"""Edges from keys: foreign keys and edge tables, joined to the dense ids of the rows that they name."""

from __future__ import annotations

import duckdb
import numpy as np

from ..config import EdgeType, NodeTable, edge_type_name
from .table_columns import ROW, Table, quoted


def key_column(table: Table) -> str:
    """The column that identifies a row of a node table: its key, or the row's number in the file."""
    assert isinstance(table.settings, NodeTable)
    return table.settings.key or ROW


def index_keys(database: duckdb.DuckDBPyConnection, table: Table) -> list[str]:
    """Make the table of keys and dense ids that joins use. What is wrong with the keys comes back, a line each."""
    key = quoted(key_column(table))
    database.execute(
        f"CREATE TABLE {_keys_of(table)} AS SELECT {key} AS key, row_number() OVER (ORDER BY {quoted(ROW)}) - 1 AS id "
        f"FROM {table.name}"
    )
    mistakes = []
    (absent,) = database.sql(f"SELECT count(*) FROM {_keys_of(table)} WHERE key IS NULL").fetchall()[0]
    if absent:
        mistakes.append(f"data.{table.place}.key: {absent} rows have no {key_column(table)}; leave them out by `where`")
    twice = database.sql(
        f"SELECT CAST(key AS VARCHAR), count(*) FROM {_keys_of(table)} WHERE key IS NOT NULL "
        "GROUP BY key HAVING count(*) > 1 ORDER BY count(*) DESC, 1"
    ).fetchall()
    if twice:
        shown = ", ".join(f"{key} ({times} times)" for key, times in twice[:5])
        mistakes.append(
            f"data.{table.place}.key: {len(twice)} values of {key_column(table)} are not unique: {shown}"
            + (", ..." if len(twice) > 5 else "")
        )
    return mistakes


class Relation:
    """Edges of one relation as pairs of dense ids, in the order of the rows that name them.

    Attributes:
        rows: int64 [E], the row of `table` that each edge comes from, as a position among its rows.
        source, destination: int64 [E], dense ids.
        without_key: how many rows name nothing (NULL).
        dangling: how many rows name a key that no row has.
    """

    def __init__(
        self, database: duckdb.DuckDBPyConnection, edge_type: EdgeType, table: Table, ends: list[tuple[str, Table]]
    ) -> None:
        """Join. `ends`: the column and the node table of each end that is looked up by key (source first)."""
        self.edge_type = edge_type
        numbered = f"(SELECT *, row_number() OVER (ORDER BY {quoted(ROW)}) - 1 AS __id__ FROM {table.name})"
        joins, named, found, ids = "", [], [], []
        for position, (column, target) in enumerate(ends):
            left, right = f"t.{quoted(column)}", f"k{position}.key"
            if table.is_text(column) != (key_column(target) != ROW and target.is_text(key_column(target))):
                left, right = f"CAST({left} AS VARCHAR)", f"CAST({right} AS VARCHAR)"
            joins += f" LEFT JOIN {_keys_of(target)} AS k{position} ON {left} = {right}"
            named.append(f"t.{quoted(column)} IS NOT NULL")
            found.append(f"k{position}.id IS NOT NULL")
            ids.append(f"k{position}.id")
        rows = (
            f"SELECT t.__id__ AS row, {' AND '.join(named)} AS named, {' AND '.join(found)} AS found, "
            f"{', '.join(f'{id} AS end{i}' for i, id in enumerate(ids))} FROM {numbered} AS t{joins}"
        )
        (self.without_key, self.dangling) = database.sql(
            f"SELECT count(*) FILTER (NOT named), count(*) FILTER (named AND NOT found) FROM ({rows})"
        ).fetchall()[0]
        columns = database.sql(f"SELECT * FROM ({rows}) WHERE named AND found ORDER BY row").to_arrow_table()
        self.rows = columns.column("row").to_numpy().astype(np.int64)
        looked_up = [columns.column(f"end{i}").to_numpy().astype(np.int64) for i in range(len(ends))]
        self.source, self.destination = looked_up if len(ends) == 2 else (self.rows, looked_up[0])
        self.table, self.ends = table, ends

    def explain_dangling(self) -> str:
        """A line for the user: which keys no row has, with the commonest."""
        parts = []
        for column, target in self.ends:
            value = f"CAST({quoted(column)} AS VARCHAR)"
            lost = self.table.database.sql(
                f"SELECT {value}, count(*) FROM {self.table.name} WHERE {quoted(column)} IS NOT NULL "
                f"AND {value} NOT IN (SELECT CAST(key AS VARCHAR) FROM {_keys_of(target)} WHERE key IS NOT NULL) "
                "GROUP BY 1 ORDER BY 2 DESC, 1"
            ).fetchall()
            if lost:
                shown = ", ".join(f"{key} ({times} rows)" for key, times in lost[:5])
                parts.append(
                    f"{sum(times for _, times in lost)} rows of {column} name {len(lost)} keys that no row of "
                    f"{target.place} has: {shown}" + (", ..." if len(lost) > 5 else "")
                )
        return f'data.{self.table.place}: "{edge_type_name(self.edge_type)}": ' + "; ".join(parts)


def _keys_of(table: Table) -> str:
    return quoted(table.place + " keys")
