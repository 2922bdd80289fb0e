"""Tables in DuckDB: the columns that an experiment names, computed ones included, in the order of the file."""

from __future__ import annotations

import os
from collections.abc import Iterable

import duckdb
import numpy as np
import pyarrow as pa

from ..config import EdgeTable, ExperimentError, NodeTable
from .nearest import nearest
from .table_files import readable

ROW = "__row__"
"""Column of a table's row numbers in its file, from 0."""


def connect(scratch: str) -> duckdb.DuckDBPyConnection:
    """A DuckDB in memory that counts time in UTC and fetches nothing from elsewhere.

    What does not fit into memory goes into the folder `scratch`.
    """
    database = duckdb.connect(
        ":memory:", config={"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
    )
    database.execute("SET TimeZone = 'UTC'")
    database.execute(f"SET temp_directory = {_text(os.path.join(scratch, 'spilled'))}")
    return database


def quoted(name: str) -> str:
    """A column or table name as SQL has it."""
    return '"' + name.replace('"', '""') + '"'


class Table:
    """One table of the experiment, with the rows that satisfy its `where` and a dense id for each.

    Attributes:
        place: where it stands in the YAML.
        columns: name -> DuckDB type, computed columns included.
        mistakes: what is wrong with it, one line each; nothing but this may be used while there are any.
    """

    def __init__(self, database: duckdb.DuckDBPyConnection, place: str, table: NodeTable | EdgeTable) -> None:
        self.database, self.place, self.settings = database, place, table
        self.columns: dict[str, str] = {}
        self.mistakes: list[str] = []

    @property
    def name(self) -> str:
        """Its name in SQL."""
        return quoted(self.place)

    def open(self, path: str, missing: Iterable[str], scratch: str) -> None:
        """Read the file and compute the further columns. Cost: the file is parsed twice (once for the types)."""
        function, path = readable(path, scratch)
        # all rows decide the types; a header is always expected, as guessing it fails where all columns are text
        guess = f", header = true, sample_size = -1, nullstr = {_texts(missing)}"
        options = guess if function == "read_csv" else ""
        file, raw = f"{function}({_text(path)}{options})", quoted(self.place + " raw")
        try:
            # insertion order is the order of the file, so rowid is the row's number
            self.database.execute(f"CREATE TABLE {raw} AS SELECT * FROM {file}")
        except duckdb.Error as error:
            self.mistakes.append(f"data.{self.place}.file: {os.path.basename(path)} cannot be read: {_brief(error)}")
            return
        computed = self._computed(raw)
        where = self.settings.where
        if where is not None:
            try:
                self.database.sql(f"SELECT * FROM ({computed}) WHERE ({where}) LIMIT 0")
            except duckdb.Error as error:
                self.mistakes.append(f"data.{self.place}.where: {where}: {_brief(error)}")
                where = None
        condition = "" if where is None else f" WHERE ({where})"
        try:
            self.database.execute(
                f"CREATE TABLE {self.name} AS SELECT * FROM ({computed}){condition} ORDER BY {quoted(ROW)}"
            )
        except duckdb.Error as error:
            self.mistakes.append(f"data.{self.place}: computing its columns failed: {_brief(error)}")
        self.database.execute(f"DROP TABLE {raw}")

    def _types(self, relation: str) -> dict[str, str]:
        described = self.database.sql(f"DESCRIBE SELECT * FROM {relation}").fetchall()
        return {name: kind for name, kind, *_ in described}

    def _types_of_columns(self, query: str) -> dict[str, str]:
        return {column: kind for column, kind in self._types(f"({query})").items() if column != ROW}

    def _computed(self, raw: str) -> str:
        """The query that adds the computed columns; an expression may use the ones above it."""
        zoned = [name for name, kind in self._types(raw).items() if kind == "TIMESTAMP WITH TIME ZONE"]
        in_utc = ", ".join(f"CAST({quoted(name)} AS TIMESTAMP) AS {quoted(name)}" for name in zoned)
        query = f"SELECT rowid AS {quoted(ROW)}, *{f' REPLACE ({in_utc})' if zoned else ''} FROM {raw}"
        self.columns = self._types_of_columns(query)
        for name, expression in self.settings.columns.items():
            if name in self.columns:
                self.mistakes.append(f"data.{self.place}.columns.{name}: the file has a column of this name already")
                continue
            extended = f"SELECT *, ({expression}) AS {quoted(name)} FROM ({query})"
            try:
                self.columns = self._types_of_columns(extended)
                query = extended
            except duckdb.Error as error:
                self.mistakes.append(f"data.{self.place}.columns.{name}: {expression}: {_brief(error)}")
                self.columns[name] = "UNKNOWN"  # said once, not again by each use
        return query

    def check(self, column: str | None, path: str) -> None:
        """Note it as a mistake if there is no such column. `path` is where the YAML names it, below the table."""
        if column is not None and self.columns and column not in self.columns:
            self.mistakes.append(
                f'data.{self.place}.{path}: there is no column "{column}"{nearest(column, self.columns)}'
            )

    def is_text(self, column: str) -> bool:
        """Whether a column holds text."""
        return self.columns[column] == "VARCHAR"

    def is_moment(self, column: str) -> bool:
        """Whether a column of times holds date-times (text is read as such), not numbers."""
        return self.columns[column] in ("VARCHAR", "DATE") or self.columns[column].startswith("TIMESTAMP")

    def count(self) -> int:
        """How many rows there are."""
        (number,) = self.database.sql(f"SELECT count(*) FROM {self.name}").fetchall()[0]
        return number

    def arrow(self, expression: str, order: str = ROW) -> pa.ChunkedArray:
        """One value per row, in the order of the ids."""
        result = self.database.sql(f"SELECT {expression} AS value FROM {self.name} ORDER BY {quoted(order)}")
        return result.to_arrow_table().column("value")

    def numbers(self, column: str) -> np.ndarray:
        """A column as float64 [num_rows]; missing and infinite values are NaN.

        Raises:
            ExperimentError: if a value is not a number.
        """
        values = self._cast(column, "DOUBLE", "numbers")
        return np.where(np.isfinite(values), values, np.nan)

    def booleans(self, column: str) -> np.ndarray:
        """A column as float64 [num_rows] of 0, 1 and NaN; text such as `yes`, `f` or `1` is understood."""
        return self._cast(column, "BOOLEAN", "true or false")

    def seconds(self, column: str) -> np.ndarray:
        """A date-time as seconds since 1970 in UTC, a number as it is; float64 [num_rows], missing values NaN."""
        if self.is_moment(column):
            return self._cast(column, "TIMESTAMP", "dates", "epoch({})")
        return self.numbers(column)

    def part_of_moment(self, column: str, function: str) -> np.ndarray:
        """DuckDB's `year`, `hour`, ... of a date-time; float64 [num_rows], missing values NaN."""
        return self._cast(column, "TIMESTAMP", "dates", f"{function}({{}})")

    def _cast(self, column: str, kind: str, meant: str, wrap: str = "{}") -> np.ndarray:
        try:
            values = self.arrow(f"CAST({wrap.format(f'CAST({quoted(column)} AS {kind})')} AS DOUBLE)")
        except duckdb.Error as error:
            raise ExperimentError(
                f'data.{self.place}: column "{column}" ({self.columns[column]}) must hold {meant}: {_brief(error)}'
            ) from None
        return values.to_numpy(zero_copy_only=False).astype(np.float64, copy=False)


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _texts(values: Iterable[str]) -> str:
    return "[" + ", ".join(_text(value) for value in values) + "]"


def _brief(error: Exception) -> str:
    """The lines of DuckDB's message that say what is wrong, without its picture of the query."""
    lines = [line.strip() for line in str(error).split("\n\nLINE ")[0].splitlines() if line.strip()]
    return " ".join(lines[:6])
