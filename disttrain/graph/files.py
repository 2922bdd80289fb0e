"""The files of a partition directory: `.npy` arrays with checksums, and the manifest that lists them.

See docs/partition.md for the layout.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ..config import ExperimentError

FORMAT = 2
MANIFEST = "manifest.json"
_BLOCK = 1 << 24
_SEAL = b',\n "blake2b": "'
_AGAIN = "remove the directory and partition again (`disttrain partition`)"


class _Digest:
    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self._size = 0

    def update(self, data: bytes | memoryview) -> None:
        self._hash.update(data)
        self._size += len(data)

    def entry(self) -> dict[str, Any]:
        return {"bytes": self._size, "blake2b": self._hash.hexdigest()}


def digest_file(path: Path) -> dict[str, Any]:
    """`{"bytes": size, "blake2b": checksum}` of a file, as the manifest has it."""
    digest = _Digest()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.entry()


def write_array(path: Path, dtype: np.dtype, shape: tuple[int, ...], blocks: Iterable[np.ndarray]) -> dict[str, Any]:
    """Write a `.npy` file from consecutive blocks of rows; returns its entry for the manifest.

    Written through a file, not a memory map: on a full disk that is an error instead of a SIGBUS.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    digest = _Digest()
    with path.open("xb") as file:
        header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        file.flush()
        digest.update(path.read_bytes())
        num_rows = 0
        for block in blocks:
            block = np.ascontiguousarray(block, dtype=dtype)
            assert block.shape[1:] == shape[1:], (block.shape, shape)
            num_rows += len(block)
            if block.size:
                data = block.reshape(-1).view(np.uint8).data
                file.write(data)
                digest.update(data)
        assert num_rows == shape[0], (num_rows, shape)
        file.flush()
        os.fsync(file.fileno())
    return digest.entry()


def sync(path: Path) -> None:
    """Have the disk take what a file holds, or which entries a directory has."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def write_manifest(directory: Path, manifest: dict[str, Any]) -> None:
    """Land `manifest.json`; the directory is complete from then on. Its last line is a checksum of those before."""
    temporary = directory / f"{MANIFEST}.partial"
    text = json.dumps(manifest, indent=1, allow_nan=False)
    with temporary.open("wb") as file:
        file.write(_sealed(text.removesuffix("\n}").encode()))
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, directory / MANIFEST)


def _sealed(text: bytes) -> bytes:
    """A JSON object that lacks its closing brace, with a last entry `blake2b`: the checksum of all before it."""
    return text + _SEAL + hashlib.blake2b(text, digest_size=16).hexdigest().encode() + b'"\n}\n'


def is_sealed(content: bytes) -> bool:
    """Whether a manifest's checksum is that of its text."""
    return content == _sealed(content.rpartition(_SEAL)[0])


def read_manifest(directory: str | Path) -> dict[str, Any]:
    """The manifest of a complete partition directory; its own checksum and the sizes of all files are checked.

    Raises:
        ExperimentError: if there is no partition, it is of another format, or files are missing or cut short.
    """
    directory = Path(directory)
    manifest = parse_manifest(directory)
    if problems := list(wrong_sizes(directory, manifest).values()):
        raise ExperimentError(f"partition directory {directory} is damaged: {'; '.join(problems)}; {_AGAIN}")
    return manifest


def parse_manifest(directory: Path) -> dict[str, Any]:
    """The manifest, of which only its own checksum is checked.

    Raises:
        ExperimentError: there is none, it is of another format, or damaged.
    """
    path = directory / MANIFEST
    try:
        content = path.read_bytes()
        manifest = json.loads(content)
        version = manifest["format"]
    except (FileNotFoundError, NotADirectoryError) as error:
        what = "does not exist" if not directory.exists() else "is a file, not a directory"
        if directory.is_dir():
            what = f"has no {MANIFEST}, so it is no complete partition"
        raise ExperimentError(f"partition directory {directory} {what}; make it with `disttrain partition`") from error
    except OSError as error:
        raise ExperimentError(f"{path} cannot be read: {error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ExperimentError(f"{path} is damaged ({type(error).__name__}: {error}); {_AGAIN}") from error
    if version != FORMAT:
        raise ExperimentError(f"{path} is of format {version!r}, this version reads format {FORMAT}; {_AGAIN}")
    if not is_sealed(content):
        raise ExperimentError(f"{path} is damaged: its checksum differs, it was changed or torn; {_AGAIN}")
    del manifest["blake2b"]
    return manifest


def wrong_sizes(directory: Path, manifest: dict[str, Any], growing: bool = False) -> dict[str, str]:
    """The files that are missing or not of the size that the manifest says, and what is wrong with them.

    Args:
        growing: they may be longer than that.
    """
    problems = {}
    for name, entry in manifest["files"].items():
        try:
            size = (directory / name).stat().st_size
            if not os.access(directory / name, os.R_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except OSError as error:
            problems[name] = f"{name} cannot be read ({error.strerror})"
            continue
        if size < entry["bytes"] or (size > entry["bytes"] and not growing):
            problems[name] = f"{name} has {size} bytes, expected {entry['bytes']}"
    return problems
