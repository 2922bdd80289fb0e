"""Dates in CSV files that can be read in two ways: 01/02/2020 is one day or another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import duckdb

from .table_files import Reading, in_sql

_PARTS = r"^\s*(\d{1,2})[^0-9A-Za-z](\d{1,2})[^0-9A-Za-z](\d+)"


def ambiguous_dates(
    database: duckdb.DuckDBPyConnection, reading: Reading, columns: Iterable[str]
) -> Iterator[tuple[str, str]]:
    """Those of some columns of dates whose days and months no value tells apart, each with one of its values.

    DuckDB takes the format that fits all values. With years first, or months by name, or a day past the 12th in any
    row, there is but one; else it takes days to come first, as half of the world does.

    Cost: where years do not come first, another pass over the file for each column.
    """
    for column in columns:
        source = f"(SELECT {in_sql(column)} AS v FROM {reading.sql((column,))}) WHERE v IS NOT NULL"
        first = database.execute(f"SELECT regexp_matches(v, '{_PARTS}') FROM {source} LIMIT 1").fetchone()
        if first is None or not first[0]:
            continue
        parts = ", ".join(f"TRY_CAST(regexp_extract(v, '{_PARTS}', {n}) AS INTEGER) AS p{n}" for n in (1, 2, 3))
        certain, value = database.execute(
            f"SELECT bool_or(p1 > 12 OR p2 > 12) AND min(p3) > 99, min(v) FILTER (p1 <> p2 OR p3 < 100) "
            f"FROM (SELECT v, {parts} FROM {source})"
        ).fetchall()[0]
        if not certain and value is not None:
            yield column, value
