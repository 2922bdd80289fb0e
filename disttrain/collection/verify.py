"""Whether a collection directory is as its manifest says, and what its files say fits together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..graph.blocks import blocks_of
from ..graph.files import MANIFEST
from .appending import key_of
from .collated import named, type_name
from .files import parse_manifest, too_short
from .growing import open_array, wrong_file
from .making import DRAFT


def verify_collection(directory: str | Path) -> list[str]:
    """Check that all files of the manifest are there and no others, their sizes and checksums; and if so, that the
    arrays fit together.

    What an `extend` that is at work or was killed has appended is not looked at.

    Returns:
        What is wrong, a line each; empty if nothing is.

    Raises:
        ExperimentError: no manifest, or one that is damaged or of another format.

    Cost: reads every byte once.
    """
    directory = Path(directory)
    manifest = parse_manifest(directory)
    short = too_short(directory, manifest)
    problems = list(short.values())
    for name, entry in manifest["files"].items():
        if name not in short and (problem := wrong_file(directory, name, entry)) is not None:
            problems.append(problem)
    problems += [f"{name} is not in the manifest; remove it" for name in _strangers(directory, manifest)]
    return problems or list(_broken_invariants(directory, manifest))


def _strangers(directory: Path, manifest: dict[str, Any]) -> list[str]:
    extending = (directory / DRAFT).exists()
    before = {f"before-{state['num_graphs']}.json" for state in manifest["history"]}
    known = {*manifest["files"], *before, MANIFEST, DRAFT}
    found = sorted(path.name for path in directory.iterdir() if path.name not in known)
    return [name for name in found if not (extending and name.endswith((".npy", ".partial")))]


def _broken_invariants(directory: Path, manifest: dict[str, Any]) -> Iterator[str]:
    count, files = manifest["num_graphs"], manifest["files"]

    def load(name: str) -> np.ndarray:
        return open_array(directory, name, files[name], mapped=True)

    for entry in manifest["stores"]:
        key = key_of(entry)
        if entry["num_nodes"] is not None:
            counts = load(entry["num_nodes"])
            if counts.shape != (count,) or any((block < 0).any() for block in blocks_of(counts)):
                yield f"{type_name(key)}: the numbers of nodes are not those of {count} graphs"
        for name, column in entry["columns"].items():
            yield from _wrong_column(column, load, count, named(key, name))


def _wrong_column(entry: dict[str, Any], load: Callable[[str], np.ndarray], count: int, called: str) -> Iterator[str]:
    def rows(slot: str) -> int:
        return len(load(entry[slot]))

    kind = entry["kind"]
    if kind in ("mapping", "sequence"):
        inner = entry["columns"].items() if kind == "mapping" else enumerate(entry["columns"])
        for name, each in inner:
            yield from _wrong_column(each, load, count, f"{called}[{name!r}]")
        return
    if kind == "sparse":
        for part in ("rows", "columns", "values"):
            yield from _wrong_column(entry[part], load, count, f"{part} of {called}")
    for slot in ("shapes", "coalesced", "increments"):
        if entry.get(slot) is not None and rows(slot) != count:
            yield f"{called}: {slot} has {rows(slot)} rows, for {count} graphs"
    if kind == "numbers" and rows("values") != count:
        yield f"{called}: it has {rows('values')} values, for {count} graphs"
    if kind in ("ragged", "objects"):
        slices = load(entry["slices"])
        parts = rows("values" if kind == "ragged" else "text")
        if len(slices) != count + 1 or slices[0] != 0 or slices[-1] != parts or not _ascends(slices):
            yield f"{called}: its slices do not divide {parts} rows among {count} graphs"


def _ascends(slices: np.ndarray) -> bool:
    last = 0
    for block in blocks_of(slices):
        if block[0] < last or (np.diff(block) < 0).any():
            return False
        last = block[-1]
    return True
