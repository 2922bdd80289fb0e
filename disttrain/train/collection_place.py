"""Where the collection of an experiment lies, and what it is known by."""

from __future__ import annotations

import glob
import hashlib
import json
import os
from pathlib import Path
from typing import NamedTuple

from ..collection.files import FORMAT
from ..config import DataSource, ExperimentError, PygData, PythonData
from ..data.digest import NOT_DECIDING, OF_RUNS, add_code, add_module
from ..data.known_files import digest_of_files
from ..data.pyg import files_beside

Source = PygData | PythonData
"""What collections come from."""


class Place(NamedTuple):
    """Where a machine has the collection."""

    directory: str
    fingerprint: str
    """Of what it is made from."""


def folder_of(source: DataSource) -> Path:
    """In which collections from such sources lie, each in a folder of its own."""
    if source.store is not None:
        return Path(source.store)
    return Path(source.root) / "collections" if isinstance(source, PygData) else Path("collections")


def name_of(source: Source) -> str:
    return source.dataset if isinstance(source, PygData) else source.function.rpartition(":")[2]


def place_of(source: Source, fingerprint: str) -> Place:
    return Place(str(folder_of(source) / f"{name_of(source)}-{fingerprint[:12]}"), fingerprint)


def place_by_files(source: Source, remember: bool = True) -> Place | None:
    """By settings, code and files; None of what is known only by the graphs that it gives: a data set that has no raw
    files, or a function of which is not said what it reads.

    Raw files are downloaded where they are not there.

    Args:
        remember: keep a digest of the files in `folder_of`, so that they are read once and not at each start.

    Raises:
        ExperimentError: a file or a function is not there.
    """
    if isinstance(source, PygData):
        files = files_beside(source)
        if not files:
            return None
    elif source.reads is None:
        return None
    else:
        files = read_files(source.reads)
    settings = identity(source)
    known = folder_of(source) / f".files-{name_of(source)}-{settings[:12]}.json"
    digest = hashlib.blake2b(settings.encode(), digest_size=16)
    digest.update(digest_of_files(files, known if remember else None).encode())
    return place_of(source, digest.hexdigest())


def identity(source: Source, setting: str = "data.function") -> str:
    """Hex digest of the settings and of the user's own code that decide the graphs.

    Args:
        setting: that names a function, for messages.
    """
    digest = hashlib.blake2b(digest_size=16)
    settings = source.model_dump(mode="json", exclude={*NOT_DECIDING, *OF_RUNS})
    digest.update(json.dumps([FORMAT, settings], sort_keys=True).encode())
    add_code(digest, source, but=OF_RUNS)
    if isinstance(source, PythonData):
        add_module(digest, source.function, setting)
    return digest.hexdigest()


def read_files(patterns: tuple[str, ...]) -> list[str]:
    """The files that are meant: of a folder all below it.

    Raises:
        ExperimentError: there are none.
    """
    found = []
    for pattern in patterns:
        paths = sorted(glob.glob(pattern, recursive=True))
        if not paths:
            raise ExperimentError(f"data.reads: there is no file or folder {pattern}")
        for path in paths:
            if os.path.isdir(path):
                found += sorted(os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names)
            else:
                found.append(path)
    return found
