"""What a machine holds of a partition directory that was sent to it: ranges of bytes, the rest of a file is a hole."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ..config import ExperimentError
from .files import MANIFEST

HOLDS = "holds.json"
_FORMAT = 1
_BLOCK = 1 << 24

Ranges = dict[str, tuple[tuple[int, int], ...]]
"""File -> ranges of its bytes, first and one after the last: apart, ascending, none empty."""


class Piece(NamedTuple):
    """Bytes of a file that were received as one."""

    start: int
    stop: int
    blake2b: str


@dataclass
class Holds:
    """The pieces that a directory holds, and of which manifest. A directory without `holds.json` holds everything."""

    manifest: str
    """Its checksum, see `manifest_digest`."""
    pieces: dict[str, list[Piece]] = field(default_factory=dict)
    source: str = ""
    """The host that has everything, and sent them."""

    @staticmethod
    def read(directory: Path) -> Holds | None:
        """None: there is no `holds.json`.

        Raises:
            ExperimentError: it is damaged.
        """
        path = directory / HOLDS
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            seal = content.pop("blake2b")
            if content["format"] != _FORMAT or seal != _seal(content):
                raise ValueError("its checksum differs")
            pieces = {name: [Piece(*piece) for piece in pieces] for name, pieces in content["files"].items()}
            return Holds(content["manifest"], pieces, content.get("source", ""))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise ExperimentError(
                f"{path} cannot be read ({error}), so what the directory holds is not known; remove the directory, "
                "and the next run with several machines sends it again"
            ) from error

    def write(self, directory: Path) -> None:
        """Land `holds.json`. What it names is on the disk already."""
        content: dict[str, Any] = {
            "format": _FORMAT, "manifest": self.manifest, "files": self.pieces, "source": self.source,
        }  # fmt: skip
        temporary = directory / f"{HOLDS}.partial"
        with temporary.open("w", encoding="utf-8") as file:
            json.dump({**content, "blake2b": _seal(content)}, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, directory / HOLDS)

    def without_lost_files(self, directory: Path, entries: Mapping[str, Mapping[str, Any]]) -> Holds:
        """The same but for files that are not there any more, or not of their size: of them it holds nothing.

        Args:
            entries: of the manifest, by file.
        """

        def is_there(name: str) -> bool:
            try:
                return (directory / name).stat().st_size == entries[name]["bytes"]
            except (OSError, KeyError):
                return False

        there = {name: pieces for name, pieces in self.pieces.items() if is_there(name)}
        return Holds(self.manifest, there, self.source)

    def missing(self, wanted: Ranges) -> Ranges:
        """The parts of ranges that no piece covers; files without any are left out."""
        found = {}
        for name, ranges in wanted.items():
            gaps = tuple(gap for start, stop in ranges for gap in self._gaps(name, start, stop))
            if gaps or name not in self.pieces:
                found[name] = gaps
        return found

    def _gaps(self, name: str, start: int, stop: int) -> Iterator[tuple[int, int]]:
        for piece in sorted(self.pieces.get(name, [])):
            if piece.stop <= start or piece.start >= stop:
                continue
            if piece.start > start:
                yield start, piece.start
            start = piece.stop
        if start < stop:
            yield start, stop

    @property
    def num_bytes(self) -> int:
        return sum(piece.stop - piece.start for pieces in self.pieces.values() for piece in pieces)

    def damaged(self, directory: Path) -> list[str]:
        """Pieces whose bytes are not those that were received, a line each. Cost: reads all of them."""
        problems = []
        for name, pieces in self.pieces.items():
            try:
                with (directory / name).open("rb") as file:
                    for start, stop, expected in pieces:
                        if _digest(file, start, stop) != expected:
                            problems.append(f"{name}: bytes {start} to {stop - 1} are not those that were received")
            except OSError as error:
                problems.append(f"{name} cannot be read ({error.strerror})")
        return problems


def _digest(file: Any, start: int, stop: int) -> str:
    digest = hashlib.blake2b(digest_size=16)
    file.seek(start)
    while start < stop and (block := file.read(min(_BLOCK, stop - start))):
        digest.update(block)
        start += len(block)
    return digest.hexdigest()


def _seal(content: dict[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=16).hexdigest()


def manifest_digest(directory: Path) -> str | None:
    """Checksum of the manifest's bytes; None where there is none."""
    try:
        return hashlib.blake2b((directory / MANIFEST).read_bytes(), digest_size=16).hexdigest()
    except (FileNotFoundError, NotADirectoryError):
        return None


def num_bytes(ranges: Ranges) -> int:
    return sum(stop - start for pieces in ranges.values() for start, stop in pieces)


def refuse_part(directory: Path, holds: Holds) -> ExperimentError:
    """What to say where the whole directory is needed and only a part is there."""
    return ExperimentError(
        f"partition directory {directory} holds only what this machine was sent for a run with others "
        f"({holds.num_bytes / 1e6:,.1f} MB); the machine that made the partitions has all of it. Start the run with "
        "that machine too, or remove the directory here to partition again"
    )
