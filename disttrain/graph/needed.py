"""Which rows of which files a machine reads: what it has to be given where there is no shared disk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..config import EdgeType
from .graph import Graph

Rows = tuple[tuple[int, int], ...]
"""Ranges of rows, first and one after the last; apart, ascending, none empty."""


def needed_rows(view: Graph, draws_by: Mapping[str | EdgeType, Iterable[str]] | None = None) -> dict[str, Rows | None]:
    """What the machine of a view reads of each file of the manifest: ranges of rows, or None for the whole file.

    Files keep their full size everywhere, so that a row has the same place on every machine: what is not needed may be
    a hole. With `partition.topology: partitioned` a machine needs its own nodes and the edges that lead to them; with
    `replicated` also all other edges, and the original id of every node.

    Args:
        view: the graph as that machine sees it, see `Graph.seen_by`. `colptr` and the manifest have to be there.
        draws_by: attributes, by node or edge type, that decide draws (weights, times): they are needed of whatever the
            machine draws from.

    Cost: one read per relation and machine.
    """

    def decisive(key: str | EdgeType) -> Iterable[str]:
        return (draws_by or {}).get(key, ())

    needed: dict[str, Rows | None] = dict.fromkeys(view.manifest["files"])  # statistics and keys: whole
    for index, entry in enumerate(view.manifest["node_types"]):
        node_type = entry["type"]
        own = view.node_books[node_type].range_of(view.machine)
        drawn_from = view.topology_books[node_type].range_of(view.machine)
        needed[f"nodes/{index}/original_id.npy"] = _merged([own, drawn_from])
        for name, attribute in entry["attributes"].items():
            needed[attribute["file"]] = _merged([own, drawn_from] if name in decisive(node_type) else [own])
    for entry in view.manifest["edge_types"]:
        src, _, dst = edge_type = tuple(entry["type"])
        first, last = view.topology_books[dst].range_of(view.machine)
        colptr = view.csc(edge_type).colptr
        # Every machine knows where each one's edges begin (`Graph.edge_books`).
        bounds = [(int(v), int(v) + 1) for v in view.node_books[dst].bounds]
        needed[entry["files"]["colptr"]] = _merged([(first, last + 1), *bounds])
        drawn_from = int(colptr[first]), int(colptr[last])
        needed[entry["files"]["row"]] = needed[entry["files"]["edge_id"]] = _merged([drawn_from])
        needed[entry["files"]["src_degree"]] = _merged([view.node_books[src].range_of(view.machine)])
        own = view.edge_books[edge_type].range_of(view.machine)
        for name, attribute in entry["attributes"].items():
            needed[attribute["file"]] = _merged([own, drawn_from] if name in decisive(edge_type) else [own])
    return needed


def _merged(ranges: Iterable[tuple[int, int]]) -> Rows:
    merged: list[tuple[int, int]] = []
    for low, high in sorted(r for r in ranges if r[0] < r[1]):
        if merged and low <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], high)
        else:
            merged.append((low, high))
    return tuple(merged)
