"""A collection on the disk: an `.npy` file per array and one manifest, in a directory that appears whole or not at all.

All ranks of a machine, and all runs, map the same files: one copy in the page cache, and nothing to read at the start.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from ..config import ExperimentError
from ..graph.blocks import blocks_of
from ..graph.columns import Summary, summarise
from ..graph.files import MANIFEST, is_sealed, write_array, write_manifest, wrong_sizes
from ..graph.landing import AlreadyThereError, landing
from .collated import Collated, Key, Store
from .columns import Column, Mapping, Numbers, Objects, Sequence, Sparse
from .ragged import Ragged

FORMAT = 1
_WHAT = "collection directory"
_MOST_COLUMNS = 4096
"""As wide may an attribute be of which mean and standard deviation are kept."""
_REAL = "biuf"


def write_collection(collated: Collated, directory: Path, fingerprint: str, setting: str) -> None:
    """Write a collection; if the directory has been made by another process meanwhile, that one's stays.

    Args:
        fingerprint: of what it is made from.
        setting: by which the user can have it elsewhere, for messages.

    Raises:
        ExperimentError: the disk is full or cannot be written to.
    """
    arrays = _Arrays()
    stores = [_store(key, store, arrays) for key, store in collated.stores.items()]
    num_bytes = sum(array.nbytes for array in arrays.files.values())
    with (
        suppress(AlreadyThereError),
        landing(directory, num_bytes, called=_WHAT, contents="its files", setting=setting) as partial,
    ):
        files = {
            name: write_array(partial / name, array.dtype, array.shape, blocks_of(array))
            for name, array in arrays.files.items()
        }
        manifest = {
            "format": FORMAT,
            "kind": "collection",
            "fingerprint": fingerprint,
            "num_graphs": collated.num_graphs,
            "heterogeneous": collated.heterogeneous,
            "left_out": list(collated.left_out),
            "stores": stores,
            "files": files,
        }
        write_manifest(partial, manifest)


def read_manifest(directory: Path) -> dict[str, Any]:
    """The manifest of a collection; its checksum and the sizes of all files are checked.

    Raises:
        ExperimentError: there is none, it is of another format, or it or a file is damaged.
    """
    again = "remove the directory, and the next run makes it again"
    try:
        content = (directory / MANIFEST).read_bytes()
        manifest = json.loads(content)
        version, kind = manifest["format"], manifest.get("kind")
    except OSError as error:
        raise ExperimentError(f"{_WHAT} {directory} cannot be read: {error}; {again}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ExperimentError(
            f"{directory / MANIFEST} is damaged ({type(error).__name__}: {error}); {again}"
        ) from error
    if (kind, version) != ("collection", FORMAT):
        raise ExperimentError(
            f"{directory / MANIFEST} is of the kind {kind or 'partition'}, format {version}; expected a collection of "
            f"format {FORMAT}; {again}"
        )
    problems = [] if is_sealed(content) else [f"the checksum of {MANIFEST} differs"]
    problems += wrong_sizes(directory, manifest).values()
    if problems:
        raise ExperimentError(f"{_WHAT} {directory} is damaged: {'; '.join(problems)}; {again}")
    return manifest


def open_collection(directory: Path, manifest: dict[str, Any], mapped: bool) -> Collated:
    """Args:
    mapped: the arrays stay in their files, and come into memory as they are used; otherwise they are read now.
    """
    loaded: dict[str, np.ndarray] = {}

    def load(name: str) -> np.ndarray:
        if name not in loaded:
            array = np.load(directory / name, mmap_mode="r" if mapped else None, allow_pickle=False)
            loaded[name] = np.asarray(
                array
            )  # of the same memory; picking from `np.memmap` itself costs several times that
        return loaded[name]

    stores: dict[Key, Store] = {}
    for entry in manifest["stores"]:
        key = entry["key"]
        columns = {name: _read(column, load) for name, column in entry["columns"].items()}
        counts = load(entry["num_nodes"]) if entry["num_nodes"] is not None else None
        stores[(key[0], key[1], key[2]) if isinstance(key, list) else key] = Store(
            columns, counts, entry["says_num_nodes"], entry["numbers_nodes"]
        )
    return Collated(manifest["num_graphs"], manifest["heterogeneous"], stores, tuple(manifest["left_out"]))


def content_digest(collated: Collated) -> str:
    """Hex digest of all that batches are cut from."""
    digest, arrays = hashlib.blake2b(digest_size=16), _Arrays()
    described = [_store(key, store, arrays, summaries=False) for key, store in collated.stores.items()]
    digest.update(json.dumps([FORMAT, collated.num_graphs, collated.heterogeneous, described]).encode())
    for array in arrays.files.values():
        digest.update(f"\n{array.dtype} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


class _Arrays:
    """The arrays of a collection by the name of their file; one that several columns share is there once."""

    def __init__(self) -> None:
        self.files: dict[str, np.ndarray] = {}
        self._names: dict[int, str] = {}

    def name(self, array: np.ndarray | None) -> str | None:
        if array is None:
            return None
        if id(array) not in self._names:
            self._names[id(array)] = name = f"{len(self.files):04}.npy"
            self.files[name] = array
        return self._names[id(array)]


def _store(key: Key, store: Store, arrays: _Arrays, summaries: bool = True) -> dict[str, Any]:
    return {
        "key": list(key) if isinstance(key, tuple) else key,
        "num_nodes": arrays.name(store.num_nodes),
        "says_num_nodes": store.says_num_nodes,
        "numbers_nodes": store.numbers_nodes,
        "columns": {name: _described(name, column, arrays, summaries) for name, column in store.columns.items()},
    }


def _described(name: str, column: Column, arrays: _Arrays, summaries: bool) -> dict[str, Any]:
    if isinstance(column, Ragged):
        real = column.values.dtype.kind in _REAL and column.axis == 0 and str(column.values.dtype) == column.dtype
        return {
            "kind": "ragged",
            "values": arrays.name(column.values),
            "slices": arrays.name(column.slices),
            "axis": column.axis,
            "dtype": column.dtype,
            "increments": arrays.name(column.increments),
            "summary": _summary(name, column.values) if real and summaries else None,
        }
    if isinstance(column, Numbers):
        return {
            "kind": "numbers",
            "values": arrays.name(column.values),
            "increments": arrays.name(column.increments),
            "summary": _summary(name, column.values) if summaries else None,
        }
    if isinstance(column, Objects):
        named = {"text": arrays.name(column.text), "slices": arrays.name(column.slices)}
        return {"kind": "objects", **named, "mixed": column.mixed}
    if isinstance(column, Sparse):
        parts = {part: getattr(column, part) for part in ("rows", "columns", "values")}
        return {
            "kind": "sparse",
            "layout": column.layout,
            "diagonal": column.diagonal,
            **{part: _described(part, inner, arrays, False) for part, inner in parts.items()},
            "shapes": arrays.name(column.shapes),
            "coalesced": arrays.name(column.coalesced),
        }
    if isinstance(column, Mapping):
        inner = {key: _described(key, each, arrays, False) for key, each in column.columns.items()}
        return {"kind": "mapping", "columns": inner}
    assert isinstance(column, Sequence)
    return {"kind": "sequence", "columns": [_described(name, each, arrays, False) for each in column.columns]}


def _read(entry: dict[str, Any], load: Callable[[str], np.ndarray]) -> Any:
    def maybe(name: str | None) -> np.ndarray | None:
        return None if name is None else load(name)

    if entry["kind"] == "ragged":
        values, slices = load(entry["values"]), load(entry["slices"])
        return Ragged(values, slices, entry["axis"], entry["dtype"], maybe(entry["increments"]))
    if entry["kind"] == "numbers":
        return Numbers(load(entry["values"]), maybe(entry["increments"]))
    if entry["kind"] == "objects":
        return Objects(load(entry["text"]), load(entry["slices"]), entry["mixed"])
    if entry["kind"] == "sparse":
        rows, columns, values = (_read(entry[part], load) for part in ("rows", "columns", "values"))
        shapes, coalesced = load(entry["shapes"]), load(entry["coalesced"])
        return Sparse(entry["layout"], entry["diagonal"], rows, columns, values, shapes, coalesced)
    if entry["kind"] == "mapping":
        return Mapping({name: _read(inner, load) for name, inner in entry["columns"].items()})
    return Sequence([_read(inner, load) for inner in entry["columns"]])


def _summary(name: str, array: np.ndarray) -> dict[str, Any]:
    """What the manifest says of an attribute's values, see `summarise`."""
    width = int(np.prod(array.shape[1:]))
    found = summarise(array, feature=name == "x" and width <= _MOST_COLUMNS)
    moments = {}
    if found.mean is not None and found.std is not None and width <= _MOST_COLUMNS:
        moments = {"mean": _finite(found.mean), "std": _finite(found.std)}
    return {"low": found.low, "high": found.high, "missing": found.missing, **moments}


def _finite(values: np.ndarray) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in values]


def read_summary(entry: dict[str, Any]) -> Summary:
    """Of a column of the manifest; of what has none, an empty one."""
    found = entry.get("summary") or {"low": None, "high": None, "missing": 0}
    mean, std = (
        None if name not in found else np.array([np.nan if v is None else v for v in found[name]])
        for name in ("mean", "std")
    )
    return Summary(found["low"], found["high"], found["missing"], mean, std)
