"""Partitions that no machine of a job has as a whole: which of them are missing, and where they were."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from ..config import ExperimentError
from ..config.counted import counted
from ..graph.files import MANIFEST
from ..graph.graph import Graph
from ..graph.holds import Holds
from ..graph.needed import Rows
from ..graph.sending import ranges_of_rows


class Part(NamedTuple):
    """What a machine was sent of a partition directory."""

    parts: int
    """That there are."""
    held: frozenset[int]
    """Of them, those that it has."""
    source: str
    """The host that made them, and has all."""


def part_of(directory: Path) -> Part | None:
    """None: this machine has nothing of the directory, or all of it.

    Raises:
        ExperimentError: what it has is damaged.
    """
    if not (directory / MANIFEST).exists() or (holds := Holds.read(directory)) is None:
        return None
    graph = Graph.open(directory, part=True)
    held = frozenset(part for part in range(graph.parts) if not holds.missing(ranges_of_rows(graph, _own(graph, part))))
    return Part(graph.parts, held, holds.source)


def _own(graph: Graph, part: int) -> dict[str, Rows | None]:
    """The rows of attributes and degrees of a partition's nodes, which only a machine that hosts it needs."""
    view, rows = graph.seen_by(part, graph.parts), {}
    for entry in graph.manifest["node_types"]:
        low, high = view.node_books[entry["type"]].range_of(part)
        for attribute in entry["attributes"].values():
            rows[attribute["file"]] = ((low, high),) if low < high else ()
    for entry in graph.manifest["edge_types"]:
        low, high = view.node_books[entry["type"][0]].range_of(part)
        rows[entry["files"]["src_degree"]] = ((low, high),) if low < high else ()
    return rows


def refuse_lost(directory: str, parts: list[Part]) -> ExperimentError:
    """What to say where machines have only parts of a directory, and nobody has the data to make it again.

    Args:
        parts: of the machines that have some.
    """
    count = parts[0].parts
    lost = sorted(set(range(count)).difference(*(part.held for part in parts)))
    sources = sorted({part.source for part in parts if part.source})
    source = f"on {sources[0]}, which made them and has" if len(sources) == 1 else "on the machine that made them, with"
    if lost:
        named = ", ".join(map(str, lost))
        what = f"{'partition' if len(lost) == 1 else 'partitions'} {named} (of 0 to {count - 1}) of {directory} "
        what += f"{'is' if len(lost) == 1 else 'are'} on no machine of this job"
    else:
        what = f"no machine of this job has all {counted(count, 'partition')} of {directory}"
    return ExperimentError(
        f"{what}: they were {source} all of them. Start the job with that machine too; or make them again where the "
        "data are (remove the directory on every machine), or name a directory on a shared disk (partition.dir)"
    )
