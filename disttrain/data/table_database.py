"""The DuckDB that tables are read through: its memory, what it does without, and what it says in the user's words."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import duckdb
import pyarrow as pa

from ..config import ExperimentError
from ..memory import total_memory
from .scratch import Scratch

BLOCK_ROWS = 1 << 17
"""How many rows are in memory at a time."""

_GIB = 1 << 30
_THREAD_BYTES = 1 << 27


def connect(scratch: Scratch, memory_bytes: int | None) -> duckdb.DuckDBPyConnection:
    """A DuckDB in a file of the folder that counts time in UTC and fetches nothing from elsewhere.

    What does not fit into its memory goes into the folder too.
    """
    limit = memory_bytes or default_limit(total_memory())
    # each thread needs some memory of its own, below which operators fail instead of using the disk
    threads = max(1, min(len(os.sched_getaffinity(0)), limit // _THREAD_BYTES))
    database = duckdb.connect(
        scratch.path(".duckdb"),
        config={
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "temp_directory": scratch.path("-spilled"),
            "memory_limit": f"{limit // (1 << 20)}MiB",
            "threads": str(threads),
            "preserve_insertion_order": "true",
        },
    )
    database.execute("SET GLOBAL TimeZone = 'UTC'")
    # compressing what is read once or twice takes longer than all else
    database.execute("SET GLOBAL force_compression = 'uncompressed'")
    return database


def default_limit(total: int) -> int:
    """Bytes, of the memory that there is: an eighth, but at least 1 GiB (of little, half of it), and at most 4."""
    return min(max(total // 8, _GIB), 4 * _GIB, total // 2)


@contextmanager
def room_for(scratch: Scratch, memory_bytes: int | None) -> Iterator[None]:
    """Say it in the user's words when memory or disk do not suffice."""
    try:
        yield
    except duckdb.Error as error:
        if isinstance(error, duckdb.OutOfMemoryException) and "temp" not in str(error):
            now = f"is {memory_bytes}" if memory_bytes else "is not set"
            raise ExperimentError(f"data.memory_bytes {now}, which does not suffice: {brief(error)}") from error
        if is_full(error):
            raise ExperimentError(scratch.full()) from error
        raise


def is_full(error: duckdb.Error) -> bool:
    """Whether memory or disk did not suffice."""
    said = str(error)
    return isinstance(error, duckdb.OutOfMemoryException) or any(
        what in said for what in ("No space left", "File too large", "quota", "Could not write")
    )


def batches(cursor: duckdb.DuckDBPyConnection, query: str) -> Iterator[pa.RecordBatch]:
    """The result of a query, a batch of rows at a time, while it is computed."""
    result = cursor.sql(query)
    # the name before DuckDB 1.5
    read = result.to_arrow_reader if hasattr(result, "to_arrow_reader") else result.fetch_record_batch
    for batch in read(BLOCK_ROWS):
        if batch.num_rows:
            yield batch


def brief(error: Exception) -> str:
    """The lines of DuckDB's message that say what is wrong, without its picture of the query."""
    lines = [line.strip() for line in str(error).split("\n\nLINE ")[0].splitlines() if line.strip()]
    return " ".join(lines[:6])
