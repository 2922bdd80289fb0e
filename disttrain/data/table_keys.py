"""Keys: what identifies the rows of a node table, and whether the columns that name it can be compared with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pyarrow as pa
import pyarrow.ipc

from ..config import NodeTable
from ..config.counted import counted
from .scratch import Scratch
from .table_columns import ROW, Table, quoted
from .table_files import in_sql
from .table_types import kind_of

_SHOWN = 5


def key_columns(table: Table) -> tuple[str, ...]:
    """The columns that identify a row of a node table: its key, or the row's number in the file."""
    assert isinstance(table.settings, NodeTable)
    return table.settings.key or (ROW,)


def key_text(columns: Sequence[str], prefix: str = "") -> str:
    """SQL: a key as people read it."""
    parts = ", ".join(f"CAST({prefix}{quoted(column)} AS VARCHAR)" for column in columns)
    return parts if len(columns) == 1 else f"concat_ws(', ', {parts})"


def has_key(table: Table, columns: Sequence[str], prefix: str = "") -> str:
    """SQL: whether a row names something: no part of its key is NULL or NaN."""
    parts = []
    for column in columns:
        parts.append(f"{prefix}{quoted(column)} IS NOT NULL")
        if table.columns.get(column) in ("FLOAT", "DOUBLE"):
            parts.append(f"NOT isnan({prefix}{quoted(column)})")
    return f"({' AND '.join(parts)})"


def check_keys(table: Table, duplicates: Literal["refuse", "drop"]) -> list[str]:
    """What is wrong with the keys of a node table, a line each; with `drop`, later rows of a key are left out."""
    columns = key_columns(table)
    name = ", ".join(columns)
    if columns == (ROW,):
        return []
    mistakes, named = [], has_key(table, columns)
    if absent := table.how_many(f"NOT {named}"):
        mistakes = [f"data.{table.place}.key: {counted(absent, 'row')} without {name}; `where` leaves such rows out"]
    keys = ", ".join(map(quoted, columns))
    repeated = (
        f"SELECT {key_text(columns)} AS key, count(*) AS times FROM {table.name} WHERE {named} "
        f"GROUP BY {keys} HAVING count(*) > 1"
    )
    (several,) = table.database.sql(f"SELECT count(*) FROM ({repeated})").fetchall()[0]
    if not several or (mistakes and duplicates == "drop"):
        return mistakes
    if duplicates == "drop":
        first = f"SELECT min(rowid) FROM {table.name} GROUP BY {keys}"
        table.leave_out(f"rowid NOT IN ({first})", "duplicates", reorder=True)
        return []
    twice = table.database.sql(f"{repeated} ORDER BY 2 DESC, 1 LIMIT {_SHOWN}").fetchall()
    shown = ", ".join(f"{key} ({times} times)" for key, times in twice) + (", ..." if several > _SHOWN else "")
    return [
        *mistakes,
        f"data.{table.place}.key: {several} values of {name} are not unique: {shown} "
        "(data.duplicates: drop keeps the first row of each)",
    ]


def comparison(table: Table, columns: Sequence[str], target: Table, alias: str = "k") -> tuple[str, list[str]]:
    """SQL that compares key columns of `table AS t` with those of `target AS <alias>`, and why they cannot be compared.

    The types of a CSV are only what its values look like: where one side is text and the other is from a CSV, both are
    compared as text. Otherwise a number is never a text, nor a date one.
    """
    terms, mistakes = [], []
    for column, key in zip(columns, key_columns(target)):
        ours, theirs = table.columns[column], "BIGINT" if key == ROW else target.columns[key]
        left, right = f"t.{quoted(column)}", f"{alias}.{quoted(key)}"
        kinds = kind_of(ours), kind_of(theirs)
        if kinds[0] == kinds[1]:
            if kinds[0] == "number":
                left, right = _whole(left, ours), _whole(right, theirs)
        elif kinds[0] == "text" and target.is_untyped(key):
            right = f"CAST({right} AS VARCHAR)"
        elif kinds[1] == "text" and table.is_untyped(column):
            left = f"CAST({left} AS VARCHAR)"
        else:
            named = "the row's number" if key == ROW else f'"{key}"'
            mistakes.append(
                f'data.{table.place}: "{column}" holds {ours}, but the key of {target.place}, {named}, is {theirs}; '
                f"make them agree by a computed column, {column}_as_key: CAST({column} AS {theirs}) for instance"
            )
        terms.append(f"{left} = {right}")
    return " AND ".join(terms), mistakes


def _whole(value: str, type_name: str) -> str:
    """SQL: a number as an integer, since large ones are not told apart as floats. With fractions it equals none."""
    if type_name in ("FLOAT", "DOUBLE") or type_name.startswith("DECIMAL"):
        return f"CASE WHEN {value} = floor({value}) THEN TRY_CAST({value} AS HUGEINT) END"
    return value


def write_keys(table: Table, scratch: Scratch) -> pa.ChunkedArray:
    """The key of each row in the order of the ids, memory-mapped; a struct of the columns where there are several."""
    columns = key_columns(table)
    value = quoted(columns[0])
    if len(columns) > 1:
        value = "struct_pack(" + ", ".join(f"{in_sql(column)} := {quoted(column)}" for column in columns) + ")"
    path, writer = scratch.path(".arrow"), None
    for _, (values,) in table.blocks([value]):
        batch = pa.record_batch([values], names=["key"])
        if writer is None:
            writer = pa.ipc.new_file(path, batch.schema)
        writer.write_batch(batch)
    if writer is None:
        return pa.chunked_array([], type=pa.null())
    writer.close()
    with pa.memory_map(path) as file:
        return pa.ipc.open_file(file).read_all().column("key")
