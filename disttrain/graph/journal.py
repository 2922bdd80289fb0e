"""What a partitioning has finished, so that the next one goes on from there if this one is killed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

WORK = ".work"
"""Folder of a directory in the making: the journal, and what is not to stay. It goes when the directory has landed."""
LOCK = ".lock"
_JOURNAL = f"{WORK}/journal.jsonl"


class Journal:
    """A file that only grows, of lines with a checksum each. A file of the directory counts as finished when its line
    is here; a line is written when its file is on the disk.

    Opening removes every file that has no line, or not the size that its line says: none that is torn is ever taken
    for whole.
    """

    def __init__(self, directory: Path, identity: dict[str, Any]) -> None:
        """Args:
        identity: of what is made (JSON); a journal of something else is begun anew.
        """
        self.directory = directory
        self.files: dict[str, dict[str, Any]] = {}
        """Name -> `{"bytes", "blake2b"}`, also of those in the work folder."""
        self._notes: dict[str, Any] = {}
        path = directory / _JOURNAL
        path.parent.mkdir(exist_ok=True)
        lines: list[dict[str, Any]] = _read(path)
        if not lines or lines[0] != {"identity": identity}:
            lines = [{"identity": identity}]
            path.write_bytes(_sealed(lines[0]))
        self.files.update({line["file"]: line["entry"] for line in lines if "file" in line})
        self._notes.update({line["note"]: line["value"] for line in lines if "note" in line})
        # What follows the last whole line was being written when its writer died.
        self._end = sum(len(_sealed(line)) for line in lines)
        os.truncate(path, self._end)
        self._remove_unfinished()

    def _remove_unfinished(self) -> None:
        for path in sorted(self.directory.rglob("*"), reverse=True):
            name = path.relative_to(self.directory).as_posix()
            if path.is_dir() and not path.is_symlink():
                with suppress(OSError):
                    path.rmdir()
            elif name not in (LOCK, _JOURNAL) and (
                name not in self.files or path.lstat().st_size != self.files[name]["bytes"]
            ):
                path.unlink()
        self.files = {name: entry for name, entry in self.files.items() if (self.directory / name).is_file()}

    @property
    def work(self) -> Path:
        """A folder for what is not to stay."""
        return self.directory / WORK

    @property
    def finished(self) -> dict[str, dict[str, Any]]:
        """The files that stay."""
        return {name: entry for name, entry in self.files.items() if not name.startswith(f"{WORK}/")}

    def add_file(self, name: str, entry: dict[str, Any]) -> None:
        """A file is finished and on the disk."""
        self._append({"file": name, "entry": entry})
        self.files[name] = entry

    def note(self, name: str, find: Callable[[], Any]) -> Any:
        """A result (JSON) that is not found again if it has been noted."""
        if name not in self._notes:
            value = json.loads(json.dumps(find()))
            self._append({"note": name, "value": value})
            self._notes[name] = value
        return self._notes[name]

    def _append(self, line: dict[str, Any]) -> None:
        # Not synced: a line that a crash of the machine takes costs its file being made again, no more.
        with (self.directory / _JOURNAL).open("ab") as file:
            file.write(_sealed(line))


def finished_bytes(directory: Path, identity: dict[str, Any]) -> int:
    """How much of `identity` a directory in the making holds finished; 0 also if it is of something else."""
    lines = _read(directory / _JOURNAL)
    if not lines or lines[0] != {"identity": identity}:
        return 0
    return sum(line["entry"]["bytes"] for line in lines if "file" in line)


def remove_work(directory: Path) -> None:
    """Remove from a landed directory what only its making needed."""
    shutil.rmtree(directory / WORK, ignore_errors=True)
    with suppress(OSError):
        (directory / LOCK).unlink()


def _sealed(line: dict[str, Any]) -> bytes:
    text = json.dumps(line).encode()
    return hashlib.blake2b(text, digest_size=8).hexdigest().encode() + b" " + text + b"\n"


def _read(path: Path) -> list[dict[str, Any]]:
    """The whole lines from the first on."""
    try:
        content = path.read_bytes()
    except OSError:
        return []
    lines = []
    for text in content.split(b"\n")[:-1]:
        try:
            line = json.loads(text[17:])
        except ValueError:
            break
        if _sealed(line) != text + b"\n":
            break
        lines.append(line)
    return lines
