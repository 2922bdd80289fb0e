"""A collection in the making: graphs in batches, each written to the files when it is whole; what a process that was
killed had written, the next one takes over."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from ..config import ExperimentError
from ..graph.files import MANIFEST, is_sealed, sync, write_manifest
from .appending import Appending
from .collated import Collated, Gatherer, Key, left_out_lines
from .edges import refuse_wrong_edges
from .files import content_digest, manifest_of

GRAPHS = 2048
BYTES = 1 << 24
"""A batch has so many graphs, or is of about so many bytes, whichever is first. The digest of a function's graphs goes
by batches, so a change of these makes all collections of functions anew."""
_SECONDS_BETWEEN_DRAFTS = 1.0
DRAFT = "draft"
"""Folder of what is not to stay."""


class NoRoomError(ExperimentError):
    """The disk is full, or cannot be written to."""


class Batch(NamedTuple):
    graphs: Collated
    first: int
    """Number of its first graph in the source."""
    next: int
    """One more than that of its last one."""
    digest: str
    left: dict[tuple[Key, str], str]
    """What has been left out so far, and why."""


class Source(Protocol):
    """Where graphs come from, see `GraphSource`."""

    origin: str

    @property
    def can_start(self) -> bool: ...

    @property
    def why_empty(self) -> str: ...

    def graphs(self, start: int = 0) -> Iterator[tuple[int, Any]]: ...


def batches(graphs: Iterable[tuple[int, Any]], origin: str) -> Iterator[Batch]:
    """Graphs in batches; the same graphs make the same ones, whichever of them the first begins with.

    Args:
        graphs: with their numbers.

    Raises:
        ExperimentError: see `Gatherer`; or a graph has an edge to a node that it does not have.
    """
    gatherer, numbers = Gatherer(origin), list[int]()
    for number, graph in graphs:
        gatherer.add(graph, number)
        numbers.append(number)
        if gatherer.num_graphs == GRAPHS or gatherer.num_bytes >= BYTES:
            yield _batch(gatherer, numbers)
            numbers = []
    if numbers:
        yield _batch(gatherer, numbers)


def _batch(gatherer: Gatherer, numbers: list[int]) -> Batch:
    made = gatherer.finished()
    refuse_wrong_edges(made, numbers, f"{gatherer.origin}: ")
    return Batch(made, numbers[0], numbers[-1] + 1, content_digest(made), dict(gatherer.left))


class Making:
    """The files of a collection that grow, and how far they have come.

    Every second, what is whole is put on the disk and noted in a draft of the manifest, in one step; what comes after
    it, the next `Making` of the same directory cuts off. Memory: that of a batch.
    """

    def __init__(self, directory: Path, identity: str, base: dict[str, Any] | None = None) -> None:
        """Args:
            directory: is made where there is none. Nobody else may write to it.
            identity: of what is made; a draft of something else is not gone on with.
            base: manifest of the collection there, to which graphs are added; None: it is made from nothing.

        Raises:
            OSError: it cannot be read or written.
        """
        self.directory, self._identity, self._base = directory, identity, base
        draft = _read_draft(directory, identity)
        try:
            self._open(draft)
        except (OSError, ValueError):
            if draft is None:
                raise
            self.clear()

    @contextmanager
    def _writes(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            free = shutil.disk_usage(self.directory.parent).free / 1e6
            raise NoRoomError(
                f"collection directory {self.directory} cannot be written to ({error.strerror or error}); {free:,.1f} "
                "MB are free: make room, or name a folder elsewhere, data.store"
            ) from error

    def withdraw(self) -> None:
        """Leave nothing of it; what was there before stays."""
        self.clear()
        remove_draft(self.directory)
        if self._base is None:
            shutil.rmtree(self.directory, ignore_errors=True)

    def clear(self) -> None:
        """Begin anew."""
        shutil.rmtree(self.directory / DRAFT if self._base is not None else self.directory, ignore_errors=True)
        self._open(None)

    def _open(self, draft: dict[str, Any] | None) -> None:
        if draft is None and self._base is None:
            shutil.rmtree(self.directory, ignore_errors=True)
        found = draft or {"state": self._base, "digests": [], "next": 0, "last": 0, "left": []}
        (self.directory / DRAFT).mkdir(parents=True, exist_ok=True)
        self.digests: list[str] = found["digests"]
        """Of the batches so far."""
        self.next: int = found["next"]
        """The number of the graph with which the source has to go on."""
        self.last: int = found["last"]
        """That of the first graph of the last batch."""
        self._left: dict[tuple[Key, str], str] = {(_key(key), name): why for key, name, why in found["left"]}
        self._writing = Appending(self.directory, found["state"], whole=self._base is not None)
        self._drafted, self._changed = time.monotonic(), False

    @property
    def num_graphs(self) -> int:
        return self._writing.num_graphs

    def add(self, batch: Batch) -> None:
        """Raises:
        ExperimentError: the graphs do not go together with those before.
        NoRoomError: what is there is what was saved last.
        """
        with self._writes():
            self._writing.append(batch.graphs, batch.first)
        self.digests.append(batch.digest)
        self.next, self.last, self._changed = batch.next, batch.first, True
        for place, why in {**batch.left, **self._writing.dropped}.items():
            self._left.setdefault(place, why)
        if time.monotonic() - self._drafted > _SECONDS_BETWEEN_DRAFTS:
            self.save()

    def save(self) -> None:
        """What is there now is there after a kill."""
        if not self._changed:
            return
        writing = self._writing
        state = {name: getattr(writing, name) for name in ("stores", "num_graphs", "heterogeneous", "own_class")}
        left = [[list(key) if isinstance(key, tuple) else key, name, why] for (key, name), why in self._left.items()]
        with self._writes():
            draft = {
                "identity": self._identity, "next": self.next, "last": self.last, "digests": self.digests,
                "left": left, "state": {**state, "files": writing.files.saved()},
            }  # fmt: skip
            write_manifest(self.directory / DRAFT, draft)
        self._drafted, self._changed = time.monotonic(), False

    def keep(self, path: Path) -> None:
        """Put the manifest of before there."""
        with self._writes():
            shutil.copyfile(self.directory / MANIFEST, temporary := path.with_suffix(".partial"))
            sync(temporary)
            os.replace(temporary, path)

    @property
    def content(self) -> str:
        """Hex digest of all batches."""
        return hashlib.blake2b("\n".join(self.digests).encode(), digest_size=16).hexdigest()

    @property
    def left_out(self) -> tuple[str, ...]:
        return left_out_lines(self._left)

    def finish(self, fingerprint: str, left_out: tuple[str, ...], target: Path | None = None, **more: Any) -> None:
        """The collection is whole from here on, in one step.

        Args:
            target: the name that it gets; None: that which it has.
            more: for the manifest.

        Raises:
            NoRoomError: the disk is full.
            ExperimentError: the target is not empty.
        """
        with self._writes():
            self._finish(fingerprint, left_out, target, more)

    def _finish(self, fingerprint: str, left_out: tuple[str, ...], target: Path | None, more: dict[str, Any]) -> None:
        manifest = manifest_of(self._writing, fingerprint, left_out, more)
        used = self._writing.used()
        if self._base is None:
            manifest["files"] = {name: entry for name, entry in manifest["files"].items() if name in used}
        write_manifest(self.directory, manifest)
        self._writing.files.write_headers()
        if target is not None:
            try:
                os.replace(self.directory, target)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    raise
                raise ExperimentError(
                    f"collection directory {target} is not empty and would be overwritten; remove it, or name another "
                    "folder, data.store"
                ) from error
            self.directory = self._writing.files.directory = target
            with suppress(OSError):
                parent = os.open(target.parent, os.O_RDONLY)
                os.fsync(parent)
                os.close(parent)
        if self._base is None:
            self._writing.files.remove_but(used)
        remove_draft(self.directory)


def remove_draft(directory: Path) -> None:
    shutil.rmtree(directory / DRAFT, ignore_errors=True)


def _read_draft(directory: Path, identity: str) -> dict[str, Any] | None:
    try:
        content = (directory / DRAFT / MANIFEST).read_bytes()
        draft = json.loads(content)
    except (OSError, ValueError):
        return None
    return draft if is_sealed(content) and draft["identity"] == identity else None


def fill(making: Making, source: Source, say: Callable[[str], None], progress: Callable[[int], None]) -> None:
    """Bring a collection to the end of its source, from where it is.

    What is there is held against the source: its last batch where the source can start at a graph, otherwise each, as
    the source comes by it; if they differ, everything begins anew.

    Args:
        progress: is told up to which graph the source has been read.

    Raises:
        ExperimentError: see `batches` and `Making.add`; or the source has no graphs.
    """
    if making.digests:
        if _goes_on(making, source, say, progress):
            return
        say("the source gives other graphs than those written; beginning anew")
        making.clear()
    _add_all(making, batches(source.graphs(), source.origin), progress)
    if not making.digests:
        raise ExperimentError(source.why_empty)


def _goes_on(making: Making, source: Source, say: Callable[[str], None], progress: Callable[[int], None]) -> bool:
    jump = source.can_start
    say(
        f"going on at graph {making.next:,}, to which an earlier start came"
        + ("" if jump else "; the graphs before are gone through again, since the source cannot start there")
    )
    found = batches(source.graphs(making.last if jump else 0), source.origin)
    for expected in making.digests[-1:] if jump else list(making.digests):
        batch = next(found, None)
        if batch is None or batch.digest != expected:
            return False
        progress(batch.next)
    _add_all(making, found, progress)
    return True


def _add_all(making: Making, found: Iterator[Batch], progress: Callable[[int], None]) -> None:
    while True:
        try:
            batch = next(found, None)
        except ExperimentError:
            raise
        except BaseException:
            # The source failed, or somebody pressed Ctrl-C; what is whole is worth keeping.
            making.save()
            raise
        if batch is None:
            break
        making.add(batch)
        progress(batch.next)
    making.save()


def same_content(source: Source, known: dict[str, list[str]], progress: Callable[[int], None]) -> str | None:
    """Which of several collections has the graphs of a source and no others; None: none of them.

    Args:
        known: name -> the digests of its batches.
    """
    place = 0
    for place, batch in enumerate(batches(source.graphs(), source.origin), 1):
        known = {
            name: digests
            for name, digests in known.items()
            if len(digests) >= place and digests[place - 1] == batch.digest
        }
        if not known:
            return None
        progress(batch.next)
    return next((name for name, digests in known.items() if len(digests) == place), None)


def _key(key: Any) -> Key:
    return (key[0], key[1], key[2]) if isinstance(key, list) else key
