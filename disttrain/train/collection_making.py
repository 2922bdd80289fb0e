"""A collection is made: downloaded and processed where needed, written batch by batch, and extended."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..collection.files import is_collection, parse_manifest, read_manifest
from ..collection.making import Making, NoRoomError, fill, same_content
from ..config import Experiment, ExperimentError, PygData, PythonData
from ..config.counted import counted
from ..data.graphs import GraphSource
from ..data.pyg import is_outdated
from ..graph.files import MANIFEST
from .alone import Turn, alone, say
from .collection_place import Place, Source, folder_of, identity, name_of, place_by_files, place_of

_SECONDS_BETWEEN_LINES = 10.0
_BEFORE = "before-{}.json"


def make_collection(experiment: Experiment) -> Place:
    """Find the collection of an experiment on this machine, or make it.

    Of several processes one makes it, and the others wait for it. If the process is killed, the next one goes on from
    the last batch of graphs that was whole.

    Returns:
        Where it is; `fingerprint` is that of what it holds by now.

    Raises:
        ExperimentError: the data is refused, or the disk is full.
    """
    source = experiment.data
    assert isinstance(source, (PygData, PythonData))
    folder = folder_of(source)
    with alone(folder, experiment.train.timeout) as turn:
        place = place_by_files(source)
        if place is not None and _is_there(place):
            return _as_it_is(place)
        say(f"reading the graphs (source: {source.source})")
        with _processing(source, folder) as anew:
            graphs = GraphSource(source, anew)
            graphs.begin()
        if place is None and (found := _known_by_content(source, graphs, turn)) is not None:
            return _as_it_is(found)
        return _as_it_is(_made(source, graphs, place, turn))


def state_of(directory: Path, fingerprint: str, first: int | None) -> dict[str, Any]:
    """The manifest of a collection; its checksum and the sizes of all files are checked.

    Args:
        fingerprint: that which all ranks have found; it may be extended meanwhile.
        first: as it was when it had so many graphs; None: when it had this fingerprint.

    Raises:
        ExperimentError: it is damaged, or never had so many.
    """
    manifest = read_manifest(directory)
    had = [state["num_graphs"] for state in manifest["history"]]
    if first is None:
        known = (state["num_graphs"] for state in manifest["history"] if state["fingerprint"] == fingerprint)
        first = next(known, manifest["num_graphs"])
    if first == manifest["num_graphs"]:
        return manifest
    if first not in had:
        raise ExperimentError(
            f"data.first is {first}, and the collection {directory} never had so many graphs; it had "
            f"{', '.join(map(str, had))}. data.first=null takes all that it has"
        )
    return read_manifest(directory, _BEFORE.format(first))


def extend_collection(experiment: Experiment, addition: PythonData, again: bool) -> str:
    """Add graphs to the collection of an experiment, which is made where it is not there.

    Its files are appended to, not rewritten, and it has the new graphs in one step; runs that use it do not notice.

    Args:
        addition: gives the new graphs; they go through the filters and transforms of the experiment.
        again: also if these are the ones that were added last.

    Returns:
        What was done.

    Raises:
        ExperimentError: the graphs are refused, or do not go with those there; nothing has changed then.
    """
    directory = Path(make_collection(experiment).directory)
    assert isinstance(experiment.data, (PygData, PythonData))
    with alone(folder_of(experiment.data), experiment.train.timeout) as turn:
        if not turn.sure:
            raise ExperimentError(
                f"{directory} is on a file system without file locks, where two could extend it at once; name a folder "
                "elsewhere, data.store"
            )
        base = read_manifest(directory)
        source = GraphSource(addition, setting="--function")
        told = [base["fingerprint"], identity(addition, source.setting)]
        making = _opened(directory, hashlib.blake2b(json.dumps(told).encode(), digest_size=16).hexdigest(), base)
        try:
            fill(making, source, turn.tell, _Progress(turn, source))
            new = making.num_graphs - base["num_graphs"]
            if making.content == base["history"][-1].get("content") and not again:
                making.withdraw()
                return f"{counted(new, 'graph')}: the same that were added last, to {directory}; nothing is added"
            _finish_extended(making, base, source.origin, directory)
        except (ExperimentError, OSError):
            making.withdraw()
            raise
        for line in making.left_out:
            say(f"left out: {line}")
        return f"{counted(new, 'graph')} more in {directory}: {making.num_graphs:,} by now"


def _finish_extended(making: Making, base: dict[str, Any], origin: str, directory: Path) -> None:
    fingerprint = hashlib.blake2b(f"{base['fingerprint']} {making.content}".encode(), digest_size=16).hexdigest()
    state = {
        "num_graphs": making.num_graphs, "fingerprint": fingerprint, "content": making.content, "source": origin,
    }  # fmt: skip
    before = directory / _BEFORE.format(base["num_graphs"])
    making.keep(before)
    left_out = tuple(dict.fromkeys([*base["left_out"], *making.left_out]))
    making.finish(fingerprint, left_out, digests=base["digests"], history=[*base["history"], state])


def _made(source: Source, graphs: GraphSource, place: Place | None, turn: Turn) -> Place:
    known = place.fingerprint if place is not None else identity(source)
    folder = folder_of(source)
    mine = "" if turn.sure else f"-{socket.gethostname()}-{os.getpid()}"
    for other in sorted(folder.glob(f".making-{name_of(source)}-*")):
        if other.name != f".making-{name_of(source)}-{known[:12]}":
            say(f"{other} is what another making left that was not ended; remove it if it is not wanted")
    making = _opened(folder / f".making-{name_of(source)}-{known[:12]}{mine}", known)
    try:
        fill(making, graphs, turn.tell, _Progress(turn, graphs))
        for line in making.left_out:
            say(f"left out: {line}")
        if place is None:
            place = place_of(source, making.content)
        if not _is_there(place):
            state = {"num_graphs": making.num_graphs, "fingerprint": place.fingerprint, "source": graphs.origin}
            digests = making.digests if place.fingerprint == making.content else None
            target = Path(place.directory)
            making.finish(place.fingerprint, making.left_out, target, digests=digests, history=[state])
            say(f"{counted(making.num_graphs, 'graph')} in {place.directory}")
        else:
            making.withdraw()
    except NoRoomError as error:
        if not making.digests:
            making.withdraw()
            raise
        kept = f"what is finished stays in {making.directory}, and the next start goes on from there"
        raise ExperimentError(f"{error}; {kept}") from error
    except ExperimentError:
        making.withdraw()
        raise
    except BaseException:
        if not making.digests:  # there is nothing to go on with
            making.withdraw()
        raise
    return place


def _opened(directory: Path, known: str, base: dict[str, Any] | None = None) -> Making:
    try:
        return Making(directory, known, base)
    except OSError as error:
        raise ExperimentError(
            f"collection directory {directory} cannot be written to: {error}; name another, data.store"
        ) from error


def _is_there(place: Place) -> bool:
    return (Path(place.directory) / MANIFEST).exists()


def _as_it_is(place: Place) -> Place:
    return Place(place.directory, parse_manifest(Path(place.directory))["fingerprint"])


def _known_by_content(source: Source, graphs: GraphSource, turn: Turn) -> Place | None:
    """The collection that has just the graphs of the source."""
    known: dict[str, list[str]] = {}
    for directory in folder_of(source).glob(f"{name_of(source)}-*"):
        if is_collection(directory) and (digests := parse_manifest(directory).get("digests")):
            known[str(directory)] = digests
    if not known:
        return None
    found = same_content(graphs, known, _Progress(turn, graphs, "compared with those stored"))
    return None if found is None else Place(found, "")


class _Progress:
    """A line now and then."""

    def __init__(self, turn: Turn, source: GraphSource, done: str = "written") -> None:
        self._turn, self._source, self._done = turn, source, done
        self._last, self._at = time.monotonic(), 0

    def __call__(self, number: int) -> None:
        """The source has been read up to graph `number`."""
        now = time.monotonic()
        if now - self._last < _SECONDS_BETWEEN_LINES:
            return
        total, rate = self._source.total, (number - self._at) / (now - self._last)
        of = "" if total is None else f" of {total:,}"
        self._turn.tell(f"{number:,}{of} graphs {self._done}, {rate:,.0f} graphs/s")
        self._last, self._at = now, number


@contextmanager
def _processing(source: Source, folder: Path) -> Iterator[bool]:
    """Around what PyG processes; whether it has to be done anew, since what lies there is older than the raw files, or
    was left by a process that did not come to the end: PyG takes any file for a whole one."""
    root = os.path.abspath(source.root) if isinstance(source, PygData) else ""
    called = source.dataset if isinstance(source, PygData) else source.function
    settings = json.dumps([called, root, source.args], sort_keys=True)
    mark = folder / f".processing-{hashlib.blake2b(settings.encode(), digest_size=6).hexdigest()}"
    anew = mark.exists() or (isinstance(source, PygData) and is_outdated(source))
    mark.touch()
    yield anew
    mark.unlink()
