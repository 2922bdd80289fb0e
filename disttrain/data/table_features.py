"""Columns become features: `x` (numbers, booleans, parts of date-times) and `x_cat` (codes of categories)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..config import TableFeatures
from .scratch import Scratch
from .table_columns import Table, as_type, numbers

# part -> DuckDB's function, and the period of those that are cyclic
_PARTS: dict[str, tuple[str, int | None]] = {
    "year": ("year", None),
    "month": ("month", 12),
    "day": ("day", 31),
    "weekday": ("isodow", 7),
    "hour": ("hour", 24),
}


def columns_of(features: TableFeatures) -> list[tuple[str, str]]:
    """Every column that is named, with the path that names it."""
    return [
        (column, f"features.{kind}")
        for kind in ("numeric", "categorical", "boolean", "datetime")
        for column in getattr(features, kind)
    ]


def check_features(table: Table, features: TableFeatures) -> None:
    """Note columns whose values are not what they are named as, as mistakes of the table."""
    for kind, type_name, meant in (
        ("numeric", "DOUBLE", "numbers"),
        ("boolean", "BOOLEAN", "true or false"),
        ("datetime", "TIMESTAMP", "dates"),
    ):
        for column in getattr(features, kind):
            if column in table.columns:
                table.check_cast(column, type_name, meant)
                if kind == "boolean":
                    table.check_zeros_and_ones(column)


@dataclass
class _Numbers:
    """One expression, and what its values in the rows that fit are like, gathered block by block.

    Mean and squares are merged as Chan, Golub and LeVeque do (COMPSTAT 1982), so that they are those of all rows.
    """

    column: str
    sql: str
    scaled: bool
    part: str | None = None
    period: int | None = None
    count: int = 0
    mean: float = 0.0
    squares: float = 0.0
    low: float = np.inf
    high: float = -np.inf
    missing: bool = False

    def see(self, values: np.ndarray) -> None:
        known = values[~np.isnan(values)]
        self.missing |= len(known) < len(values)
        if not len(known):
            return
        mean, total = float(known.mean()), self.count + len(known)
        apart = mean - self.mean
        self.squares += float(np.square(known - mean).sum()) + apart * apart * self.count * len(known) / total
        self.mean, self.count = self.mean + apart * len(known) / total, total
        self.low, self.high = min(self.low, float(known.min())), max(self.high, float(known.max()))

    @property
    def scale(self) -> tuple[float, float]:
        """What is subtracted and divided by; (0, 0): nothing is scaled, or all that fit are the same or missing."""
        deviation = float(np.sqrt(self.squares / self.count)) if self.count else 0.0
        # the rounding of the mean alone makes a constant column look as if it varied
        largest = max(abs(self.low), abs(self.high)) if self.count else 0.0
        return (self.mean, deviation) if self.scaled and deviation > 1e-12 * max(1.0, largest) else (0.0, 0.0)

    def standardised(self, values: np.ndarray) -> np.ndarray:
        """Less the mean, by the standard deviation; NaN where missing, 0 if all that fit are the same or missing."""
        mean, deviation = self.scale
        return (values - mean) / deviation if deviation else np.where(np.isnan(values), np.nan, 0.0)

    @property
    def names(self) -> list[str]:
        """Of the columns of `x` that it becomes."""
        if self.part is None:
            return [self.column]
        if self.count == 0 or self.low == self.high:
            return []
        cyclic = [f"{self.column} sin {self.part}", f"{self.column} cos {self.part}"] if self.period else []
        return [f"{self.column} {self.part}", *cyclic]

    def features(self, values: np.ndarray) -> list[np.ndarray]:
        """Values of those columns; missing ones are 0."""
        if not self.names:
            return []
        made = [self.standardised(values) if self.scaled else values]
        if self.period:
            angle = 2 * np.pi * values / self.period
            made += [np.sin(angle), np.cos(angle)]
        return [np.where(np.isnan(values), 0.0, each) for each in made]


@dataclass
class _Categories:
    """A column of categories, and the values that occur in the rows that fit."""

    column: str
    seen: set[str] = field(default_factory=set)

    def see(self, values: pa.Array) -> None:
        self.seen.update(value for value in values.unique().to_pylist() if value is not None)

    @property
    def values(self) -> list[str]:
        return sorted(self.seen)


class Features:
    """What the columns of one table become.

    Numbers are standardised by the rows of `fit`: less their mean, divided by their standard deviation; a column that
    is constant there becomes 0. A missing number is 0, the mean, and where any is missing among `fit` a column
    `<name> is missing` of 0 and 1 follows. Booleans are 0 and 1, handled likewise but for the scaling. Parts of
    date-times are standardised, and cyclic ones have their sine and cosine beside; parts that are constant are left
    out. Categories are those of `fit`, sorted; others get code 0.

    Attributes:
        names: of the columns of `x`.
        categories: categorical column -> value of each code, from code 1.
    """

    def __init__(self, table: Table, features: TableFeatures, fit: np.ndarray | None) -> None:
        """`fit`: bool [num_rows], None: all rows. Cost: one pass over the columns."""
        self._table = table
        self._numbers = [_Numbers(column, as_type(column, "DOUBLE"), True) for column in features.numeric]
        self._numbers += [
            _Numbers(column, f"CAST({as_type(column, 'BOOLEAN')} AS DOUBLE)", False) for column in features.boolean
        ]
        self._numbers += [
            _Numbers(column, f"CAST({function}({as_type(column, 'TIMESTAMP')}) AS DOUBLE)", True, part, period)
            for column in features.datetime
            for part, (function, period) in _PARTS.items()
        ]
        self._categories = [_Categories(column) for column in features.categorical]
        for start, values, codes in self._read():
            rows = slice(None) if fit is None else fit[start : start + _length(values, codes)]
            for one, block in zip(self._numbers, values):
                one.see(block[rows])
            for one, block in zip(self._categories, codes):
                one.see(block if fit is None else block.filter(pa.array(np.asarray(rows))))
        self.names = [name for group in self._groups() for one in group for name in self._names(one, group)]
        self.categories = {one.column: one.values for one in self._categories}

    @property
    def encoding(self) -> str:
        """Hex digest of how values become features: two tables of one encoding mean the same by the same numbers."""
        numbers = [[one.column, one.part, one.names, *(f"{v:.8g}" for v in one.scale)] for one in self._numbers]
        text = json.dumps([numbers, self.names, self.categories])
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def _groups(self) -> Iterator[list[_Numbers]]:
        """Those of one column, one after the other."""
        group: list[_Numbers] = []
        for one in self._numbers:
            if group and (one.part is None or one.column != group[0].column):
                yield group
                group = []
            group.append(one)
        if group:
            yield group

    def _names(self, one: _Numbers, group: list[_Numbers]) -> list[str]:
        flag = [f"{one.column} is missing"] if one is group[-1] and one.missing else []
        return [*one.names, *flag]

    def _read(self) -> Iterator[tuple[int, list[np.ndarray], list[pa.Array]]]:
        if not self._numbers and not self._categories:
            return
        expressions = [one.sql for one in self._numbers]
        expressions += [as_type(one.column, "VARCHAR") for one in self._categories]
        for start, columns in self._table.blocks(expressions):
            split = len(self._numbers)
            yield start, [numbers(column) for column in columns[:split]], columns[split:]

    def blocks(self, kept: np.ndarray | None = None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """`x`, float32 [rows, len(names)], and codes, int64 [rows, len(categories)], of consecutive rows.

        `kept`: bool [num_rows], the rows that are wanted; None: all.
        """
        known = [pa.array(one.values, type=pa.string()) for one in self._categories]
        for start, values, texts in self._read():
            length, block_of = _length(values, texts), iter(values)
            columns: list[np.ndarray] = []
            for group in self._groups():
                for one in group:
                    block = next(block_of)
                    columns += one.features(block)
                    if one is group[-1] and one.missing:
                        columns.append(np.isnan(block))
            x = np.zeros((length, len(self.names)), dtype=np.float32)
            for position, column in enumerate(columns):
                x[:, position] = column
            codes = np.zeros((length, len(known)), dtype=np.int64)
            for position, (text, value_set) in enumerate(zip(texts, known)):
                codes[:, position] = codes_in(text, value_set) + 1
            rows = slice(None) if kept is None else kept[start : start + length]
            yield x[rows], codes[rows]


def codes_in(values: pa.Array, value_set: pa.Array) -> np.ndarray:
    """The place of each value in `value_set`, int64; -1 for those that are missing or not in it."""
    places = pc.index_in(values, value_set=value_set)  # type: ignore[attr-defined]
    return places.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)


def _length(values: list[np.ndarray], codes: list[pa.Array]) -> int:
    return len((values or codes)[0])


def set_node_features(store: Any, table: Table, features: Features, scratch: Scratch) -> None:
    """Set `x` and `x_cat` of a node type, in files; neither where there are no columns for it."""
    import torch

    rows = table.count()
    x = scratch.array((rows, len(features.names)), np.float32)
    codes = scratch.array((rows, len(features.categories)), np.int64)
    row = 0
    for block, code_block in features.blocks():
        x.write(row, block)
        codes.write(row, code_block)
        row += len(block)
    for name, array, width in (("x", x, features.names), ("x_cat", codes, features.categories)):
        opened = array.open()
        if width:
            store[name] = torch.from_numpy(opened)
