"""The folder that predictions go to: a Parquet file per rank, put in place when all are whole, and then the summary."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import pyarrow as pa
import pyarrow.parquet as pq

from ..config import ExperimentError
from ..graph.files import digest_file
from ..report.files import explaining, finite, replace_text

SUMMARY = "_predictions.json"
"""Readers of a folder of Parquet files (pyarrow, pandas, Spark) pass over names that begin like this."""
_ROW_GROUP_BYTES = 32 << 20
_ADVICE = "Free some space, or choose another --output"


def take(path: Path) -> TextIO:
    """Keep other processes out of the folder, until what is returned is closed. One rank of all does.

    Raises:
        ExperimentError: another process writes to it, or it cannot be written to.
    """
    with explaining(path, "the folder for predictions", _ADVICE):
        path.mkdir(parents=True, exist_ok=True)
        lock = open(path / ".lock", "a+", encoding="utf-8")  # noqa: SIM115 (stays open for as long as it is held)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise ExperimentError(
            f"another process writes predictions to {path}; wait for it, or choose another --output"
        ) from None
    except OSError:
        pass  # a file system without locks
    return lock


def prepare(path: Path, overwrite: bool) -> None:
    """Make the folder, and sweep away what a killed process left unfinished in it. A rank of each machine does.

    Raises:
        ExperimentError: it holds predictions and `overwrite` is false, or it cannot be written to.
    """
    with explaining(path, "the folder for predictions", _ADVICE):
        path.mkdir(parents=True, exist_ok=True)
        for left in path.glob(".part-*"):
            left.unlink(missing_ok=True)
        there = _finished(path)
    if there and not overwrite:
        names = ", ".join(file.name for file in there[:3]) + (", ..." if len(there) > 3 else "")
        raise ExperimentError(
            f"{path} holds predictions already ({names}); --overwrite replaces them, --output names another folder"
        )


def clear(path: Path) -> None:
    """Remove earlier predictions, the summary first: without it, a folder is not complete."""
    with explaining(path, "the folder for predictions", _ADVICE):
        for file in _finished(path):
            file.unlink(missing_ok=True)


def _finished(path: Path) -> list[Path]:
    summary = path / SUMMARY
    return [*([summary] if summary.exists() else []), *sorted(path.glob("part-*.parquet"))]


def write_summary(directory: Path, summary: dict[str, Any]) -> None:
    with explaining(directory / SUMMARY, SUMMARY, _ADVICE):
        replace_text(directory / SUMMARY, json.dumps(finite(summary), indent=2) + "\n")


class PartFile:
    """One rank's file, written under a temporary name, a row group at a time.

    After an error it takes no more rows: the other ranks are still at work, and `finish` raises it when all can hear.
    """

    def __init__(self, directory: Path, rank: int, size: int) -> None:
        self.target = directory / f"part-{rank:05d}-of-{size:05d}.parquet"
        self._temporary = directory / f".{self.target.name}.{socket.gethostname()}.{os.getpid()}"
        self._stream: BinaryIO | None = None
        self._writer: pq.ParquetWriter | None = None
        self._waiting: list[pa.Table] = []
        self.rows = 0
        self.error: ExperimentError | None = None
        self._landed = False

    def add(self, table: pa.Table) -> None:
        """Rows to write; the first table, which may be empty, decides the schema."""
        if self.error is not None:
            return
        self._waiting.append(table)
        self.rows += table.num_rows
        if self._writer is None or sum(piece.nbytes for piece in self._waiting) >= _ROW_GROUP_BYTES:
            self._write()

    def _write(self) -> None:
        table = pa.concat_tables(self._waiting) if self._waiting else None
        self._waiting = []
        try:
            with explaining(self.target, "predictions", _ADVICE):
                if self._writer is None:
                    assert table is not None, "the first table decides the schema"
                    self._stream = open(self._temporary, "xb")  # noqa: SIM115 (closed by finish or discard)
                    self._writer = pq.ParquetWriter(
                        self._stream,
                        table.schema,
                        compression="zstd",
                        use_dictionary=_repeating(table.schema),  # pyright: ignore[reportArgumentType]
                    )
                if table is not None and table.num_rows:
                    self._writer.write_table(table, row_group_size=table.num_rows)
        except ExperimentError as error:
            self.error = error
            self.discard()

    def finish(self) -> None:
        """Complete the file and make it durable; it still has its temporary name.

        Raises:
            ExperimentError: it could not be written.
        """
        if self._waiting and self.error is None:
            self._write()
        if self.error is None:
            assert self._writer is not None and self._stream is not None
            try:
                with explaining(self.target, "predictions", _ADVICE):
                    self._writer.close()
                    self._stream.flush()
                    os.fsync(self._stream.fileno())
                    self._stream.close()
            except ExperimentError as error:
                self.error = error
                self.discard()
        if self.error is not None:
            raise self.error

    def land(self) -> dict[str, Any]:
        """Put it in place; its entry in the summary."""
        with explaining(self.target, "predictions", _ADVICE):
            entry = {"name": self.target.name, "rows": self.rows, **digest_file(self._temporary)}
            os.replace(self._temporary, self.target)
            self._landed = True
        return entry

    def discard(self) -> None:
        """Remove what was written: a file beside which another rank's is lacking is of no use."""
        if self._writer is not None and self._stream is not None:
            with suppress(OSError, ValueError, pa.ArrowException):
                self._writer.close()
            self._writer.is_open = False  # or it would try again when it is collected, and say so
            with suppress(OSError):
                self._stream.close()
        with suppress(OSError):
            (self.target if self._landed else self._temporary).unlink(missing_ok=True)


def _repeating(schema: pa.Schema) -> list[str]:
    """Columns of which a dictionary may save something: not those of floating numbers."""
    return [field.name for field in schema if field.name.endswith("_name") or field.name == "split"]
