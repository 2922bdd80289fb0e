"""`.npy` files that grow at their end. How long they are is said by the manifest, not by their header: what follows is
of a writer that did not come to its end, or has not yet."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np

from ..graph.blocks import row_blocks
from ..graph.files import sync

SEGMENT_BYTES = 1 << 28
"""About as long is what has a checksum of its own."""
_DIGITS = 20


def header(dtype: np.dtype, shape: tuple[int, ...]) -> bytes:
    """Of a `.npy` file; of the same length however many rows there are."""
    descr = np.lib.format.dtype_to_descr(dtype)
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    room = len(text) - len(str(shape[0])) + _DIGITS
    total = -(-(10 + room + 1) // 64) * 64
    return b"\x93NUMPY\x01\x00" + (total - 10).to_bytes(2, "little") + text.ljust(total - 11).encode() + b"\n"


def open_array(directory: Path, name: str, entry: dict[str, Any], mapped: bool) -> np.ndarray:
    """The rows of a file that an entry of the manifest tells of.

    Args:
        mapped: they stay in the file, and come into memory as they are used.
    """
    dtype, shape = np.dtype(entry["dtype"]), tuple(entry["shape"])
    count, start = math.prod(shape), len(header(dtype, shape))
    if not count:
        return np.empty(shape, dtype)
    if not mapped:
        return np.fromfile(directory / name, dtype, count, offset=start).reshape(shape)
    # Of the same memory; picking from `np.memmap` itself costs several times that.
    return np.asarray(np.memmap(directory / name, dtype, "r", start, shape))


class GrowingFiles:
    """The files of a directory, which are numbered. Everything is written through files: on a full disk that is an
    error instead of a SIGBUS."""

    def __init__(self, directory: Path, entries: dict[str, dict[str, Any]]) -> None:
        """Cuts off what the files have beyond their entries, and removes those that have none.

        Args:
            entries: of the manifest; left as they are.

        Raises:
            OSError: a file is not there, or cannot be written to.
            ValueError: a file is shorter than its entry says.
        """
        self.directory = directory
        self.entries: dict[str, dict[str, Any]] = deepcopy(entries)
        self._digests: dict[str, Any] = {}
        self._touched: set[str] = set()
        for path in directory.glob("[0-9]*.npy"):
            if path.name not in entries:
                path.unlink()
        for name, entry in entries.items():
            size = (directory / name).stat().st_size
            if size < entry["bytes"]:
                raise ValueError(f"{name} has {size} bytes, expected {entry['bytes']}")
            if size > entry["bytes"]:
                os.truncate(directory / name, entry["bytes"])
        self._next = 1 + max((int(name.removesuffix(".npy")) for name in entries), default=-1)

    def rows(self, name: str) -> int:
        return self.entries[name]["shape"][0]

    def create(self, dtype: np.dtype, shape: tuple[int, ...]) -> str:
        """A new file of no rows; returns its name.

        Args:
            shape: of a row.
        """
        name = f"{self._next:04}.npy"
        self._next += 1
        start = header(dtype, (0, *shape))
        with (self.directory / name).open("xb") as file:
            file.write(start)
        self.entries[name] = {
            "dtype": np.lib.format.dtype_to_descr(dtype), "shape": [0, *shape], "bytes": len(start), "segments": [],
        }  # fmt: skip
        self._touched.add(name)
        return name

    def append(self, name: str, rows: np.ndarray) -> None:
        entry = self.entries[name]
        assert rows.dtype == np.dtype(entry["dtype"]) and list(rows.shape[1:]) == entry["shape"][1:], (name, rows.shape)
        if not len(rows):
            return
        digest = self._digests.get(name)
        if digest is None or entry["segments"][-1][0] >= SEGMENT_BYTES:
            digest = self._digests[name] = hashlib.blake2b(digest_size=16)
            entry["segments"].append([0, None])
        data = np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data
        with (self.directory / name).open("ab") as file:
            file.write(data)
        digest.update(data)
        entry["segments"][-1][0] += len(data)
        entry["bytes"] += len(data)
        entry["shape"][0] += len(rows)
        self._touched.add(name)

    def blocks(self, name: str) -> Iterator[np.ndarray]:
        """Its rows so far, some megabytes at a time."""
        entry = self.entries[name]
        shape, dtype = entry["shape"], np.dtype(entry["dtype"])
        row_bytes = dtype.itemsize * math.prod(shape[1:])
        with (self.directory / name).open("rb") as file:
            file.seek(entry["bytes"] - shape[0] * row_bytes)
            for rows in row_blocks(shape[0], row_bytes):
                count = rows.stop - rows.start
                yield np.frombuffer(file.read(count * row_bytes), dtype).reshape(count, *shape[1:])

    def copy(self, name: str) -> str:
        """A new file of the same rows; returns its name."""
        entry = self.entries[name]
        other = self.create(np.dtype(entry["dtype"]), tuple(entry["shape"][1:]))
        for block in self.blocks(name):
            self.append(other, block)
        return other

    def remove_but(self, names: set[str]) -> None:
        """Remove the files of other names."""
        for name in set(self.entries) - names:
            (self.directory / name).unlink()
            del self.entries[name]
            self._touched.discard(name)

    def saved(self) -> dict[str, dict[str, Any]]:
        """The entries, once all is on the disk."""
        for name in self._touched:
            sync(self.directory / name)
        self._touched.clear()
        for name, digest in self._digests.items():
            if name in self.entries:
                self.entries[name]["segments"][-1][1] = digest.hexdigest()
        return deepcopy(self.entries)

    def write_headers(self) -> None:
        """For those who read the files by themselves."""
        for name, entry in self.entries.items():
            with (self.directory / name).open("r+b") as file:
                file.write(header(np.dtype(entry["dtype"]), tuple(entry["shape"])))
                file.flush()
                os.fsync(file.fileno())


def wrong_file(directory: Path, name: str, entry: dict[str, Any]) -> str | None:
    """What is wrong with the content of a file; it is read whole."""
    dtype, shape = np.dtype(entry["dtype"]), tuple(entry["shape"])
    try:
        with (directory / name).open("rb") as file:
            start = file.read(len(header(dtype, shape)))
            # An `extend` that was killed before its end leaves the header of before.
            rows = _rows_of(start)
            if rows is None or rows > shape[0] or start != header(dtype, (rows, *shape[1:])):
                return f"{name}: its header is not that of {dtype} {list(shape)}, the file was changed or damaged"
            for size, expected in entry["segments"]:
                digest = hashlib.blake2b(digest_size=16)
                while size and (block := file.read(min(size, 1 << 24))):
                    digest.update(block)
                    size -= len(block)
                if size or digest.hexdigest() != expected:
                    return f"{name}: its checksum differs from the manifest's, the file was changed or damaged"
    except OSError as error:
        return f"{name} cannot be read ({error.strerror})"
    return None


def _rows_of(start: bytes) -> int | None:
    _, _, after = start.partition(b"'shape': (")
    digits = after.partition(b",")[0]
    return int(digits) if digits.isdigit() else None
