"""A collection in a database (`data.storage: ondisk`), from which the graphs of a mini-batch are read at once.

Beside the collection's own folder lies one with the database and a manifest, which is written last: without it, the
rows that are there are those of a conversion that was killed, and the next one goes on after them. What is small (how
many rows each graph has, increments, numbers) is taken from the collection's own files.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ..config import ExperimentError
from ..graph.files import MANIFEST, is_sealed, write_manifest
from .cache import Cache, Row
from .collated import Collated
from .database import BACKENDS, Database
from .joining import Names
from .leaves import leaves, picked
from .ragged import Ragged, bits_of

_FORMAT = 1
_FILES = {"sqlite": "sqlite.db", "rocksdb": "rocksdb.db"}
"""As PyG's `OnDiskDataset` calls them."""
_BEGUN = "begun.json"
_CHUNK_BYTES = 8 << 20
_MOST_AT_ONCE = 4096


def ondisk_directory(collection: Path, backend: str) -> Path:
    return collection.with_name(f"{collection.name}-{backend}")


class OnDisk:
    """Reads the graphs of mini-batches from a database; see `Access`.

    Args:
        directory: that `convert` has filled.
        collated: the same collection, mapped; its large arrays are not touched.
        fingerprint: of the collection.
        states: fingerprints that it had before and has had since: what it is extended by comes after what is there.
        cache_bytes: graphs that were used last are kept in memory, up to so many bytes.

    Raises:
        ExperimentError: the database is not there, of another collection, cut short, or its package is not installed.
    """

    def __init__(
        self,
        directory: Path,
        collated: Collated,
        fingerprint: str,
        backend: str,
        cache_bytes: int = 0,
        states: Collection[str] = (),
    ) -> None:
        self.directory, self.collated = directory, collated
        manifest = _manifest(directory)
        known = manifest is not None and manifest["fingerprint"] in (fingerprint, *states)
        if manifest is None or not known or manifest["num_graphs"] < len(collated):
            raise ExperimentError(f"{directory} holds no whole database of this collection; {_again(directory)}")
        with _said(directory, "opened"):
            path = directory / _FILES[backend]
            if (size := _size(path)) < manifest["bytes"]:
                raise ExperimentError(
                    f"{path} is damaged: it has {size} bytes, expected {manifest['bytes']}; {_again(directory)}"
                )
            self._database: Database = BACKENDS[backend](path)
            self._database.read([0], [])
        self.cache = Cache(cache_bytes) if cache_bytes else None
        self._columns = {name: number for number, name in enumerate(leaves(collated))}

    def pick(self, ids: np.ndarray, epoch: int = 0, names: Names | None = None) -> tuple[Collated, np.ndarray]:
        wanted = leaves(self.collated, names)
        # What is kept has to serve whatever is wanted the next time.
        columns = list(self._columns.values()) if self.cache is not None else [self._columns[name] for name in wanted]
        places = {number: place for place, number in enumerate(columns)}
        rows = self._rows(ids, columns) if columns else {}
        values = {}
        for name, leaf in wanted.items():
            place = places[self._columns[name]]
            values[name] = self._joined(name, leaf, ids, [rows[number][place] for number in ids.tolist()])
        return picked(self.collated, ids, values, names), np.arange(len(ids))

    def _rows(self, ids: np.ndarray, columns: list[int]) -> dict[int, Row]:
        asked = np.unique(ids).tolist()
        rows = self.cache.found(asked) if self.cache is not None else {}
        missing = [number for number in asked if number not in rows] if rows else asked
        if missing:
            with _said(self.directory, "read"):
                read = self._database.read(missing, columns)
            if len(read) < len(missing):
                lost = next(number for number in missing if number not in read)
                raise ExperimentError(f"{self.directory} has no graph {lost}; {_again(self.directory)}")
            if self.cache is not None:
                self.cache.keep(read)
            rows |= read
        return rows

    def _joined(self, name: str, leaf: Ragged, ids: np.ndarray, parts: list[bytes]) -> np.ndarray:
        """The graphs' tensors put together, from their bytes."""
        before, after = leaf.shape
        sizes = leaf.sizes(ids)
        row_bytes = _row_bytes(leaf)
        wrong = np.flatnonzero(np.fromiter(map(len, parts), np.int64, len(parts)) != sizes * row_bytes)
        if len(wrong):
            graph, came = int(ids[wrong[0]]), len(parts[wrong[0]])
            raise ExperimentError(
                f"{self.directory} is damaged: {name} of graph {graph} has {came} bytes, expected "
                f"{sizes[wrong[0]] * row_bytes}; {_again(self.directory)}"
            )
        if leaf.axis == 0:
            return np.frombuffer(b"".join(parts), leaf.values.dtype).reshape(int(sizes.sum()), *after)
        whole = [np.empty((*before, 0, *after), leaf.values.dtype)]
        for part, size in zip(parts, sizes.tolist()):
            whole.append(np.frombuffer(part, leaf.values.dtype).reshape(*before, size, *after))
        return np.concatenate(whole, axis=leaf.axis)


def convert(
    collated: Collated,
    directory: Path,
    fingerprint: str,
    backend: str,
    say: Callable[[str], None] | None = None,
    states: Collection[str] = (),
) -> None:
    """Fill a folder with a database of the collection; what is there of it already stays.

    If the process dies, the next one goes on after the graphs that are in. Graphs that a collection has been extended
    by are added. One process at a time, others may read; memory is that of some megabytes of graphs.

    Args:
        collated: mapped.
        fingerprint: of the collection.
        states: see `OnDisk`.
        say: is told how far it is, every so often.

    Raises:
        ExperimentError: the folder cannot be written to, the disk is full, or the database is damaged.
    """
    found = _manifest(directory)
    identity = {"format": _FORMAT, "fingerprint": fingerprint, "backend": backend, "columns": list(leaves(collated))}

    def is_of_it(other: Any) -> bool:
        known = isinstance(other, dict) and other.get("fingerprint") in (fingerprint, *states)
        return known and all(other.get(key) == identity[key] for key in identity.keys() - {"fingerprint"})

    if found is not None and is_of_it(found) and found["num_graphs"] >= len(collated):
        return
    with _said(directory, "written"):
        directory.mkdir(parents=True, exist_ok=True)
        begun = directory / _BEGUN
        written_as = _read_json(begun)
        if not is_of_it(written_as):
            _remove(directory)
        if written_as != identity:  # before the rows: those that are there must be of a state that is named
            temporary = begun.with_suffix(".partial")
            temporary.write_text(json.dumps(identity))
            os.replace(temporary, begun)
        path = directory / _FILES[backend]
        database: Database = BACKENDS[backend](path, len(identity["columns"]))
        try:
            start = database.count()
            for ids in _chunks(collated, start):
                database.write(int(ids[0]), _rows_of(collated, ids))
                if say is not None:
                    say(f"{ids[-1] + 1:,} of {len(collated):,} graphs")
        finally:
            database.close()
        manifest = {**identity, "kind": "ondisk", "num_graphs": len(collated), "bytes": _size(path)}
        write_manifest(directory, manifest)


def _chunks(collated: Collated, start: int) -> Iterator[np.ndarray]:
    """Consecutive graphs of some megabytes, from number `start` on."""
    sizes = np.zeros(len(collated), np.int64)
    for leaf in leaves(collated).values():
        sizes += np.diff(leaf.slices) * _row_bytes(leaf)
    ends = np.cumsum(sizes)
    while start < len(collated):
        before = int(ends[start - 1]) if start else 0
        end = int(np.searchsorted(ends, before + _CHUNK_BYTES, side="right"))
        end = min(max(end, start + 1), start + _MOST_AT_ONCE, len(collated))
        yield np.arange(start, end)
        start = end


def _rows_of(collated: Collated, ids: np.ndarray) -> list[Row]:
    columns: list[list[bytes]] = []
    for leaf in leaves(collated).values():
        columns.append([bits_of(part.contiguous()).tobytes() for part in leaf.parts(ids)])
    return list(zip(*columns)) if columns else [() for _ in ids]


def _row_bytes(leaf: Ragged) -> int:
    before, after = leaf.shape
    return int(np.prod([*before, *after], dtype=np.int64)) * leaf.values.itemsize


def _manifest(directory: Path) -> dict[str, Any] | None:
    """None: the conversion has not come to its end."""
    try:
        content = (directory / MANIFEST).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ExperimentError(f"{directory / MANIFEST} cannot be read: {error}") from error
    try:
        found = json.loads(content)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not is_sealed(content) or found.get("kind") != "ondisk":
        raise ExperimentError(f"{directory / MANIFEST} is damaged; {_again(directory)}")
    return found


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return None


def _remove(directory: Path) -> None:
    """What a conversion of something else left."""
    (directory / MANIFEST).unlink(missing_ok=True)
    for name in _FILES.values():
        path = directory / name
        if path.is_dir():
            shutil.rmtree(path)
        for file in directory.glob(f"{name}*"):  # SQLite's journal too
            file.unlink()


def _size(path: Path) -> int:
    """Of a file, or of all files of a folder."""
    if path.is_dir():
        return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return path.stat().st_size


def _again(directory: Path) -> str:
    return f"remove {directory}, and the next run makes it again, or choose another data.storage"


@contextmanager
def _said(directory: Path, done: str) -> Iterator[None]:
    """Errors of databases and disks as one sentence."""
    try:
        yield
    except ExperimentError:
        raise
    except (OSError, sqlite3.Error) as error:
        text = str(error)
        full = getattr(error, "errno", None) in (28, 122) or "is full" in text
        advice = "make room, or name a folder elsewhere, data.store" if full else _again(directory)
        if done == "written" and not full:
            advice = "name a folder that may be written to, data.store, or choose another data.storage"
            if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
                advice = _again(directory)
        raise ExperimentError(f"data.storage: ondisk: {directory} cannot be {done}: {text}; {advice}") from error
    except Exception as error:
        if type(error) is not Exception:  # which is what RocksDB raises
            raise
        raise ExperimentError(
            f"data.storage: ondisk: {directory} cannot be {done}: {error}; {_again(directory)}"
        ) from error
