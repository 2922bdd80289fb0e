"""Where the files of tables lie, and how DuckDB is to read them."""

from __future__ import annotations

import csv
import glob
import gzip
import importlib.util
import io
import os
import zipfile
from dataclasses import dataclass
from typing import IO

from ..config import CsvFormat, EdgeTable, ExperimentError, NodeTable, TablesData
from ..config.counted import counted
from .nearest import nearest
from .scratch import Scratch

_KINDS = {
    ".csv": "csv",
    ".tsv": "csv",
    ".txt": "csv",
    ".dat": "csv",
    ".data": "csv",
    ".gz": "csv",
    ".parquet": "parquet",
}
_LIKE_MISSING = ("na", "n/a", "nan", "null", "none", "nil", "-", "?", ".", "\\n", "missing", "unknown")
MIXED = "lines that end in CR LF (Windows) and lines that end in LF alone; make them the same"
_DELIMITERS = (",", ";", "|", "\t")
_ENCODINGS = ("utf-8", "utf-16", "latin-1")


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
    """The files of all tables, each once, in the order of the YAML.

    Raises:
        ExperimentError: one message for all files that are missing or of an unknown kind.
    """
    return list(dict.fromkeys(path for paths in files_of_tables(data).values() for path in paths))


def files_of_tables(data: TablesData) -> dict[str, list[str]]:
    """Place of each table in the YAML -> its files, those of a pattern in the order of their names.

    Raises:
        ExperimentError: one message for all files that are missing or of an unknown kind.
    """
    folder, mistakes = root_folder(data.root), []
    found: dict[str, list[str]] = {}
    for place, table in tables_of(data).items():
        name = table.file
        path = os.path.join(folder, name)
        if os.path.isfile(path) or not glob.has_magic(name):
            paths = [path] if os.path.isfile(path) else []
        else:
            inside = glob.glob(name, root_dir=folder, recursive=True)
            paths = [p for p in (os.path.join(folder, entry) for entry in sorted(inside)) if os.path.isfile(p)]
        # whoever says how a CSV is written says that it is one, whatever its name
        kinds = {_kind(path) or ("csv" if table.csv != CsvFormat() else None) for path in paths}
        if not paths and glob.has_magic(name):
            mistakes.append(f"data.{place}.file: no file in {folder} fits {name}{nearest(name, _listing(folder))}")
        elif not paths:
            mistakes.append(f"data.{place}.file: there is no {name} in {folder}{nearest(name, _listing(folder))}")
        elif len(kinds) > 1 or None in kinds or (len(paths) > 1 and "zip" in kinds):
            which = name if len(paths) == 1 else ", ".join(sorted({os.path.basename(path) for path in paths})[:5])
            mistakes.append(f"data.{place}.file: {which} is neither .csv nor .parquet nor a .zip of one CSV")
            if len(paths) > 1:
                mistakes[-1] = f"data.{place}.file: {name} must fit either CSV or Parquet files, it fits {which}"
        found[place] = paths
    if mistakes:
        raise ExperimentError("\n".join(mistakes))
    return found


def _kind(path: str) -> str | None:
    kind = os.path.splitext(path)[1].lower()
    return "zip" if kind == ".zip" else _KINDS.get(kind)


def _listing(folder: str) -> list[str]:
    return sorted(name for name in os.listdir(folder) if os.path.isfile(os.path.join(folder, name)))


@dataclass(frozen=True)
class Reading:
    """How DuckDB reads the files of one table."""

    paths: tuple[str, ...]
    is_csv: bool
    delimiter: str = ","
    quote: str = '"'
    encoding: str = "utf-8"
    names: tuple[str, ...] = ()
    """Of all columns; of a CSV only."""
    has_header: bool = True
    missing: tuple[str, ...] = ()

    def sql(self, text: tuple[str, ...] = ()) -> str:
        """The table function, for a FROM clause. Types are those that all values fit; columns in `text` stay text."""
        if not self.is_csv:
            return f"read_parquet({texts(self.paths)}, hive_partitioning = false, union_by_name = true)"
        types = ", ".join(f"{literal(name)}: 'VARCHAR'" for name in self.names if name in text)
        return (
            f"read_csv({texts(self.paths)}, {self._dialect()}, header = {str(self.has_header).lower()}, "
            f"sample_size = -1, union_by_name = true, hive_partitioning = false"
            + ("" if self.has_header else f", names = {texts(self.names)}")
            + (f", types = {{{types}}}" if types else "")
            + ")"
        )

    def strict_sql(self, path: str) -> str:
        """One CSV file with all columns as text, whatever they look like: what fails here is not a CSV."""
        types = ", ".join(f"{literal(name)}: 'VARCHAR'" for name in self.names)
        header = str(self.has_header).lower()
        return (
            f"read_csv({literal(path)}, {self._dialect()}, header = {header}, auto_detect = false, "
            f"columns = {{{types}}})"
        )

    def _dialect(self) -> str:
        # Guessing the dialect as well makes a damaged line change what the others mean.
        dialect = (
            f"delim = {literal(self.delimiter)}, quote = {literal(self.quote)}, escape = {literal(self.quote)}, "
            f"comment = '', skip = 0, nullstr = {texts(self.missing)}"
        )
        return dialect if self.encoding == "utf-8" else f"{dialect}, encoding = {literal(self.encoding)}"


def reading_of(paths: list[str], form: CsvFormat, missing: tuple[str, ...], scratch: Scratch) -> Reading:
    """Find out how the files of one table are read; a `.zip` is unpacked into the folder.

    Raises:
        ExperimentError: a zip is damaged or holds several CSVs, a file is empty, or headers differ. The message does
            not say which table it is.
    """
    if _kind(paths[0]) == "parquet":
        return Reading(tuple(paths), is_csv=False)
    if form.encoding not in _ENCODINGS:
        raise ExperimentError(f"csv.encoding: {form.encoding!r} is not one of {', '.join(_ENCODINGS)}")
    if _kind(paths[0]) == "zip":
        paths = [_unpacked(paths[0], scratch)]
    lines = {path: _first_line(path, form.encoding) for path in paths}
    first = lines[paths[0]]
    delimiter = form.delimiter or max(_DELIMITERS, key=lambda mark: _without_quoted(first, form.quote).count(mark))
    values = len(_split(first, delimiter, form.quote))
    if form.names and len(form.names) != values:
        raise ExperimentError(
            f"{os.path.basename(paths[0])}, line 1 ({first[:80]}): {counted(values, 'value')} (between {delimiter!r}), "
            f"but csv.names has {counted(len(form.names), 'name')}"
        )
    headers = {path: form.names or _split(line, delimiter, form.quote) for path, line in lines.items()}
    for path, names in headers.items():
        if difference := _difference(headers[paths[0]], names):
            raise ExperimentError(
                f"{os.path.basename(path)} has other columns than {os.path.basename(paths[0])}: {difference}"
            )
    names = tuple(headers[paths[0]])
    lower = [name.lower() for name in names]  # SQL does not tell Age from age
    twice = sorted({name for name in names if lower.count(name.lower()) > 1})
    if twice or "" in names:
        what = f"several columns {', '.join(twice)}" if twice and twice != [""] else "a column without a name"
        raise ExperimentError(
            f"{os.path.basename(paths[0])} has {what}; give all columns names of their own by csv.names"
        )
    return Reading(tuple(paths), True, delimiter, form.quote, form.encoding, names, not form.names, missing)


def _difference(expected: tuple[str, ...], came: tuple[str, ...]) -> str:
    more = [name for name in came if name not in expected]
    fewer = [name for name in expected if name not in came]
    return "; ".join(
        f"it {verb} {', '.join(names[:8])}" for verb, names in (("also has", more), ("lacks", fewer)) if names
    )


def _opened(path: str, encoding: str) -> IO[str]:
    encoding = "utf-8-sig" if encoding == "utf-8" else encoding
    if path.lower().endswith(".gz"):
        return io.TextIOWrapper(gzip.open(path), encoding=encoding, newline="")
    return open(path, encoding=encoding, newline="")


def _first_line(path: str, encoding: str) -> str:
    try:
        with _opened(path, encoding) as file:
            line = file.readline(1 << 20)
    except UnicodeError:
        raise ExperimentError(not_in_encoding(path, encoding)) from None
    except (OSError, EOFError) as error:
        raise ExperimentError(f"{os.path.basename(path)} cannot be read: {error}") from None
    if not line.strip("\r\n"):
        raise ExperimentError(
            f"{os.path.basename(path)} is empty, or its first line is; a line with the columns' names was expected"
        )
    return line.rstrip("\r\n")


def missing_hint(value: str) -> str:
    """End of a message about a value that is no number or date, where it looks as if it stood for nothing."""
    return f'; if that means missing, data.missing: ["", "{value}"]' if value.strip().lower() in _LIKE_MISSING else ""


def mixed_line_ends(path: str) -> bool:
    """Whether some lines of a CSV end in CR LF and some in LF alone, which its parser cannot make sense of."""
    lines = set()
    with gzip.open(path) if path.lower().endswith(".gz") else open(path, "rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                lines.add(line.endswith(b"\r\n"))
            if len(lines) > 1:
                return True
    return False


def not_in_encoding(path: str, encoding: str) -> str:
    """What to say of a file whose bytes are no text."""
    return f"{os.path.basename(path)} is not in {encoding}; name its encoding, csv: {{encoding: latin-1}} for instance"


def _without_quoted(line: str, quote: str) -> str:
    return "".join(line.split(quote)[::2]) if quote else line


def _split(line: str, delimiter: str, quote: str) -> tuple[str, ...]:
    if len(delimiter) > 1 or not quote:
        return tuple(line.split(delimiter))
    return tuple(next(csv.reader([line], delimiter=delimiter, quotechar=quote)))


def _unpacked(path: str, scratch: Scratch) -> str:
    try:
        opened = zipfile.ZipFile(path)
    except zipfile.BadZipFile as error:
        raise ExperimentError(f"{path} is no zip file, or a damaged one: {error}") from None
    with opened as archive:
        inside = [info for info in archive.infolist() if info.filename.lower().endswith((".csv", ".tsv", ".txt"))]
        inside = [info for info in inside if not info.filename.startswith("__MACOSX/")]
        if len(inside) != 1:
            names = ", ".join(archive.namelist()[:5])
            raise ExperimentError(f"{path} must hold exactly one CSV, it holds {len(inside)} ({names})")
        # its own name is not used: it may lead out of the folder
        target = scratch.path(".csv")
        try:
            with archive.open(inside[0]) as source, open(target, "wb") as sink:
                while chunk := source.read(1 << 22):
                    sink.write(chunk)
        except zipfile.BadZipFile as error:
            raise ExperimentError(f"{path} is a damaged zip: {error}") from None
    return target


def in_sql(name: str) -> str:
    """A name as SQL has it."""
    return '"' + name.replace('"', '""') + '"'


def literal(value: str) -> str:
    """Text as SQL has it."""
    return "'" + value.replace("'", "''") + "'"


def texts(values: tuple[str, ...]) -> str:
    """A list of text as SQL has it."""
    return "[" + ", ".join(literal(value) for value in values) + "]"
