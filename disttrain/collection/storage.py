"""How a collection is held while a run reads it: in memory, mapped, some of each; and which of these fits."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ..config import ExperimentError
from ..config.counted import counted
from ..data.nearest import nearest
from ..memory import available_memory
from .collated import Collated
from .files import open_collection
from .graphs import Graphs

_SHARE = 4
"""One part in so many of the free memory is for the collection, unless `data.memory_limit` says otherwise."""


@dataclass(frozen=True)
class Opened(Collated):
    """A collection from its files. It pickles as where these lie, without an array: a worker process maps them,
    whatever this one has read."""

    directory: Path | None = None
    manifest: dict[str, Any] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return opened, (self.directory, self.manifest)


class Choice(NamedTuple):
    """What `auto` came to."""

    storage: str
    why: str


def opened(directory: Path, manifest: dict[str, Any], in_memory: Collection[str] | None = ()) -> Opened:
    """Args:
    in_memory: attributes that are read now, in all types; the others are mapped, and come into memory as they are
        used. None: all.

    Raises:
        ExperimentError: no graph has such an attribute.
    """
    if in_memory is None:
        files = set(manifest["files"])
    else:
        refuse_unknown(manifest, in_memory)
        files = set(_files_of(manifest, in_memory))
    found = open_collection(directory, manifest, mapped=True, in_memory=files)
    of_it = (found.num_graphs, found.heterogeneous, found.stores, found.left_out)
    return Opened(*of_it, own_class=found.own_class, directory=directory, manifest=manifest)


def refuse_unknown(manifest: dict[str, Any], names: Collection[str]) -> None:
    """Raises:
    ExperimentError: no graph has such an attribute.
    """
    known = {name for entry in manifest["stores"] for name in entry["columns"]}
    for name in names:
        if name not in known:
            raise ExperimentError(
                f'data.in_memory: the graphs have no attribute "{name}"{nearest(name, known)}: '
                f"they have {', '.join(sorted(known))}"
            )


def of_nodes(graphs: Graphs) -> list[str]:
    """The attributes with a row for each node, of some type."""
    return list(dict.fromkeys(name for _, names in graphs.of_nodes.values() for name in names))


def choose(
    manifest: dict[str, Any], node_attributes: Collection[str], *, limit: int | None, ranks: int, processes: bool
) -> Choice:
    """What `data.storage: auto` is.

    Args:
        limit: `data.memory_limit`.
        ranks: of this machine; each would hold a copy.
        processes: workers are processes.
    """
    size = sum(entry["bytes"] for entry in manifest["files"].values())
    if processes:
        return Choice("mmap", f"worker processes share the mapped files ({_bytes(size)})")
    most, called = limit, "data.memory_limit"
    if most is None:
        most, called = available_memory() // _SHARE, "a quarter of the free memory; data.memory_limit says otherwise"
    copies = counted(ranks, "rank")
    bound = f"{_bytes(most)} ({called})"
    if size * ranks <= most:
        return Choice("memory", f"{_bytes(size)} in each of {copies} are within {bound}")
    part = sum(manifest["files"][name]["bytes"] for name in _files_of(manifest, node_attributes))
    if part and part * ranks <= most:
        return Choice(
            "hybrid",
            f"{_bytes(size)} in each of {copies} are more than {bound}, and the attributes of nodes, {_bytes(part)}, "
            "are not",
        )
    return Choice("mmap", f"{_bytes(size)} in each of {copies} are more than {bound}")


def _files_of(manifest: dict[str, Any], names: Collection[str]) -> Iterator[str]:
    """The files that hold these attributes."""
    found = [column for entry in manifest["stores"] for name, column in entry["columns"].items() if name in names]
    seen: set[str] = set()
    for column in found:
        for file in _strings(column):
            if file in manifest["files"] and file not in seen:
                seen.add(file)
                yield file


def _strings(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    elif isinstance(entry, (dict, list)):
        for value in entry.values() if isinstance(entry, dict) else entry:
            yield from _strings(value)


def _bytes(size: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} GiB"
