"""A collection on the disk: an `.npy` file per array and one manifest, in a directory that appears whole or not at all.

All ranks of a machine, and all runs, map the same files: one copy in the page cache, and nothing to read at the start.
The files may grow (see `growing.py`): what a manifest says stays true of their first rows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from ..config import ExperimentError
from ..graph.files import MANIFEST, is_sealed, write_manifest, wrong_sizes
from ..graph.landing import AlreadyThereError, landing
from .appending import Appending, key_of
from .collated import Collated, Key, Store
from .columns import Column, Mapping, Numbers, Objects, Sequence, Sparse
from .growing import open_array
from .ragged import Ragged

FORMAT = 2
_WHAT = "collection directory"
_AGAIN = "remove the directory, and the next run makes it again"


def write_collection(collated: Collated, directory: Path, fingerprint: str, setting: str) -> None:
    """Write a collection; if the directory has been made by another process meanwhile, that one's stays.

    Args:
        fingerprint: of what it is made from.
        setting: by which the user can have it elsewhere, for messages.

    Raises:
        ExperimentError: the disk is full or cannot be written to.
    """
    num_bytes = sum(array.nbytes for array in _arrays(collated))
    with (
        suppress(AlreadyThereError),
        landing(directory, num_bytes, called=_WHAT, contents="its files", setting=setting) as partial,
    ):
        made = Appending(partial)
        made.append(collated, 0)
        write_manifest(partial, manifest_of(made, fingerprint, collated.left_out, {}))
        made.files.write_headers()


def manifest_of(made: Appending, fingerprint: str, left_out: tuple[str, ...], more: dict[str, Any]) -> dict[str, Any]:
    """What a manifest says, once all files are on the disk.

    Args:
        more: `digests`, of its batches, where it is known by them; `history`, what it was as it grew: of each state
            `num_graphs`, `fingerprint`, and of what was added last `content`.
    """
    history = [{"num_graphs": made.num_graphs, "fingerprint": fingerprint}]
    return {
        "format": FORMAT,
        "kind": "collection",
        "fingerprint": fingerprint,
        "num_graphs": made.num_graphs,
        "heterogeneous": made.heterogeneous,
        "own_class": made.own_class,
        "left_out": list(left_out),
        **{"digests": None, "history": history, **more},
        "stores": made.stores,
        "files": made.files.saved(),
    }


def is_collection(directory: Path) -> bool:
    """Whether its manifest is that of a collection, not of partitions."""
    try:
        return json.loads((directory / MANIFEST).read_bytes()).get("kind") == "collection"
    except (OSError, ValueError, AttributeError):
        return False


def parse_manifest(directory: Path, name: str = MANIFEST) -> dict[str, Any]:
    """The manifest of a collection, of which only its own checksum is checked.

    Args:
        name: of its file; that of the state now, or of an earlier one.

    Raises:
        ExperimentError: there is none, it is of another format, or damaged.
    """
    try:
        content = (directory / name).read_bytes()
        manifest = json.loads(content)
        version, kind = manifest["format"], manifest.get("kind")
    except OSError as error:
        raise ExperimentError(f"{_WHAT} {directory} cannot be read: {error}; {_AGAIN}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ExperimentError(f"{directory / name} is damaged ({type(error).__name__}: {error}); {_AGAIN}") from error
    if (kind, version) != ("collection", FORMAT):
        raise ExperimentError(
            f"{directory / name} is of the kind {kind or 'partition'}, format {version}; expected a collection of "
            f"format {FORMAT}; {_AGAIN}"
        )
    if not is_sealed(content):
        raise ExperimentError(f"{_WHAT} {directory} is damaged: the checksum of {name} differs; {_AGAIN}")
    return manifest


def read_manifest(directory: Path, name: str = MANIFEST) -> dict[str, Any]:
    """The manifest of a collection; its checksum and the sizes of all files are checked.

    Raises:
        ExperimentError: there is none, it is of another format, or it or a file is damaged.
    """
    manifest = parse_manifest(directory, name)
    if problems := list(too_short(directory, manifest).values()):
        raise ExperimentError(f"{_WHAT} {directory} is damaged: {'; '.join(problems)}; {_AGAIN}")
    return manifest


def too_short(directory: Path, manifest: dict[str, Any]) -> dict[str, str]:
    """The files that are missing or lack some of what the manifest says, and what is wrong with them. They may be
    longer: an `extend` is at work, or was killed."""
    return wrong_sizes(directory, manifest, growing=True)


def open_collection(
    directory: Path, manifest: dict[str, Any], mapped: bool, in_memory: Collection[str] = ()
) -> Collated:
    """Args:
    manifest: what is read of it is the same whatever the files have grown by since.
    mapped: the arrays stay in their files, and come into memory as they are used; otherwise they are read now.
    in_memory: files that are read all the same.
    """
    loaded: dict[str, np.ndarray] = {}

    def load(name: str) -> np.ndarray:
        if name not in loaded:
            kept = mapped and name not in in_memory
            loaded[name] = open_array(directory, name, manifest["files"][name], kept)
        return loaded[name]

    stores: dict[Key, Store] = {}
    for entry in manifest["stores"]:
        columns = {name: _read(column, load) for name, column in entry["columns"].items()}
        counts = load(entry["num_nodes"]) if entry["num_nodes"] is not None else None
        stores[key_of(entry)] = Store(columns, counts, entry["says_num_nodes"], entry["numbers_nodes"])
    left_out, own_class = tuple(manifest["left_out"]), manifest.get("own_class")
    return Collated(manifest["num_graphs"], manifest["heterogeneous"], stores, left_out, own_class)


def content_digest(collated: Collated) -> str:
    """Hex digest of all that batches are cut from."""
    about = [FORMAT, collated.num_graphs, collated.heterogeneous, *([collated.own_class] if collated.own_class else [])]
    digest = hashlib.blake2b(json.dumps(about).encode(), digest_size=16)
    for key, store in collated.stores.items():
        digest.update(f"\n{json.dumps([key, store.says_num_nodes, store.numbers_nodes, list(store.columns)])}".encode())
        for array in () if store.num_nodes is None else (store.num_nodes,):
            _add_array(digest, array)
        for column in store.columns.values():
            _add_column(digest, column)
    return digest.hexdigest()


def _add_column(digest: Any, column: Column) -> None:
    digest.update(f"\n{type(column).__name__}".encode())
    for name, value in _fields(column):
        if isinstance(value, np.ndarray):
            _add_array(digest, value)
        elif isinstance(value, Ragged):
            _add_column(digest, value)
        elif name == "columns":
            digest.update(json.dumps(list(value) if isinstance(value, dict) else len(value)).encode())
            for inner in value.values() if isinstance(value, dict) else value:
                _add_column(digest, inner)
        elif isinstance(value, (str, int, bool)) or value is None:
            digest.update(f"\n{name} {value}".encode())


def _add_array(digest: Any, array: np.ndarray) -> None:
    digest.update(f"\n{array.dtype} {array.shape}\n".encode())
    digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def _arrays(collated: Collated) -> Iterator[np.ndarray]:
    for store in collated.stores.values():
        if store.num_nodes is not None:
            yield store.num_nodes
        for column in store.columns.values():
            yield from _arrays_of(column)


def _arrays_of(column: Any) -> Iterator[np.ndarray]:
    inner = getattr(column, "columns", None)
    if isinstance(inner, (dict, list)):
        for each in inner.values() if isinstance(inner, dict) else inner:
            yield from _arrays_of(each)
        return
    for _, value in _fields(column):
        if isinstance(value, np.ndarray):
            yield value
        elif isinstance(value, Ragged):
            yield from _arrays_of(value)


def _fields(column: Any) -> list[tuple[str, Any]]:
    return [(field.name, getattr(column, field.name)) for field in fields(column)]


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
