"""Where the files of tables lie."""

from __future__ import annotations

import importlib.util
import os
import zipfile

from ..config import EdgeTable, ExperimentError, NodeTable, TablesData
from .nearest import nearest

_READERS = {".csv": "read_csv", ".tsv": "read_csv", ".txt": "read_csv", ".gz": "read_csv", ".parquet": "read_parquet"}


def tables_of(data: TablesData) -> dict[str, NodeTable | EdgeTable]:
    """Every table by its place in the YAML: `nodes.flight`, `edges["user,rates,item"]`."""
    named: dict[str, NodeTable | EdgeTable] = {f"nodes.{name}": table for name, table in data.nodes.items()}
    return {**named, **{f'edges["{name}"]': table for name, table in data.edges.items()}}


def root_folder(root: str) -> str:
    """`data.root` as a folder. `package:<name>/<folder>` is found without importing the package.

    Raises:
        ExperimentError: if the package is not installed or the folder does not exist.
    """
    if root.startswith("package:"):
        name, _, inside = root.removeprefix("package:").partition("/")
        try:
            spec = importlib.util.find_spec(name)
        except ModuleNotFoundError:  # the package that a dotted name lies in
            spec = None
        if spec is None or not spec.submodule_search_locations:
            raise ExperimentError(f'data.root: the package "{name}" is not installed; pip install {name}')
        folder = os.path.join(next(iter(spec.submodule_search_locations)), inside)
    else:
        folder = root
    if not os.path.isdir(folder):
        raise ExperimentError(f"data.root: there is no folder {folder} (looked from {os.getcwd()})")
    return folder


def table_files(data: TablesData) -> list[str]:
    """The file of every table, each once, in the order of the YAML.

    Raises:
        ExperimentError: one message for all files that are missing or of an unknown kind.
    """
    folder, mistakes = root_folder(data.root), []
    files = {place: table.file for place, table in tables_of(data).items()}
    for place, name in files.items():
        if not os.path.isfile(os.path.join(folder, name)):
            mistakes.append(f"data.{place}.file: there is no {name} in {folder}{nearest(name, _listing(folder))}")
        elif os.path.splitext(name)[1].lower() not in (*_READERS, ".zip"):
            mistakes.append(f"data.{place}.file: {name} is neither .csv nor .parquet nor a .zip of one CSV")
    if mistakes:
        raise ExperimentError("\n".join(mistakes))
    return list(dict.fromkeys(os.path.join(folder, name) for name in files.values()))


def _listing(folder: str) -> list[str]:
    return sorted(name for name in os.listdir(folder) if os.path.isfile(os.path.join(folder, name)))


def readable(path: str, scratch: str) -> tuple[str, str]:
    """DuckDB's function for a file, and the path to give it; a `.zip` is unpacked into the folder `scratch`."""
    kind = os.path.splitext(path)[1].lower()
    if kind != ".zip":
        return _READERS[kind], path
    try:
        opened = zipfile.ZipFile(path)
    except zipfile.BadZipFile as error:
        raise ExperimentError(f"data: {path} is no zip file, or a damaged one: {error}") from None
    with opened as archive:
        inside = [info for info in archive.infolist() if info.filename.lower().endswith((".csv", ".tsv", ".txt"))]
        inside = [info for info in inside if not info.filename.startswith("__MACOSX/")]
        if len(inside) != 1:
            names = ", ".join(archive.namelist()[:5])
            raise ExperimentError(f"data: {path} must hold exactly one CSV, it holds {len(inside)} ({names})")
        # its own name is not used: it may lead out of the folder
        target = os.path.join(scratch, f"unpacked-{len(os.listdir(scratch))}.csv")
        with archive.open(inside[0]) as source, open(target, "wb") as sink:
            while chunk := source.read(1 << 22):
                sink.write(chunk)
    return "read_csv", target
