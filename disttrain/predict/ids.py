"""A list of nodes or graphs, given by the user's own keys in a file, becomes rows of the user's data."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from ..config import ExperimentError
from ..config.counted import counted
from .keys import Keys, quoted, text_literal

_SHOWN = 5
_INTEGERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT")
_FLOATS = ("FLOAT", "DOUBLE")


def rows_of_ids(path: Path, keys: Keys) -> np.ndarray:
    """Look up the ids of a file: rows of the user's data, ascending int64.

    A key that several graphs have stands for all of them.

    Args:
        path: `.parquet`, or `.csv` with a header: the key's columns by name, further ones are passed over (a single
            column may have any name in Parquet). Any other file: text, an id a line, blank lines are passed over.

    Cost: the file in memory; the keys are read once, in pieces.

    Raises:
        ExperimentError: the file cannot be read, lacks a key's column, names no node, names one twice, or names one
            that there is not; with how many, and examples.
    """
    with tempfile.TemporaryDirectory(prefix="disttrain-ids-") as scratch, duckdb.connect() as database:
        database.execute(f"SET temp_directory = {text_literal(scratch)}")
        given = _read(database, path, keys)
        known = keys.known(database)
        kinds = [row[1] for row in database.execute(f"DESCRIBE SELECT * FROM {known}").fetchall()[:-1]]
        number = range(len(kinds))
        casts = ", ".join(f"{_cast(f'given{n}', given[n], kinds[n])} AS value{n}, given{n}" for n in number)
        database.execute(f"CREATE TEMP TABLE wanted AS SELECT {casts} FROM given")
        equal = " AND ".join(f"known.key{n} = wanted.value{n}" for n in number)
        found = f"FROM wanted LEFT JOIN {known} AS known ON {equal}"
        shown = ", ".join(f"CAST(given{n} AS VARCHAR)" for n in number)
        _refuse(
            database,
            f"SELECT {shown} {found} WHERE known.row IS NULL",
            path,
            f"without a {keys.what}{keys.described(kinds)}",
        )
        values = ", ".join(f"value{n}" for n in number)
        first = ", ".join(f"any_value(CAST(given{n} AS VARCHAR))" for n in number)
        twice = f"SELECT {first} FROM wanted GROUP BY {values} HAVING count(*) > 1"
        _refuse(database, twice, path, "more than once, leave each but once")
        rows = database.execute(f"SELECT known.row {found} ORDER BY 1").fetchnumpy()["row"]
    if not len(rows):
        raise ExperimentError(f"--ids {path}: the file names no {keys.what.split()[0]}")
    return np.asarray(rows, dtype=np.int64)


def _read(database: Any, path: Path, keys: Keys) -> list[str]:
    """Make the table `given` with the columns given0, given1, ...; returns their kinds."""
    try:
        if path.suffix.lower() == ".parquet":
            source = f"read_parquet({text_literal(str(path))})"
        elif path.suffix.lower() == ".csv":
            source = f"read_csv({text_literal(str(path))}, header = true, all_varchar = true)"
        else:
            _make_from_lines(database, path, keys)
            return ["VARCHAR"]
        there = [row[0] for row in database.execute(f"DESCRIBE SELECT * FROM {source}").fetchall()]
        wanted = keys.looked_up
        columns = there if len(wanted) == len(there) == 1 and path.suffix.lower() == ".parquet" else wanted
        missing = [name for name in columns if name not in there]
        if missing:
            raise ExperimentError(
                f"--ids {path}: expected the column{'s' if len(wanted) > 1 else ''} {', '.join(wanted)}, there is no "
                f"{', '.join(missing)} among {', '.join(there)}"
            )
        named = ", ".join(f"{quoted(column)} AS given{number}" for number, column in enumerate(columns))
        database.execute(f"CREATE TEMP TABLE given AS SELECT {named} FROM {source}")
    except (OSError, UnicodeDecodeError, duckdb.Error) as error:
        raise ExperimentError(f"--ids {path} cannot be read: {error}") from error
    return [row[1] for row in database.execute("DESCRIBE given").fetchall()]


def _make_from_lines(database: Any, path: Path, keys: Keys) -> None:
    if len(keys.looked_up) > 1:
        raise ExperimentError(
            f"--ids {path}: a {keys.what.split()[0]} is known by {', '.join(keys.looked_up)} together; give "
            "a .csv or .parquet file with these columns"
        )
    # not splitlines: an id may hold what Unicode calls a line's end
    lines = [line for line in path.read_text(encoding="utf-8-sig").split("\n") if line.strip()]
    table = pa.table({"given0": pa.array(lines, pa.string())})
    database.register("lines", table)
    database.execute("CREATE TEMP TABLE given AS SELECT * FROM lines")
    database.unregister("lines")


def _cast(column: str, given: str, wanted: str) -> str:
    """SQL: the value as the key's type; NULL where it is none."""
    if given == wanted:
        return column
    if wanted in _INTEGERS and given == "VARCHAR":
        # Casts of text round what is no whole number.
        return f"CASE WHEN regexp_full_match(trim({column}), '[+-]?[0-9]+') THEN TRY_CAST({column} AS {wanted}) END"
    if wanted in _INTEGERS and (given in _FLOATS or given.startswith("DECIMAL")):
        return f"CASE WHEN {column} = floor({column}) THEN TRY_CAST({column} AS {wanted}) END"
    return f"TRY_CAST({column} AS {wanted})"


def _refuse(database: Any, query: str, path: Path, why: str) -> None:
    (count,) = database.execute(f"SELECT count(*) FROM ({query})").fetchone()
    if count:
        examples = database.execute(f"{query} LIMIT {_SHOWN}").fetchall()
        more = ", ..." if count > _SHOWN else ""
        raise ExperimentError(f"--ids {path}: {counted(count, 'id')} {why}: {_listed(examples)}{more}")


def _listed(rows: Iterable[tuple[Any, ...]]) -> str:
    return ", ".join(
        "nothing" if all(v is None for v in row) else repr(row[0] if len(row) == 1 else row) for row in rows
    )
