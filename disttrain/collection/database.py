"""Databases that hold rows of bytes by number: SQLite, as PyG's `SQLiteDatabase` lays its tables out for tensors, and
RocksDB. Nothing is pickled."""

from __future__ import annotations

import os
import sqlite3
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

from ..config import ExperimentError
from .cache import Row

TABLE = "graphs"
_AT_ONCE = 500
"""Numbers in one question; SQLite of old took 999."""
_WAIT_SECONDS = 60.0
"""For another process that writes to the same file."""


class Database(Protocol):
    """Reading may be done by several threads, and after a fork; each has a connection of its own."""

    def read(self, ids: Sequence[int], columns: Sequence[int]) -> dict[int, Row]:
        """These columns of the rows of these numbers. Those that are not there are left out."""
        ...

    def write(self, first: int, rows: Sequence[Row]) -> None:
        """Consecutive rows, of which all or none are on the disk afterwards."""
        ...

    def count(self) -> int:
        """How many rows there are, from 0 on without a gap."""
        ...

    def close(self) -> None: ...


class Sqlite:
    """Table `graphs`: `id`, and a blob `COL_0`, `COL_1`, ... for each column.

    Args:
        num_columns: to make the table if it is not there; None: to read only.
    """

    def __init__(self, path: Path, num_columns: int | None = None) -> None:
        self.path, self._writes = path, num_columns is not None
        self._begin()
        if num_columns is not None:
            columns = "".join(f", COL_{number} BLOB NOT NULL" for number in range(num_columns))
            with self._connection() as connection, connection:
                connection.execute(f"CREATE TABLE IF NOT EXISTS {TABLE} (id INTEGER PRIMARY KEY{columns})")

    def _begin(self) -> None:
        self._idle: dict[int, list[sqlite3.Connection]] = {}
        """By process: that of another one must not be used, nor closed. Without a lock, which a fork might catch."""

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.path, self._writes = state["path"], False
        self._begin()

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """One that no other thread uses meanwhile. They outlive the threads of an epoch: opening new ones for those of
        the next would take memory in places that malloc does not find again."""
        idle = self._idle.setdefault(os.getpid(), [])
        try:
            own = idle.pop()
        except IndexError:
            address = self._address("rwc" if self._writes else "ro")
            own = sqlite3.connect(address, uri=True, timeout=_WAIT_SECONDS, check_same_thread=False)
        try:
            yield own
        finally:
            idle.append(own)

    def _address(self, mode: str) -> str:
        return f"file:{quote(str(self.path.absolute()))}?mode={mode}"

    def read(self, ids: Sequence[int], columns: Sequence[int]) -> dict[int, Row]:
        try:
            return self._read(ids, columns)
        except sqlite3.OperationalError as error:
            # Who only reads may not undo what a process that was killed had half written.
            if "locked" in str(error) or not self._undo_half_written():
                raise
            return self._read(ids, columns)

    def _undo_half_written(self) -> bool:
        """Whether there was the journal of a write, which is undone if whoever wrote is dead. SQLite sees to it that
        several may do so at once, and that a write which is under way is left alone.

        Raises:
            sqlite3.OperationalError: this process may not write to it.
        """
        journal = self.path.with_name(f"{self.path.name}-journal")
        if not journal.exists():
            return False
        writer = sqlite3.connect(self._address("rw"), uri=True, timeout=_WAIT_SECONDS)
        try:
            writer.execute(f"SELECT MAX(id) FROM {TABLE}").fetchone()
        except sqlite3.OperationalError as error:
            raise sqlite3.OperationalError(
                f"{error}; {journal} is of a write that was killed, and who may write to the folder has to start once, "
                "by which it is undone"
            ) from error
        finally:
            writer.close()
        return True

    def _read(self, ids: Sequence[int], columns: Sequence[int]) -> dict[int, Row]:
        chosen = ", ".join(["id", *(f"COL_{number}" for number in columns)])
        found: dict[int, Row] = {}
        with self._connection() as connection:
            for start in range(0, len(ids), _AT_ONCE):
                asked = ids[start : start + _AT_ONCE]
                marks = ",".join("?" * len(asked))
                for row in connection.execute(f"SELECT {chosen} FROM {TABLE} WHERE id IN ({marks})", asked):
                    found[row[0]] = row[1:]
        return found

    def write(self, first: int, rows: Sequence[Row]) -> None:
        marks = ",".join("?" * (1 + len(rows[0])))
        with self._connection() as connection, connection:
            connection.executemany(
                f"INSERT INTO {TABLE} VALUES ({marks})", ((first + n, *row) for n, row in enumerate(rows))
            )

    def count(self) -> int:
        with self._connection() as connection:
            count, last = connection.execute(f"SELECT COUNT(*), MAX(id) FROM {TABLE}").fetchone()
        if count and count != last + 1:
            raise sqlite3.DatabaseError(f"{count} rows, the last of which is number {last}")
        return count

    def close(self) -> None:
        for connection in self._idle.pop(os.getpid(), []):
            connection.close()


class Rocks:
    """Key: the number in 8 bytes, as PyG's `RocksDatabase` has it. Value: the lengths of all columns, and these."""

    def __init__(self, path: Path, num_columns: int | None = None) -> None:
        self.path, self._writes = path, num_columns is not None
        self._held: tuple[int, Any] | None = None
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.path, self._writes, self._held, self._lock = state["path"], False, None, threading.Lock()

    def _database(self) -> Any:
        with self._lock:
            if self._held is None or self._held[0] != os.getpid():
                rocksdict = imported_rocksdict()
                options = rocksdict.Options(raw_mode=True)
                access = rocksdict.AccessType.read_write() if self._writes else rocksdict.AccessType.read_only()
                self._held = os.getpid(), rocksdict.Rdict(str(self.path), options=options, access_type=access)
            return self._held[1]

    def read(self, ids: Sequence[int], columns: Sequence[int]) -> dict[int, Row]:
        found: dict[int, Row] = {}
        for number, value in zip(ids, self._database()[[_key(number) for number in ids]]):
            if value is not None:
                parts = _parts(value)
                found[number] = tuple(parts[column] for column in columns)
        return found

    def write(self, first: int, rows: Sequence[Row]) -> None:
        database = self._database()
        batch = imported_rocksdict().WriteBatch(raw_mode=True)
        for n, row in enumerate(rows):
            lengths = struct.pack(f"<{len(row) + 1}Q", len(row), *(len(part) for part in row))
            batch.put(_key(first + n), lengths + b"".join(row))
        database.write(batch)
        database.flush()

    def count(self) -> int:
        last = next(iter(self._database().keys(backwards=True)), None)
        return 0 if last is None else int.from_bytes(last, "big", signed=True) + 1

    def close(self) -> None:
        with self._lock:
            if self._held is not None and self._held[0] == os.getpid():
                self._held[1].close()
            self._held = None


def _key(number: int) -> bytes:
    return number.to_bytes(8, "big", signed=True)


def _parts(value: bytes) -> list[bytes]:
    (count,) = struct.unpack_from("<Q", value)
    lengths, at = struct.unpack_from(f"<{count}Q", value, 8), 8 * (1 + count)
    parts = []
    for length in lengths:
        parts.append(value[at : at + length])
        at += length
    return parts


def imported_rocksdict() -> Any:
    """Raises:
    ExperimentError: it is not installed.
    """
    try:
        import rocksdict  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ExperimentError(
            "data.ondisk_backend: rocksdb needs the package rocksdict (`pip install rocksdict`), which is not here "
            f"({error}); install it on every machine, or take sqlite"
        ) from None
    return rocksdict


BACKENDS: dict[str, type[Sqlite] | type[Rocks]] = {"sqlite": Sqlite, "rocksdb": Rocks}
