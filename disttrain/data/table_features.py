"""Columns become features: `x` (numbers, booleans, parts of date-times) and `x_cat` (codes of categories)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ..config import TableFeatures
from .table_columns import Table, quoted

# part -> DuckDB's function, and the period of those that are cyclic
_PARTS: dict[str, tuple[str, int | None]] = {
    "year": ("year", None),
    "month": ("month", 12),
    "day": ("day", 31),
    "weekday": ("isodow", 7),
    "hour": ("hour", 24),
}


@dataclass
class Features:
    """Features of the rows of one table."""

    x: np.ndarray
    """float32 [num_rows, len(names)]."""
    names: list[str]
    codes: np.ndarray
    """int64 [num_rows, num categorical columns]; 0 is missing or unknown."""
    categories: dict[str, list[str]]
    """Categorical column -> value of each code, from code 1."""


def columns_of(features: TableFeatures) -> list[tuple[str, str]]:
    """Every column that is named, with the path that names it."""
    return [
        (column, f"features.{kind}")
        for kind in ("numeric", "categorical", "boolean", "datetime")
        for column in getattr(features, kind)
    ]


def read_features(table: Table, features: TableFeatures, fit: np.ndarray) -> Features:
    """Features of every row.

    Numbers are standardised by the rows of `fit` (bool [num_rows]): less their mean, divided by their standard
    deviation; a column that is constant there becomes 0. A missing number is 0, the mean, and where any is missing
    among `fit` a column `<name> is missing` of 0 and 1 follows. Booleans are 0 and 1, handled likewise but for the
    scaling. Parts of date-times are standardised, and cyclic ones have their sine and cosine beside; parts that are
    constant are left out. Categories are those of `fit`, sorted; others get code 0.
    """
    blocks: list[tuple[str, np.ndarray]] = []
    for column in features.numeric:
        blocks += _with_missing(column, standardised(table.numbers(column), fit), fit)
    for column in features.boolean:
        blocks += _with_missing(column, table.booleans(column), fit)
    for column in features.datetime:
        blocks += _moments(table, column, fit)
    x = np.zeros((len(fit), len(blocks)), dtype=np.float32)
    for position, (_, values) in enumerate(blocks):
        x[:, position] = values
    categories, codes = {}, np.zeros((len(fit), len(features.categorical)), dtype=np.int64)
    for position, column in enumerate(features.categorical):
        found, categories[column] = codes_of(table.arrow(f"CAST({quoted(column)} AS VARCHAR)"), fit)
        codes[:, position] = found + 1
    return Features(x, [name for name, _ in blocks], codes, categories)


def codes_of(values: pa.ChunkedArray, fit: np.ndarray) -> tuple[np.ndarray, list[Any]]:
    """Codes of a column's values, int64 [num_rows], and the value of each code.

    The values that occur in the rows of `fit`, sorted, are 0, 1, ...; others and missing ones are -1.
    """
    encoded = values.combine_chunks().dictionary_encode()
    distinct = encoded.dictionary.to_pylist()
    index = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    known = sorted(np.unique(index[fit & (index >= 0)]).tolist(), key=lambda position: distinct[position])
    code = np.full(len(distinct) + 1, -1, dtype=np.int64)  # the last one is where index -1 leads
    code[known] = np.arange(len(known))
    return code[index], [distinct[position] for position in known]


def standardised(values: np.ndarray, fit: np.ndarray) -> np.ndarray:
    """float64 [num_rows], NaN where missing; all 0 where the rows of `fit` are constant or missing."""
    known = values[fit & ~np.isnan(values)]
    deviation = known.std() if len(known) else 0.0
    # the rounding of the mean alone makes a constant column look as if it varied
    if deviation <= 1e-12 * max(1.0, np.abs(known).max(initial=0.0)):
        return np.where(np.isnan(values), np.nan, 0.0)
    return (values - known.mean()) / deviation


def _with_missing(name: str, values: np.ndarray, fit: np.ndarray) -> list[tuple[str, np.ndarray]]:
    absent = np.isnan(values)
    blocks = [(name, np.where(absent, 0.0, values))]
    if absent[fit].any():
        blocks.append((f"{name} is missing", absent.astype(np.float64)))
    return blocks


def _moments(table: Table, column: str, fit: np.ndarray) -> list[tuple[str, np.ndarray]]:
    blocks, absent = [], np.zeros(len(fit), dtype=bool)
    for part, (function, period) in _PARTS.items():
        values = table.part_of_moment(column, function)
        absent = np.isnan(values)
        known = values[fit & ~absent]
        if len(known) == 0 or known.min() == known.max():
            continue
        parts = [(part, standardised(values, fit))]
        if period is not None:
            angle = 2 * np.pi * values / period
            parts += [(f"sin {part}", np.sin(angle)), (f"cos {part}", np.cos(angle))]
        blocks += [(f"{column} {name}", np.where(absent, 0.0, part_values)) for name, part_values in parts]
    if absent[fit].any():
        blocks.append((f"{column} is missing", absent.astype(np.float64)))
    return blocks
