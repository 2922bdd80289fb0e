"""The files of a partition directory: `.npy` arrays with checksums, and the manifest that lists them.

See docs/partition.md for the layout.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ..config import EdgeType, ExperimentError, edge_type_name

FORMAT = 1
MANIFEST = "manifest.json"
_BLOCK = 1 << 24
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


def write_manifest(directory: Path, manifest: dict[str, Any]) -> None:
    """Land `manifest.json`; the directory is complete from then on."""
    temporary = directory / f"{MANIFEST}.partial"
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(manifest, file, indent=1, allow_nan=False)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, directory / MANIFEST)


def read_manifest(directory: str | Path) -> dict[str, Any]:
    """The manifest of a complete partition directory; sizes of all files are checked, checksums are not.

    Raises:
        ExperimentError: if there is no partition, it is of another format, or files are missing or cut short.
    """
    directory = Path(directory)
    manifest = _parse_manifest(directory)
    if problems := _wrong_sizes(directory, manifest):
        raise ExperimentError(f"partition directory {directory} is damaged: {'; '.join(problems)}; {_AGAIN}")
    return manifest


def _parse_manifest(directory: Path) -> dict[str, Any]:
    path = directory / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        version = manifest["format"]
    except (FileNotFoundError, NotADirectoryError) as error:
        what = f"has no {MANIFEST}, so it is no complete partition" if directory.is_dir() else "does not exist"
        raise ExperimentError(f"partition directory {directory} {what}; make it with `disttrain partition`") from error
    except OSError as error:
        raise ExperimentError(f"{path} cannot be read: {error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ExperimentError(f"{path} is damaged ({type(error).__name__}: {error}); {_AGAIN}") from error
    if version != FORMAT:
        raise ExperimentError(f"{path} is of format {version!r}, this version reads format {FORMAT}; {_AGAIN}")
    return manifest


def _wrong_sizes(directory: Path, manifest: dict[str, Any]) -> list[str]:
    problems = []
    for name, entry in manifest["files"].items():
        try:
            size = (directory / name).stat().st_size
        except OSError as error:
            problems.append(f"{name} cannot be read ({error.strerror})")
            continue
        if size != entry["bytes"]:
            problems.append(f"{name} has {size} bytes, expected {entry['bytes']}")
    return problems


def verify(directory: str | Path) -> list[str]:
    """Check each file's size and checksum against the manifest, then that the arrays fit together.

    Returns:
        What is wrong, a line each; empty if nothing is.

    Raises:
        ExperimentError: no manifest, or an unreadable one.

    Cost: reads every byte once, the structure twice.
    """
    directory = Path(directory)
    manifest = _parse_manifest(directory)
    if problems := _wrong_sizes(directory, manifest):
        return problems
    problems = [
        f"{name}: its checksum differs from the manifest's, the file was changed or damaged"
        for name, entry in manifest["files"].items()
        if digest_file(directory / name) != {"bytes": entry["bytes"], "blake2b": entry["blake2b"]}
    ]
    return problems or _broken_invariants(directory, manifest)


def _broken_invariants(directory: Path, manifest: dict[str, Any]) -> list[str]:
    problems: list[str] = []

    def check(holds: Any, problem: str) -> None:
        if not holds:
            problems.append(problem)

    def load(name: str) -> np.ndarray:
        return np.load(directory / name, mmap_mode="r", allow_pickle=False)

    counts: dict[str, int] = {}
    for index, entry in enumerate(manifest["node_types"]):
        where, count, bounds = f"node type {entry['type']}", entry["num_nodes"], np.asarray(entry["bounds"])
        counts[entry["type"]] = count
        covers = len(bounds) == manifest["parts"] + 1 and bounds[0] == 0 and bounds[-1] == count
        check(covers and (np.diff(bounds) >= 0).all(), f"{where}: its bounds do not divide 0 to {count} into the parts")
        check(is_permutation(load(f"nodes/{index}/original_id.npy"), count), f"{where}: original_id is no permutation")
        problems += _wrong_attributes(where, entry["attributes"], count, load)
    for entry in manifest["edge_types"]:
        edge_type: EdgeType = tuple(entry["type"])
        where, count = f"edge type {edge_type_name(edge_type)}", entry["num_edges"]
        num_src, num_dst = counts[edge_type[0]], counts[edge_type[2]]
        colptr, row, edge_id, degree = (load(entry["files"][n]) for n in ("colptr", "row", "edge_id", "src_degree"))
        check(
            colptr.shape == (num_dst + 1,) and colptr[0] == 0 and colptr[-1] == count, f"{where}: colptr does not fit"
        )
        check((np.diff(colptr) >= 0).all(), f"{where}: colptr descends")
        check(row.shape == (count,), f"{where}: row does not have {count} entries")
        in_range = not len(row) or (row.min() >= 0 and row.max() < num_src)
        check(in_range, f"{where}: a source is not among the {num_src} nodes of type {edge_type[0]}")
        check(is_permutation(edge_id, count), f"{where}: edge_id is no permutation")
        if in_range:
            fits = np.array_equal(np.bincount(row, minlength=num_src)[:num_src], degree)
            check(fits, f"{where}: src_degree does not count the sources")
        problems += _wrong_attributes(where, entry["attributes"], count, load)
    return problems


def _wrong_attributes(where: str, attributes: dict[str, Any], count: int, load: Any) -> list[str]:
    problems = []
    for name, attribute in attributes.items():
        array = load(attribute["file"])
        expected = (count, *attribute["shape"])
        if array.shape != expected or array.dtype.name != attribute["dtype"]:
            problems.append(
                f"{where}, attribute {name}: expected {attribute['dtype']} {list(expected)}, "
                f"the file holds {array.dtype.name} {list(array.shape)}"
            )
    return problems


def is_permutation(ids: np.ndarray, count: int) -> bool:
    """Whether `ids` holds each of 0 to `count - 1` once."""
    if ids.shape != (count,) or (count and (ids.min() < 0 or ids.max() >= count)):
        return False
    seen = np.zeros(count, dtype=bool)
    seen[ids] = True
    return bool(seen.all())
