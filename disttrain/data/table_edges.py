"""Edges from keys: foreign keys and edge tables, joined to the dense ids of the rows that they name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import duckdb
import numpy as np

from ..config import EdgeType, edge_type_name
from ..config.counted import counted
from .scratch import Scratch
from .table_columns import ID, ROW, Table, quoted
from .table_database import batches
from .table_keys import comparison, has_key, key_columns, key_text

_SHOWN = 5


@dataclass(frozen=True)
class End:
    """One end of a relation that is looked up by key."""

    columns: tuple[str, ...]
    path: str
    """Where the YAML names the columns, below the table."""
    target: Table


class Relation:
    """Edges of one relation as pairs of dense ids, in the order of the rows that name them.

    Attributes:
        count: how many edges.
        without_key: how many rows name nothing (NULL).
        dangling: how many rows name a key that no row has.
    """

    def __init__(
        self,
        database: duckdb.DuckDBPyConnection,
        edge_type: EdgeType,
        table: Table,
        ends: Sequence[End],
        reverse: bool | Literal["only"],
    ) -> None:
        """`ends`: source first; a foreign key has one, the destination."""
        self.database, self.edge_type, self.table, self.ends, self.reverse = database, edge_type, table, ends, reverse
        self.count = self.without_key = self.dangling = 0

    @property
    def _joined(self) -> str:
        return quoted(f"{edge_type_name(self.edge_type)} of {self.table.place}")

    def mistakes(self) -> list[str]:
        """Why the keys cannot be compared, a line each."""
        found = []
        for end in self.ends:
            expected = key_columns(end.target)
            if len(end.columns) != len(expected):
                found.append(
                    f"data.{self.table.place}.{end.path}: {', '.join(end.columns)} should hold the key of "
                    f"{end.target.place}, which has {counted(len(expected), 'column')} "
                    f"({', '.join(expected)}), not {len(end.columns)}"
                )
                continue
            found += comparison(self.table, end.columns, end.target)[1]
        return found

    def join(self) -> None:
        """Look the keys up. Cost: a hash join for each end, on the disk where memory does not suffice."""
        joins, ids = "", []
        for position, end in enumerate(self.ends):
            keys = ", ".join(
                f"{end.target.row if column == ROW else quoted(column)} AS {quoted(column)}"
                for column in key_columns(end.target)
            )
            equal, _ = comparison(self.table, end.columns, end.target, f"k{position}")
            joins += f" LEFT JOIN (SELECT {keys}, rowid AS {ID} FROM {end.target.name}) AS k{position} ON {equal}"
            ids.append(f"k{position}.{ID} AS end{position}")
        named = " AND ".join(has_key(self.table, end.columns, "t.") for end in self.ends)
        self.database.execute(
            f"CREATE TABLE {self._joined} AS SELECT t.rowid AS row, {named} AS named, {', '.join(ids)} "
            f"FROM {self.table.name} AS t{joins} ORDER BY t.rowid"
        )
        found = " AND ".join(f"end{position} IS NOT NULL" for position in range(len(self.ends)))
        self.count, self.without_key, self.dangling = self.database.sql(
            f"SELECT count(*) FILTER (named AND {found}), count(*) FILTER (NOT named), "
            f"count(*) FILTER (named AND NOT ({found})) FROM {self._joined}"
        ).fetchall()[0]

    def explain_dangling(self) -> str:
        """A line for the user: which keys no row has, with the commonest."""
        parts = []
        for position, end in enumerate(self.ends):
            value = key_text(end.columns, "t.")
            lost = (
                f"SELECT {value} AS key, count(*) AS times FROM {self.table.name} AS t "
                f"JOIN {self._joined} AS j ON t.rowid = j.row WHERE j.named AND j.end{position} IS NULL GROUP BY 1"
            )
            keys, rows = self.database.sql(f"SELECT count(*), sum(times) FROM ({lost})").fetchall()[0]
            if keys:
                first = self.database.sql(f"{lost} ORDER BY 2 DESC, 1 LIMIT {_SHOWN}").fetchall()
                shown = ", ".join(f"{key} ({counted(times, 'row')})" for key, times in first)
                parts.append(
                    f"{counted(rows, 'row')} with {counted(keys, 'key')} in {', '.join(end.columns)} that no row of "
                    f"{end.target.place} has: {shown}" + (", ..." if keys > _SHOWN else "")
                )
        return f'data.{self.table.place}: "{edge_type_name(self.edge_type)}": ' + "; ".join(parts)

    def write(self, scratch: Scratch) -> tuple[np.ndarray, np.ndarray | None]:
        """The edges, in files.

        Returns:
            int64 [rows, E], memory-mapped: source, destination, and, with `reverse: true`, the source once more, so
            that each direction is two rows that follow each other; with `reverse: only`, destination and source.
            And bool [num rows of the table]: those that are an edge; None if all are.
        """
        order = {True: (0, 1, 0), False: (0, 1), "only": (1, 0)}[self.reverse]
        ends = scratch.array((len(order) * self.count,), np.int64)
        total = self.table.count()
        kept = None if self.count == total else scratch.array((total,), np.bool_)
        row, edge = 0, 0
        with self.database.cursor() as cursor:
            ids = ", ".join(f"coalesce(end{position}, -1)" for position in range(len(self.ends)))
            for batch in batches(cursor, f"SELECT row, named, {ids} FROM {self._joined}"):
                rows = batch.column(0).to_numpy()
                # a key that two rows have would give an edge twice
                assert rows[0] == row and (np.diff(rows) == 1).all(), (self.edge_type, row, rows)
                looked_up = [batch.column(2 + position).to_numpy() for position in range(len(self.ends))]
                found = batch.column(1).to_numpy(zero_copy_only=False)
                for end in looked_up:
                    found = found & (end >= 0)
                source, destination = (rows, *looked_up) if len(self.ends) == 1 else looked_up
                pair = (source[found], destination[found])
                for place, which in enumerate(order):
                    ends.write(place * self.count + edge, pair[which])
                if kept is not None:
                    kept.write(row, found)
                row, edge = row + len(rows), edge + len(pair[0])
        assert (row, edge) == (total, self.count), (row, total, edge, self.count)
        self.database.execute(f"DROP TABLE {self._joined}")
        return ends.open().reshape(len(order), self.count), None if kept is None else kept.open()
