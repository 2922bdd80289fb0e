"""A collection on the disk that grows by batches of graphs."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..config import ExperimentError
from ..graph.blocks import row_blocks
from .collated import Collated, Key, Store, named, type_name
from .columns import Column, Mapping, Numbers, Objects, Sequence, Sparse
from .gathering import MIXED, as_json
from .growing import GrowingFiles
from .ragged import Ragged
from .summary import summary, together

_REAL = "biuf"


class _Part(NamedTuple):
    """What one slot of the description gets."""

    entry: dict[str, Any]
    slot: str
    rows: np.ndarray
    shared: bool
    """Several slots may have one file, for as long as they have the same rows."""
    zeros: int = 0
    """So many rows of zeros come before, in a file that is new."""


class Appending:
    """The description of a collection and its files, of which each batch makes more.

    A slot of the description names a file. Batches are as `Gatherer` makes them; what the first one has, all have to
    have. The directory is whole again only when `files.saved()` and the description are in a manifest.
    """

    def __init__(self, directory: Path, manifest: dict[str, Any] | None = None, whole: bool = False) -> None:
        """Args:
            manifest: of what is there; None: nothing.
            whole: what is there has to stay as it is: no attribute is given up, and no file is.

        Raises:
            OSError, ValueError: see `GrowingFiles`.
        """
        found = manifest or {"files": {}, "stores": [], "num_graphs": 0, "heterogeneous": False}
        self.files = GrowingFiles(directory, found["files"])
        self.stores: list[dict[str, Any]] = deepcopy(found["stores"])
        self.num_graphs: int = found["num_graphs"]
        self.heterogeneous: bool = found["heterogeneous"]
        self.own_class: str | None = found.get("own_class")
        self.dropped: dict[tuple[Key, str], str] = {}
        """What batches lacked, and why it was given up."""
        self._whole, self._parts = whole, list[_Part]()

    def append(self, batch: Collated, number: int) -> None:
        """Add graphs.

        Args:
            number: of the first of them, for messages.

        Raises:
            ExperimentError: they do not go together with those there.
            OSError: the disk is full.
        """
        where = f"graph {number}"
        if not self.num_graphs:
            self.heterogeneous, self.own_class = batch.heterogeneous, batch.own_class
            self.stores = [self._new_store(key, store) for key, store in batch.stores.items()]
        elif batch.heterogeneous != self.heterogeneous:
            kinds = ["Data", "HeteroData"]
            raise ExperimentError(
                f"{where} is a {kinds[batch.heterogeneous]}, and the collection is of {kinds[self.heterogeneous]}"
            )
        elif batch.own_class != self.own_class:
            ours, theirs = (name or "PyG's own class" for name in (self.own_class, batch.own_class))
            raise ExperimentError(f"{where} is of {theirs}, and the collection is of {ours}")
        else:
            for entry in self.stores:
                self._grow_store(entry, batch.stores.get(key_of(entry)), where)
        self._write()
        self.num_graphs += batch.num_graphs

    def used(self) -> set[str]:
        """The files that the description names."""
        return {name for entry in self.stores for name in _names(entry)}

    # What becomes of each column: an entry of its own for the first batch, and more rows for its files ever after.

    def _new_store(self, key: Key, store: Store) -> dict[str, Any]:
        entry: dict[str, Any] = {
            "key": list(key) if isinstance(key, tuple) else key,
            "num_nodes": None,
            "says_num_nodes": store.says_num_nodes,
            "numbers_nodes": store.numbers_nodes,
        }
        if store.num_nodes is not None:
            self._put(entry, "num_nodes", store.num_nodes, shared=True)
        entry["columns"] = {name: self._grow(None, column, name, "") for name, column in store.columns.items()}
        return entry

    def _grow_store(self, entry: dict[str, Any], store: Store | None, where: str) -> None:
        key = key_of(entry)
        if store is None:
            raise ExperimentError(
                f"{where} has no {type_name(key)}, which the collection has; give it an empty one, tensors of zero rows"
            )
        if entry["says_num_nodes"] and not store.says_num_nodes:
            raise ExperimentError(f"{where} has no {named(key, 'num_nodes')}, which the collection has")
        if entry["num_nodes"] is not None:
            assert store.num_nodes is not None
            self._put(entry, "num_nodes", store.num_nodes, shared=True)
        for name in list(entry["columns"]):
            called = named(key, name)
            if name in store.columns:
                grown = self._grow(entry["columns"][name], store.columns[name], name, f"{where}: {called}")
                why = MIXED
            else:
                grown, why = None, f"it cannot be kept from {where} on"
            if grown is not None:
                entry["columns"][name] = grown
            elif self._whole:
                raise ExperimentError(f"{where} has no {called} that goes with those of the collection: {why}")
            else:
                del entry["columns"][name]
                self.dropped[key, name] = why

    def _grow(self, entry: dict[str, Any] | None, column: Column, name: str, where: str, inner: bool = False) -> Any:
        """The entry of a column, with its parts put; None: it cannot be kept.

        Args:
            inner: part of another column, of which there is no summary.
        """
        made = _new_entry(column) if entry is None else entry
        if isinstance(column, (Numbers, Objects)):
            if entry is None:
                return self._grow_plain(made, column, name, inner)
            return self._grow_numbers(made, column, name, where, inner)
        if (found := _kind_of(column)) != {key: made.get(key) for key in found}:
            raise ExperimentError(f"{where} is {_shown(found)}, and {_shown(made)} in the collection")
        if isinstance(column, Ragged):
            return self._grow_ragged(made, column, name, where, inner)
        if isinstance(column, Sparse):
            for part in ("rows", "columns", "values"):
                made[part] = self._grow(made.get(part), getattr(column, part), part, where, inner=True)
            self._put(made, "shapes", column.shapes)
            self._put(made, "coalesced", column.coalesced)
            return made
        old = made["columns"]
        if isinstance(column, Mapping):
            if lacking := [key for key in old if key not in column.columns]:
                raise ExperimentError(f"{where} has no key {lacking[0]!r}, as in the collection")
            keys = old if entry is not None else column.columns
            inside = {key: self._grow(old.get(key), column.columns[key], key, where, inner=True) for key in keys}
            made["columns"] = inside
            return None if None in inside.values() else made
        assert isinstance(column, Sequence)
        each = old if entry is not None else [None] * len(column.columns)
        made["columns"] = [self._grow(one, new, name, where, inner=True) for one, new in zip(each, column.columns)]
        return None if None in made["columns"] else made

    def _grow_ragged(self, entry: dict[str, Any], column: Ragged, name: str, where: str, inner: bool) -> dict[str, Any]:
        new = entry["values"] is None
        rows = 0 if new else self.files.rows(entry["values"])
        if not new and column.values.shape[1:] != (shape := tuple(self.files.entries[entry["values"]]["shape"][1:])):
            raise ExperimentError(
                f"{where} has {_but_rows(column.values.shape[1:], column.axis)}; it has to be "
                f"{_but_rows(shape, column.axis)}, as in the collection, to be put together along axis {column.axis}"
            )
        self._put(entry, "values", column.values)
        self._put(entry, "slices", column.slices if new else column.slices[1:] + rows, shared=True)
        self._put_increments(entry, column.increments, len(column.slices) - 1, where)
        real = column.values.dtype.kind in _REAL and column.axis == 0 and str(column.values.dtype) == column.dtype
        if real and not inner:
            self._summarise(entry, name, column.values)
        return entry

    def _grow_plain(self, entry: dict[str, Any], column: Numbers | Objects, name: str, inner: bool) -> dict[str, Any]:
        """Numbers of the type that is there, or objects."""
        if isinstance(column, Numbers):
            self._put(entry, "values", column.values)
            self._put_increments(entry, column.increments, len(column.values), "")
            if not inner:
                self._summarise(entry, name, column.values)
        else:
            new = entry["text"] is None
            rows = 0 if new else self.files.rows(entry["text"])
            self._put(entry, "text", column.text)
            self._put(entry, "slices", column.slices if new else column.slices[1:] + rows, shared=True)
        return entry

    def _grow_numbers(
        self, entry: dict[str, Any], column: Numbers | Objects, name: str, where: str, inner: bool
    ) -> dict[str, Any] | None:
        """Numbers of another type than those before make all of them a column of mixed ones."""
        kind = entry["kind"]
        if kind == "objects" and isinstance(column, Objects) and column.mixed == entry["mixed"]:
            return self._grow_plain(entry, column, name, inner)
        numbers = isinstance(column, Numbers) or column.mixed
        if kind not in ("numbers", "objects") or numbers != (kind == "numbers" or entry["mixed"]):
            raise ExperimentError(f"{where} is {_shown(_kind_of(column))}, and {_shown(entry)} in the collection")
        same = isinstance(column, Numbers) and kind == "numbers"
        if same and column.values.dtype == np.dtype(self.files.entries[entry["values"]]["dtype"]):  # type: ignore[union-attr]
            return self._grow_plain(entry, column, name, inner)
        if entry.get("increments") is not None or (isinstance(column, Numbers) and column.increments is not None):
            return None
        mixed = entry if kind == "objects" else self._as_objects(entry)
        more = _mixed(column.values) if isinstance(column, Numbers) else column
        return self._grow_plain(mixed, more, name, inner)

    def _as_objects(self, entry: dict[str, Any]) -> dict[str, Any]:
        made = {"kind": "objects", "text": None, "slices": None, "mixed": True}
        made["text"] = self.files.create(np.dtype(np.uint8), ())
        made["slices"] = self.files.create(np.dtype(np.int64), ())
        self.files.append(made["slices"], np.zeros(1, np.int64))
        for block in self.files.blocks(entry["values"]):
            converted = _mixed(block)
            self.files.append(made["slices"], converted.slices[1:] + self.files.rows(made["text"]))
            self.files.append(made["text"], converted.text)
        return made

    def _put_increments(self, entry: dict[str, Any], increments: np.ndarray | None, count: int, where: str) -> None:
        name = entry["increments"]
        if name is None:
            if increments is not None:
                self._put(entry, "increments", increments, shared=True, zeros=self.num_graphs)
            return
        shape = tuple(self.files.entries[name]["shape"][1:])
        if increments is None:
            increments = np.zeros((count, *shape), np.int64)
        if increments.shape[1:] != shape:
            raise ExperimentError(
                f"{where} has an increment of shape {list(increments.shape[1:])}, and the collection of {list(shape)}"
            )
        self._put(entry, "increments", increments, shared=True)

    def _summarise(self, entry: dict[str, Any], name: str, values: np.ndarray) -> None:
        found = summary(name, values)
        entry["summary"] = found if entry["summary"] is None else together(entry["summary"], found)

    def _put(self, entry: dict[str, Any], slot: str, rows: np.ndarray, shared: bool = False, zeros: int = 0) -> None:
        self._parts.append(_Part(entry, slot, rows, shared, zeros))

    def _write(self) -> None:
        """Write the parts that were put: to slots of one file once, as long as they have the same."""
        files: dict[Any, dict[Any, list[_Part]]] = {}
        for part in self._parts:
            name = part.entry[part.slot]
            own = id(part) if name is None and not part.shared else 0
            content = (part.rows.shape, part.rows.tobytes()) if part.shared else None
            files.setdefault((name, part.zeros, own), {}).setdefault(content, []).append(part)
        self._parts = []
        for (name, zeros, _), contents in files.items():
            parts = [same[0] for same in contents.values()]
            # The first goes on with the file; the others begin with a copy of what they had together.
            names = [name, *(self.files.copy(name) for _ in parts[1:])] if name is not None else []
            for number, (same, part) in enumerate(zip(contents.values(), parts)):
                file = names[number] if names else self._begun(part.rows, zeros)
                self.files.append(file, part.rows)
                for each in same:
                    each.entry[each.slot] = file

    def _begun(self, rows: np.ndarray, zeros: int) -> str:
        name = self.files.create(rows.dtype, rows.shape[1:])
        for block in row_blocks(zeros, rows.itemsize * int(np.prod(rows.shape[1:]))):
            self.files.append(name, np.zeros((block.stop - block.start, *rows.shape[1:]), rows.dtype))
        return name


def key_of(entry: dict[str, Any]) -> Key:
    """Of a store of the manifest."""
    key = entry["key"]
    return (key[0], key[1], key[2]) if isinstance(key, list) else key


def _kind_of(column: Column) -> dict[str, Any]:
    """What of a column cannot change from batch to batch."""
    if isinstance(column, Ragged):
        return {"kind": "ragged", "axis": column.axis, "dtype": column.dtype}
    if isinstance(column, Numbers):
        return {"kind": "numbers"}
    if isinstance(column, Objects):
        return {"kind": "objects", "mixed": column.mixed}
    if isinstance(column, Sparse):
        return {"kind": "sparse", "layout": column.layout, "diagonal": column.diagonal}
    if isinstance(column, Mapping):
        return {"kind": "mapping"}
    assert isinstance(column, Sequence)
    return {"kind": "sequence"}


_SLOTS = {
    "ragged": ("values", "slices", "increments", "summary"), "numbers": ("values", "increments", "summary"),
    "objects": ("text", "slices"), "sparse": ("shapes", "coalesced"),
}  # fmt: skip


def _new_entry(column: Column) -> dict[str, Any]:
    entry = _kind_of(column)
    entry.update(dict.fromkeys(_SLOTS.get(entry["kind"], ())))
    if entry["kind"] in ("mapping", "sequence"):
        entry["columns"] = {} if entry["kind"] == "mapping" else []
    return entry


def _shown(kind: dict[str, Any]) -> str:
    if kind["kind"] == "ragged":
        return f"{kind['dtype']} along axis {kind['axis']}"
    if kind["kind"] == "sparse":
        return f"a {kind['layout'].upper()} matrix{' of the diagonal' if kind['diagonal'] else ''}"
    if kind["kind"] == "objects":
        return "a number" if kind["mixed"] else "an object"
    return {"numbers": "a number", "mapping": "a mapping", "sequence": "a list of tensors"}[kind["kind"]]


def _but_rows(shape: tuple[int, ...], axis: int) -> str:
    return f"[{', '.join([*map(str, shape[:axis]), '...', *map(str, shape[axis:])])}]"


def _mixed(values: np.ndarray) -> Objects:
    return as_json([json.dumps(value) for value in values.tolist()], mixed=True)


def _names(entry: Any) -> set[str]:
    """The files that are named in a part of the description."""
    if isinstance(entry, dict):
        slots = ("values", "slices", "increments", "text", "shapes", "coalesced", "num_nodes")
        here = {entry[slot] for slot in slots if isinstance(entry.get(slot), str)}
        return here.union(*(_names(inner) for inner in entry.values()))
    return set().union(*(_names(inner) for inner in entry)) if isinstance(entry, list) else set()
