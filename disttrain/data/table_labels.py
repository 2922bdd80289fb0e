"""Columns become labels: a class, a number, or several zeros and ones per row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..config import ExperimentError
from .table_columns import Table, numbers, quoted
from .table_features import codes_in
from .table_types import kind_of


@dataclass(frozen=True)
class Labels:
    """`y` of every row, and what its classes or columns are called."""

    y: np.ndarray
    """int64 [N] classes, float [N] or [N, L] numbers, or int8 [N, L] of zeros and ones; -1 or NaN: none. Of several,
    single ones may be missing."""
    known: np.ndarray
    """bool [N]: which rows have one, or one of several."""
    names: list[str]


def no_label(table: Table, columns: Sequence[str]) -> str:
    """SQL: whether a row has no label: all of its columns are NULL or NaN."""
    parts = []
    for column in columns:
        part = f"{quoted(column)} IS NULL"
        if table.columns[column] in ("FLOAT", "DOUBLE"):
            part = f"({part} OR isnan({quoted(column)}))"
        parts.append(part)
    return f"({' AND '.join(parts)})"


def read_labels(table: Table, columns: Sequence[str], regression: bool) -> Labels:
    """The labels in the order of the ids.

    Raises:
        ExperimentError: they are not what the task learns.
    """
    place = f"data.{table.place}.label"
    kinds = [table.columns[column] for column in columns]
    if regression:
        return _numbers(table, columns, place)
    if len(columns) > 1:
        return _zeros_and_ones(table, columns, place)
    if kinds[0].endswith("]"):
        return _lists(table, columns[0], kinds[0], place)
    return _classes(table, columns[0], kinds[0], place)


def _numbers(table: Table, columns: Sequence[str], place: str) -> Labels:
    kinds = [table.columns[column] for column in columns]
    for column, kind in zip(columns, kinds):
        if kind_of(kind) not in ("number", "boolean"):
            raise ExperimentError(f'{place}: node_regression learns numbers; "{column}" holds {kind}')
    # what a 4-byte column holds is exact in 4 bytes; all else keeps its digits
    dtype = np.float32 if set(kinds) == {"FLOAT"} else np.float64
    expressions = [f"CAST({quoted(column)} AS DOUBLE)" for column in columns]
    blocks = [np.stack(block, axis=1).astype(dtype) for _, block in table.floats(expressions)]
    y = np.concatenate(blocks) if blocks else np.empty((0, len(columns)), dtype=dtype)
    known = np.asarray(~np.isnan(y).all(axis=1))
    return Labels(y if len(columns) > 1 else y[:, 0].copy(), known, [])


def _zeros_and_ones(table: Table, columns: Sequence[str], place: str) -> Labels:
    wrong = [column for column in columns if kind_of(table.columns[column]) not in ("number", "boolean")]
    if wrong:
        raise ExperimentError(
            f'{place}: several columns are several labels, zeros and ones each; "{wrong[0]}" holds '
            f"{table.columns[wrong[0]]}"
        )
    blocks = []
    expressions = [f"CAST({quoted(column)} AS DOUBLE)" for column in columns]
    for start, block in table.floats(expressions):
        values = np.stack(block, axis=1)
        blocks.append(_checked(values, place, columns, start))
    y = np.concatenate(blocks) if blocks else np.empty((0, len(columns)), dtype=np.int8)
    return Labels(y, np.any(y >= 0, axis=1), list(columns))


def _checked(values: np.ndarray, place: str, columns: Sequence[str], start: int) -> np.ndarray:
    """Zeros and ones as int8, -1 where one is missing."""
    missing = np.isnan(values)
    wrong = np.argwhere(~missing & (values != 0) & (values != 1))
    if len(wrong):
        row, column = wrong[0]
        raise ExperimentError(
            f'{place}: several labels are zeros and ones each; "{columns[column]}" holds {values[row, column]:g} in '
            f"row {start + row} (of those that are left, from 0)"
        )
    return np.where(missing, -1, values).astype(np.int8)


def _lists(table: Table, column: str, kind: str, place: str) -> Labels:
    """A list of names (several labels by name), or of zeros and ones (all of the same length)."""
    inner = kind[: kind.rindex("[")]
    if inner == "VARCHAR":
        return _named(table, column)
    if kind_of(inner) not in ("number", "boolean"):
        raise ExperimentError(
            f'{place}: "{column}" holds {kind}; a list is several labels: their names, or zeros and ones'
        )
    lengths = table.database.sql(
        f"SELECT DISTINCT len({quoted(column)}) FROM {table.name} WHERE {quoted(column)} IS NOT NULL ORDER BY 1 LIMIT 5"
    ).fetchall()
    if len(lengths) != 1 or not lengths[0][0]:
        came = ", ".join(str(length) for (length,) in lengths) or "none"
        raise ExperimentError(f'{place}: the lists of "{column}" must all have one length, not 0; they have {came}')
    width, blocks = lengths[0][0], []
    names = [f"{column}[{position}]" for position in range(width)]
    for start, (lists,) in table.blocks([f"CAST({quoted(column)} AS DOUBLE[])"]):
        values = np.full((len(lists), width), np.nan)
        present = lists.is_valid().to_numpy(zero_copy_only=False)
        # a list that is missing may have a length all the same
        flat = pc.list_flatten(lists.filter(lists.is_valid()))  # type: ignore[attr-defined]
        values[present] = numbers(flat).reshape(-1, width)
        blocks.append(_checked(values, place, names, start))
    y = np.concatenate(blocks)
    return Labels(y, np.any(y >= 0, axis=1), names)


def _named(table: Table, column: str) -> Labels:
    each = f"(SELECT DISTINCT unnest({quoted(column)}) AS name FROM {table.name})"
    found = table.database.sql(f"SELECT name FROM {each} WHERE name IS NOT NULL").fetchall()
    names = sorted(name for (name,) in found)
    if not names:
        raise ExperimentError(f'data.{table.place}.label: all lists of "{column}" are empty')
    value_set, blocks = pa.array(names, type=pa.string()), []
    for _, (lists,) in table.blocks([quoted(column)]):
        y = np.zeros((len(lists), len(names)), dtype=np.int8)
        rows = pc.list_parent_indices(lists).to_numpy(zero_copy_only=False)  # type: ignore[attr-defined]
        codes = codes_in(pc.list_flatten(lists), value_set)  # type: ignore[attr-defined]
        y[rows[codes >= 0], codes[codes >= 0]] = 1
        y[lists.is_null().to_numpy(zero_copy_only=False)] = -1
        blocks.append(y)
    y = np.concatenate(blocks)
    return Labels(y, y[:, 0] >= 0, names)


def _classes(table: Table, column: str, kind: str, place: str) -> Labels:
    if kind.startswith(("STRUCT", "MAP", "UNION", "BLOB")):
        raise ExperimentError(f'{place}: "{column}" holds {kind}; a label is a class: integers, booleans or text')
    value = quoted(column)
    if kind in ("FLOAT", "DOUBLE") or kind.startswith("DECIMAL"):
        if table.how_many(f"{value} <> floor({value}) AND NOT isnan(CAST({value} AS DOUBLE))"):
            raise ExperimentError(
                f'{place}: "{column}" holds numbers with fractions; a label is a class: integers, booleans or text '
                "(compute one in `columns`, for instance by a threshold), or a number to task.kind: node_regression"
            )
        value = f"TRY_CAST({value} AS BIGINT)"
    found = table.database.sql(
        f"SELECT DISTINCT {value} AS v FROM {table.name} WHERE {value} IS NOT NULL"
    ).to_arrow_table()
    classes: list[Any] = sorted(found.column("v").to_pylist())
    if len(classes) < 2:
        raise ExperimentError(f'{place}: "{column}" must have at least two classes, it has {classes}')
    value_set = pa.array(classes, type=found.column("v").type)
    blocks = [codes_in(values, value_set) for _, (values,) in table.blocks([value])]
    y = np.concatenate(blocks)
    names = [str(name).lower() if isinstance(name, bool) else str(name) for name in classes]
    return Labels(y, y >= 0, names)
