"""Cut a graph and write the partition directory: assign, renumber, sort the edges by destination, write, land.

Neither the edges nor an attribute are ever in memory as a whole: a memory-mapped graph needs memory for its nodes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch_geometric.data import HeteroData

from .. import __version__
from ..config import ExperimentError, Partition
from ..config.counted import counted
from . import streaming_cut, writer
from .arrays import GraphArrays, graph_arrays
from .cut_figures import balance, edge_cut
from .external_order import ROWS_AT_ONCE
from .files import FORMAT, MANIFEST, read_manifest, write_array, write_manifest
from .fingerprint import STREAMING, check_matches, settings_of
from .journal import WORK, Journal, remove_work
from .landing import AlreadyThereError, landing
from .metis import metis_parts
from .random_cut import random_parts
from .streaming_cut import streamed_parts
from .writer import PartitionWriter

if TYPE_CHECKING:
    import pyarrow

METHODS: dict[str, Callable[[GraphArrays, int, int], dict[str, np.ndarray]]] = {
    "metis": metis_parts,
    "random": random_parts,
}
"""Those that have everything in memory and no settings of their own."""
_CUT = f"{WORK}/part.npy"
"""The part of each node, as soon as it is known; of use to the next process if this one is killed."""


def partition(
    data: HeteroData,
    keys: Mapping[str, pyarrow.Array],
    info: dict[str, Any],
    settings: Partition,
    parts: int,
    directory: str | Path,
    fingerprint: str,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """Partition a graph into a directory, unless that is done already.

    Args:
        keys: the user's own key of each row, per node type, in the user's order; may be empty.
        info: what the data source adds to the schema (JSON).
        parts: what `settings.parts` stands for.
        directory: made, in one step, when all is written. If it is complete and was made from the same data with the
            same settings it is left as it is. What a process that was killed while making it had finished is kept.
        fingerprint: of the data.
        progress: gets lines of text, in this thread.

    Returns:
        The manifest.

    Raises:
        ExperimentError: the graph is refused (see `graph_arrays`), the directory holds something else, the disk is
            full, METIS failed.

    Cost: that of the method, plus one random read of every node attribute and an external sort of every relation;
    memory beyond the graph: about 30 bytes a node, and 200 MB (METIS itself needs more).
    """
    directory = Path(directory)

    def already_there() -> dict[str, Any]:
        manifest = read_manifest(directory)
        check_matches(manifest, fingerprint, settings, directory)
        remove_work(directory)
        progress(f"{directory} is there already")
        return manifest

    if (directory / MANIFEST).exists():
        return already_there()
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ExperimentError(
            f"partition directory {directory} exists and is no partition (it has no {MANIFEST}); remove it, or name "
            "another, partition.dir"
        )
    graph = graph_arrays(data)
    _check_keys(graph, keys)
    try:
        return _make(graph, keys, info, settings, parts, directory, fingerprint, progress)
    except AlreadyThereError:
        # Another process was asked the same, and was faster.
        return already_there()


def _make(
    graph: GraphArrays,
    keys: Mapping[str, pyarrow.Array],
    info: dict[str, Any],
    settings: Partition,
    parts: int,
    directory: Path,
    fingerprint: str,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    started = time.monotonic()
    # Another version may cut and write otherwise.
    identity = {
        "format": FORMAT,
        "version": __version__,
        "fingerprint": fingerprint,
        "settings": settings_of(settings, parts),
    }
    with landing(directory, _disk_bytes(graph, settings.method), identity) as partial:
        journal = Journal(partial, identity)
        if _CUT in journal.files:
            size = sum(entry["bytes"] for entry in journal.finished.values()) / 1e6
            progress(
                f"going on where an earlier run ended: the cut and "
                f"{counted(len(journal.finished), 'file')} ({size:,.1f} MB) are finished"
            )
        part_of = _cut(graph, settings, parts, journal, progress)
        cut = journal.note("edge cut", lambda: edge_cut(graph, part_of))
        progress(f"cut in {time.monotonic() - started:.1f} s: {cut['total']:.1%} of the edges cross parts")
        writer = PartitionWriter(journal, graph, part_of, parts, progress)
        manifest = {
            "format": FORMAT,
            "fingerprint": fingerprint,
            "settings": settings_of(settings, parts),
            "parts": parts,
            "method": settings.method,
            "node_types": writer.node_types(),
            "edge_types": writer.edge_types(),
            "keys": writer.keys(keys),
            "info": {**({"attributes": graph.info} if graph.info else {}), **info},
            "edge_cut": cut,
            "balance": balance(graph, part_of, parts),
            "files": dict(sorted(journal.finished.items())),
        }
        write_manifest(partial, manifest)
    size = sum(entry["bytes"] for entry in manifest["files"].values())
    progress(f"wrote {size / 1e6:,.1f} MB to {directory} in {time.monotonic() - started:.1f} s")
    # As a reader gets it, so that tuples are lists here too.
    return json.loads(json.dumps(manifest))


def _cut(
    graph: GraphArrays, settings: Partition, parts: int, journal: Journal, progress: Callable[[str], None]
) -> dict[str, np.ndarray]:
    """The part of each node, int32 [N] per type; from the journal if it has been found before."""
    ends = np.cumsum([nodes.count for nodes in graph.nodes.values()])
    if _CUT not in journal.files:
        progress(
            f"cutting {counted(graph.num_nodes, 'node')} and {counted(graph.num_edges, 'edge')} into "
            f"{counted(parts, 'part')} ({settings.method})"
        )
        if settings.method in STREAMING:
            found = streamed_parts(
                graph, parts, settings.seed, settings.method, settings.passes, journal.work, progress
            )
        else:
            found = METHODS[settings.method](graph, parts, settings.seed)
        shape = (graph.num_nodes,)
        entry = write_array(journal.directory / _CUT, np.dtype(np.int32), shape, found.values())
        journal.add_file(_CUT, entry)
        return found
    part = np.load(journal.directory / _CUT, allow_pickle=False)
    return dict(zip(graph.nodes, np.split(part, ends[:-1])))


def _disk_bytes(graph: GraphArrays, method: str) -> int:
    """What writing takes at most, with what is there for a while."""
    largest = max((edges.count for edges in graph.edges.values()), default=0)
    writing = graph.num_bytes + 4 * graph.num_nodes + writer.DISK_BYTES_PER_EDGE * _beyond_memory(largest)
    cutting = streaming_cut.DISK_BYTES_PER_EDGE * _beyond_memory(graph.num_edges) if method in STREAMING else 0
    return max(writing, cutting)


def _beyond_memory(num_edges: int) -> int:
    return num_edges if num_edges > ROWS_AT_ONCE else 0


def _check_keys(graph: GraphArrays, keys: Mapping[str, pyarrow.Array]) -> None:
    for node_type, column in keys.items():
        if node_type not in graph.nodes or len(column) != graph.nodes[node_type].count:
            expected = f"{graph.nodes[node_type].count}" if node_type in graph.nodes else "no such node type, so no"
            raise ExperimentError(f"keys of node type {node_type!r}: expected {expected} keys, got {len(column)}")
