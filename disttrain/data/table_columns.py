"""Tables in DuckDB: the columns that an experiment names, computed ones included, in the order of the file."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence

import duckdb
import numpy as np
import pyarrow as pa

from ..config import EdgeTable, ExperimentError, NodeTable
from ..config.counted import counted
from .nearest import nearest
from .scratch import Scratch
from .table_database import batches, brief, is_full
from .table_dates import ambiguous_dates
from .table_files import MIXED, Reading, in_sql, literal, missing_hint, mixed_line_ends, not_in_encoding, reading_of
from .table_types import is_integer, is_zoned, kind_of

ROW = "__row__"
"""Column of a table's row numbers."""

ID = "__id__"
"""Column of the dense ids of a table's rows, where it is joined to another."""

_TAKEN = ("rowid", ID)
"""What a column of the file may be called too, rowid by DuckDB: here it has another name then."""


def quoted(name: str) -> str:
    """A column or table name as SQL has it."""
    return in_sql(f"{name} of the file" if name.lower() in _TAKEN else name)


class Table:
    """One table of the experiment, with the rows that satisfy its `where`.

    Its `rowid` in DuckDB is a dense id of the rows that are left, in the order of the file.

    Attributes:
        place: where it stands in the YAML.
        row: SQL, the row's number in the file (in all its files, one after the other), from 0.
        columns: name -> DuckDB type, computed columns included.
        left_out: why -> how many rows are not in the graph.
        mistakes: what is wrong with it, one line each; nothing but this may be used while there are any.
    """

    def __init__(self, database: duckdb.DuckDBPyConnection, place: str, table: NodeTable | EdgeTable) -> None:
        self.database, self.place, self.settings = database, place, table
        self.columns: dict[str, str] = {}
        self.left_out: dict[str, int] = {}
        self.mistakes: list[str] = []
        self.row = quoted(ROW)
        self._untyped: set[str] = set()

    @property
    def name(self) -> str:
        """Its name in SQL."""
        return quoted(self.place)

    def open(
        self, paths: list[str], missing: tuple[str, ...], scratch: Scratch, keys: Iterable[str], wanted: Iterable[str]
    ) -> None:
        """Read the files and compute the further columns.

        Keys of CSV files that do not survive becoming numbers (`007`, more digits than a double holds) stay text.

        Args:
            keys: columns that are compared with those of other tables.
            wanted: columns that are used; others are not kept.

        Cost: a CSV is parsed up to three times (for the types; without those of keys; for the values).
        """
        try:
            reading = reading_of(paths, self.settings.csv, missing, scratch)
            self._read(reading, list(keys), set(wanted))
        except ExperimentError as error:
            self.mistakes.append(f"data.{self.place}.file: {error}")

    def _read(self, reading: Reading, keys: list[str], wanted: set[str]) -> None:
        text = self.settings.csv.text
        raw = quoted(self.place + " raw")
        types = self._types_in_file(reading, text)
        for column in text:
            if column not in types:
                self.mistakes.append(
                    f'data.{self.place}.csv.text: there is no column "{column}"{nearest(column, types)}'
                )
        for column in (*types, *self.settings.columns):
            if column.lower() == ROW:
                self.mistakes.append(f'data.{self.place}: no column may be called "{column}", give it another name')
        self._untyped = set(types) if reading.is_csv else set()
        guessed = {key: types[key] for key in keys if reading.is_csv and types.get(key, "VARCHAR") != "VARCHAR"}
        expressions = [*self.settings.columns.values(), *([self.settings.where] if self.settings.where else [])]
        kept = [column for column in types if column in wanted or _occurs(column, expressions)]
        if reading.is_csv:
            dates = [column for column in kept if column not in keys and kind_of(types[column]) == "moment"]
            self.mistakes += [self._two_dates(*found) for found in ambiguous_dates(self.database, reading, dates)]
        selected = ", ".join(f"{in_sql(column)} AS {quoted(column)}" for column in kept) or "1 AS nothing"
        try:
            # insertion order is the order of the file, so rowid is the row's number
            self.database.execute(f"CREATE TABLE {raw} AS SELECT {selected} FROM {reading.sql((*text, *guessed))}")
        except duckdb.Error as error:
            if is_full(error):
                raise
            raise ExperimentError(self._why_unreadable(reading, error)) from None
        typed = {key: kind for key, kind in guessed.items() if self._survives(raw, key, kind)}
        types.update({key: "VARCHAR" for key in guessed if key not in typed})
        query = self._computed(raw, types, kept, typed)
        if not expressions and not typed and not any(map(is_zoned, types.values())):
            self.database.execute(f"ALTER TABLE {raw} RENAME TO {self.name}")
            self.row = "rowid"
            return
        where = self.settings.where
        if where is not None:
            try:
                self.database.sql(f"SELECT * FROM ({query}) WHERE ({where}) LIMIT 0")
            except duckdb.Error as error:
                self.mistakes.append(f"data.{self.place}.where: {where}: {brief(error)}")
                where = None
        condition = "" if where is None else f" WHERE ({where})"
        # what looks at other rows gives its results in any order
        order = f" ORDER BY {quoted(ROW)}" if re.search(r"(?i)\b(over|select|unnest)\b", " ".join(expressions)) else ""
        result = ", ".join(
            f"{in_sql(column)} AS {quoted(column)}"
            for column in (ROW, *sorted(wanted))
            if column in (ROW, *self.columns)
        )
        if not self.mistakes:
            try:
                self.database.execute(f"CREATE TABLE {self.name} AS SELECT {result} FROM ({query}){condition}{order}")
            except duckdb.Error as error:
                if is_full(error):
                    raise
                self.mistakes.append(f"data.{self.place}: computing its columns failed: {brief(error)}")
            else:
                total, left = (self._count(name) for name in (raw, self.name))
                self._note("where", total - left)
        self.database.execute(f"DROP TABLE {raw}")

    def _two_dates(self, column: str, value: str) -> str:
        return (
            f'data.{self.place}: column "{column}" holds dates that can be read in two ways, {value!r} for instance; '
            f"keep it as text, csv: {{text: [{column}]}}, and compute the date, columns: {{a name: "
            f"strptime({quoted(column)}, '%d/%m/%Y')}} for instance"
        )

    def _types_in_file(self, reading: Reading, text: tuple[str, ...]) -> dict[str, str]:
        try:
            if reading.is_csv:
                return self._types(reading.sql(text))
            files = {path: self._types(f"read_parquet({literal(path)})") for path in reading.paths}
        except duckdb.Error as error:
            raise ExperimentError(self._why_unreadable(reading, error)) from None
        first, types = next(iter(files.items()))
        for path, others in files.items():
            different = [
                f'"{name}" is {others.get(name, "not there")}, not {types.get(name, "there")}'
                for name in dict.fromkeys((*types, *others))
                if types.get(name) != others.get(name)
            ]
            if different:
                more = f" and {len(different) - 4} more" if len(different) > 4 else ""
                raise ExperimentError(
                    f"{os.path.basename(path)} has other columns than {os.path.basename(first)}: "
                    f"{'; '.join(different[:4])}{more}; all files of a pattern must have the same"
                )
        return types

    def _why_unreadable(self, reading: Reading, error: duckdb.Error) -> str:
        """What is wrong with the first file in which something is."""
        name = os.path.basename(reading.paths[0])
        for path in reading.paths if reading.is_csv else ():
            try:
                self.database.execute(f"SELECT count(*) FROM {reading.strict_sql(path)}").fetchall()
            except duckdb.Error as found:
                line = re.search(r"Line: (\d+)", str(found))
                columns = re.search(r"Expected Number of Columns: (\d+) Found: (\d+)", str(found))
                name, error = os.path.basename(path), found
                if line and columns:
                    original = re.search(r"Original Line: ?(.*)", str(found))
                    shown = f" ({original.group(1)[:80]})" if original and original.group(1) else ""
                    return (
                        f"{name}, line {line.group(1)}{shown}: {columns.group(2)} values, but there are "
                        f"{columns.group(1)} columns (between {reading.delimiter!r}); correct the line, or enclose "
                        "values that hold the delimiter in quotes"
                    )
                if mixed_line_ends(path):
                    return f"{name} has {MIXED}, by `dos2unix {name}` for instance"
                if "unicode" in str(found).lower() or "not utf-8" in str(found):
                    return not_in_encoding(path, reading.encoding)
                break
        return f"{name} cannot be read: {brief(error)}"

    def _survives(self, raw: str, column: str, kind: str) -> bool:
        """Whether a column of text is the same when it is read as the type that it looks like."""
        value = quoted(column)
        if kind_of(kind) in ("number", "boolean"):
            changed = f"{value} IS NOT NULL AND CAST(TRY_CAST({value} AS {kind}) AS VARCHAR) IS DISTINCT FROM {value}"
        else:  # 01/02/2020 is one day or another
            changed = f"NOT regexp_matches({value}, '^[0-9]{{4}}-')"
        return not self.database.sql(f"SELECT 1 FROM {raw} WHERE {changed} LIMIT 1").fetchall()

    def _types(self, relation: str) -> dict[str, str]:
        described = self.database.sql(f"DESCRIBE SELECT * FROM {relation}").fetchall()
        return {name: kind for name, kind, *_ in described}

    def _computed(self, raw: str, types: dict[str, str], kept: list[str], typed: dict[str, str]) -> str:
        """The query that adds the computed columns; an expression may use the ones above it."""
        replaced = [f"CAST({quoted(name)} AS TIMESTAMP) AS {quoted(name)}" for name in kept if is_zoned(types[name])]
        replaced += [f"CAST({quoted(name)} AS {kind}) AS {quoted(name)}" for name, kind in typed.items()]
        replace = f" REPLACE ({', '.join(replaced)})" if replaced else ""
        query = f"SELECT rowid AS {quoted(ROW)}{f', *{replace}' if kept else ''} FROM {raw}"
        # What the user writes finds the column under the name that it has in the file.
        renamed = [name for name in kept if name.lower() in _TAKEN]
        if renamed:
            back = ", ".join(f"{quoted(name)} AS {in_sql(name)}" for name in renamed)
            query = f"SELECT * EXCLUDE ({', '.join(map(quoted, renamed))}), {back} FROM ({query})"
        self.columns = {name: "TIMESTAMP" if is_zoned(kind) else kind for name, kind in types.items()}
        for name, expression in self.settings.columns.items():
            if name.lower() in {column.lower() for column in self.columns}:
                # SQL does not tell Age from age
                self.mistakes.append(f"data.{self.place}.columns.{name}: there is a column of this name already")
                continue
            extended = f"SELECT *, ({expression}) AS {in_sql(name)} FROM ({query})"
            try:
                self.columns[name] = self._types(f"({extended})")[name]
                query = extended
            except duckdb.Error as error:
                self.mistakes.append(f"data.{self.place}.columns.{name}: {expression}: {brief(error)}")
                self.columns[name] = "UNKNOWN"  # said once, not again by each use
        return query

    def check(self, column: str | None, path: str) -> None:
        """Note it as a mistake if there is no such column. `path` is where the YAML names it, below the table."""
        if column is not None and self.columns and column not in self.columns:
            self.mistakes.append(
                f'data.{self.place}.{path}: there is no column "{column}"{nearest(column, self.columns)}'
            )

    def check_cast(self, column: str, kind: str, meant: str) -> None:
        """Note it as a mistake if a value of the column cannot become the DuckDB type `kind`."""
        value = quoted(column)
        said = f'data.{self.place}: column "{column}" ({self.columns[column]}) must hold {meant}: '
        try:
            self.database.sql(f"SELECT CAST({value} AS {kind}) FROM {self.name} LIMIT 0")
            if self.columns[column] != "VARCHAR":
                # some casts that there are not are missed only when there is something to cast
                self.database.sql(
                    f"SELECT CAST({value} AS {kind}) FROM {self.name} WHERE {value} IS NOT NULL LIMIT 1"
                ).fetchall()
                return
            wrong = self.database.sql(
                f"SELECT count(*), min({value}) FROM {self.name} WHERE {value} IS NOT NULL AND "
                f"TRY_CAST({value} AS {kind}) IS NULL"
            ).fetchall()[0]
        except duckdb.Error as error:
            self.mistakes.append(said + brief(error))
            return
        if wrong[0]:
            does, hint = "does" if wrong[0] == 1 else "do", missing_hint(wrong[1])
            self.mistakes.append(f"{said}{counted(wrong[0], 'value')} {does} not, {wrong[1]!r} for instance{hint}")

    def check_zeros_and_ones(self, column: str) -> None:
        """Note it as a mistake if the column holds numbers, and others than those."""
        if kind_of(self.columns[column]) == "number" and not self.mistakes:
            value = quoted(column)
            other = f"SELECT {value} FROM {self.name} WHERE {value} NOT IN (0, 1) LIMIT 1"
            if found := self.database.sql(other).fetchall():
                self.mistakes.append(
                    f'data.{self.place}: column "{column}" ({self.columns[column]}) must hold true or false, or 1 or '
                    f"0: it holds {found[0][0]}"
                )

    def leave_out(self, condition: str, why: str, reorder: bool = False) -> None:
        """Take the rows that satisfy an SQL condition out, and note how many they are.

        `reorder`: the condition looks at other rows, so that the order has to be made anew.
        """
        before, rest = self._count(self.name), quoted(self.place + " rest")
        order = f" ORDER BY {self.row}" if reorder else ""
        numbered = "*" if self.row == quoted(ROW) else f"{self.row} AS {quoted(ROW)}, *"
        self.database.execute(
            f"CREATE TABLE {rest} AS SELECT {numbered} FROM {self.name} WHERE NOT ({condition}){order}"
        )
        self.row = quoted(ROW)
        self.database.execute(f"DROP TABLE {self.name}")
        self.database.execute(f"ALTER TABLE {rest} RENAME TO {self.name}")
        self._note(why, before - self._count(self.name))

    def _note(self, why: str, rows: int) -> None:
        if rows:
            self.left_out[why] = self.left_out.get(why, 0) + rows

    def _count(self, name: str) -> int:
        (number,) = self.database.sql(f"SELECT count(*) FROM {name}").fetchall()[0]
        return number

    def count(self) -> int:
        """How many rows there are."""
        return self._count(self.name)

    def how_many(self, condition: str) -> int:
        """How many rows satisfy an SQL condition."""
        return self._count(f"{self.name} WHERE {condition}")

    def is_untyped(self, column: str) -> bool:
        """Whether a column comes from a CSV as it is, so that its type is only what its values look like."""
        return column in self._untyped

    def is_moment(self, column: str) -> bool:
        """Whether a column of times holds date-times (text is read as such), not numbers."""
        return kind_of(self.columns[column]) in ("text", "moment")

    def seconds(self, column: str) -> str:
        """SQL: a date-time as seconds since 1970 in UTC, a number as it is; DOUBLE."""
        return f"epoch({as_type(column, 'TIMESTAMP')})" if self.is_moment(column) else as_type(column, "DOUBLE")

    def time_as(self, column: str) -> tuple[str, type[np.int64] | type[np.float64]]:
        """SQL of a column of times that are all there, and what holds them without loss.

        Date-times are seconds since 1970 in UTC. Whole seconds and other whole numbers are int64 (of floating ones
        those that a float64 tells apart), all else float64, exact to the microsecond for date-times of our time.
        """
        seconds = self.seconds(column)
        if not self.is_moment(column) and is_integer(self.columns[column]):
            return as_type(column, "BIGINT"), np.int64
        value = f"CAST({seconds} AS DOUBLE)"
        if self.how_many(f"{value} <> floor({value}) OR abs({value}) > {2**53}"):
            return value, np.float64
        return f"CAST({seconds} AS BIGINT)", np.int64

    def check_range(self, column: str) -> None:
        """Note it as a mistake if a whole number of the column does not fit into 64 bits."""
        kind = self.columns[column]
        if kind not in ("UBIGINT", "HUGEINT", "UHUGEINT"):
            return
        value = quoted(column)
        lost = f"{value} IS NOT NULL AND TRY_CAST({value} AS BIGINT) IS NULL"
        if count := self.how_many(lost):
            (example,) = self.database.sql(f"SELECT {value} FROM {self.name} WHERE {lost} LIMIT 1").fetchall()[0]
            self.mistakes.append(
                f'data.{self.place}: column "{column}" ({kind}) must hold whole numbers from -2**63 to 2**63 - 1: '
                f"{counted(count, 'value')} beyond, {example} for instance"
            )

    def blocks(self, expressions: Sequence[str]) -> Iterator[tuple[int, list[pa.Array]]]:
        """The values of SQL expressions, a block of rows at a time, in the order of the ids, with the first id of each.

        Raises:
            ExperimentError: an expression fails on a row.
        """
        selected = "".join(f", {expression} AS c{number}" for number, expression in enumerate(expressions))
        # a cursor, since a result that is being read ends with the next query of its connection
        with self.database.cursor() as cursor:
            try:
                start, last = 0, -1
                for batch in batches(cursor, f"SELECT rowid AS id, {self.row} AS row{selected} FROM {self.name}"):
                    ids, rows = (batch.column(place).to_numpy() for place in (0, 1))
                    assert ids[0] == start and (np.diff(ids) == 1).all(), (self.place, start, ids)
                    assert rows[0] > last and (np.diff(rows) > 0).all(), (self.place, last, rows)
                    yield start, batch.columns[2:]
                    start, last = start + batch.num_rows, rows[-1]
            except duckdb.Error as error:
                if is_full(error):
                    raise
                raise ExperimentError(f"data.{self.place}: {brief(error)}") from None

    def floats(self, expressions: Sequence[str]) -> Iterator[tuple[int, list[np.ndarray]]]:
        """`blocks` of numbers as float64; missing and infinite values are NaN."""
        for start, columns in self.blocks([f"CAST({expression} AS DOUBLE)" for expression in expressions]):
            yield start, [numbers(column) for column in columns]

    def whole(self, expression: str) -> np.ndarray:
        """One number per row, float64 [num_rows], in memory."""
        blocks = [values for _, (values,) in self.floats([expression])]
        return np.concatenate(blocks) if blocks else np.empty(0)


def numbers(column: pa.Array) -> np.ndarray:
    """Arrow doubles as float64; missing and infinite values are NaN."""
    values = column.to_numpy(zero_copy_only=False)
    return np.where(np.isfinite(values), values, np.nan)


def as_type(column: str, kind: str) -> str:
    """SQL: a column as a DuckDB type."""
    return f"CAST({quoted(column)} AS {kind})"


def _occurs(column: str, expressions: list[str]) -> bool:
    """Whether an expression may use the column. (`COLUMNS(...)` and `*` may use any.)"""
    return any(
        column.lower() in expression.lower().replace('""', '"')
        or re.search(r"(?i)\bcolumns\s*\(|(^|[\s,(.])\*\s*(,|\)|$|from|exclude|replace)", expression)
        for expression in expressions
    )
