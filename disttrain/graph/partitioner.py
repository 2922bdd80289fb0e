"""Cut a graph and write the partition directory: assign, renumber, sort the edges by destination, write, land."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch_geometric.data import HeteroData

from ..config import EdgeType, ExperimentError, Partition, edge_type_name
from .arrays import GraphArrays, graph_arrays
from .columns import summarise
from .files import FORMAT, MANIFEST, digest_file, read_manifest, write_array, write_manifest
from .fingerprint import check_matches, settings_of
from .landing import AlreadyThereError, landing
from .metis import metis_parts
from .order import count_keys, group_by_key
from .random_cut import random_parts

if TYPE_CHECKING:
    import pyarrow

METHODS: dict[str, Callable[[GraphArrays, int, int], dict[str, np.ndarray]]] = {
    "metis": metis_parts,
    "random": random_parts,
}
_BLOCK_BYTES = 1 << 25


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
            same settings it is left as it is.
        fingerprint: of the data.
        progress: gets lines of text, in this thread.

    Returns:
        The manifest.

    Raises:
        ExperimentError: the graph is refused (see `graph_arrays`), the directory holds something else, the disk is
            full, METIS failed.

    Cost: that of the method, plus one random read of every attribute and a sort of every relation; memory beyond the
    graph: 4 to 8 bytes a node and 12 an edge of the largest relation (METIS itself needs more).
    """
    directory = Path(directory)

    def already_there() -> dict[str, Any]:
        manifest = read_manifest(directory)
        check_matches(manifest, fingerprint, settings, directory)
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
    with landing(directory, graph.num_bytes) as partial:
        progress(
            f"cutting {graph.num_nodes:,} nodes and {graph.num_edges:,} edges into {parts} parts ({settings.method})"
        )
        part_of = METHODS[settings.method](graph, parts, settings.seed)
        cut = _edge_cut(graph, part_of)
        progress(f"cut in {time.monotonic() - started:.1f} s: {cut['total']:.1%} of the edges cross parts")
        writer = _Writer(partial, graph, part_of, parts, progress)
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
            "balance": _balance(graph, part_of, parts),
            "seconds": round(time.monotonic() - started, 3),
            "files": writer.files,
        }
        write_manifest(partial, manifest)
    progress(f"wrote {sum(entry['bytes'] for entry in writer.files.values()) / 1e6:,.1f} MB to {directory}")
    # As a reader gets it, so that tuples are lists here too.
    return json.loads(json.dumps(manifest))


def _check_keys(graph: GraphArrays, keys: Mapping[str, pyarrow.Array]) -> None:
    for node_type, column in keys.items():
        if node_type not in graph.nodes or len(column) != graph.nodes[node_type].count:
            expected = f"{graph.nodes[node_type].count}" if node_type in graph.nodes else "no such node type, so no"
            raise ExperimentError(f"keys of node type {node_type!r}: expected {expected} keys, got {len(column)}")


def _edge_cut(graph: GraphArrays, part_of: dict[str, np.ndarray]) -> dict[str, Any]:
    """Shares of the edges whose ends lie in different parts."""
    crossing = {
        edge_type: int(np.count_nonzero(part_of[edge_type[0]][edges.src] != part_of[edge_type[2]][edges.dst]))
        for edge_type, edges in graph.edges.items()
    }
    return {
        "total": sum(crossing.values()) / max(graph.num_edges, 1),
        "per_relation": {
            edge_type_name(edge_type): crossing[edge_type] / max(edges.count, 1)
            for edge_type, edges in graph.edges.items()
        },
    }


def _balance(graph: GraphArrays, part_of: dict[str, np.ndarray], parts: int) -> dict[str, Any]:
    """The largest part of each type over its fair share (1 is perfect), and how many training seeds each part has."""
    seeds = np.zeros(parts, dtype=np.int64)
    largest = {}
    for node_type, nodes in graph.nodes.items():
        part = part_of[node_type]
        largest[node_type] = float(count_keys(part, parts).max() * parts / max(nodes.count, 1))
        seeds += count_keys(part[nodes.is_train_seed], parts)
    return {"per_type": largest, "train_seeds": seeds.tolist()}


class _Writer:
    """Writes the arrays of one partition directory and remembers their checksums."""

    def __init__(
        self,
        directory: Path,
        graph: GraphArrays,
        part_of: dict[str, np.ndarray],
        parts: int,
        progress: Callable[[str], None],
    ) -> None:
        self.files: dict[str, dict[str, Any]] = {}
        self._directory = directory
        self._graph = graph
        self._progress = progress
        self._id_dtype = np.dtype(np.int32 if all(n.count < 2**31 for n in graph.nodes.values()) else np.int64)
        self._bounds: dict[str, np.ndarray] = {}
        # Stable, so that the nodes of a part keep the order of their original ids.
        self._original: dict[str, np.ndarray] = {}
        self._new_id: dict[str, np.ndarray] = {}
        for node_type, part in part_of.items():
            bounds, original = group_by_key(part, parts)
            new_id = np.empty(len(original), dtype=self._id_dtype)
            new_id[original] = np.arange(len(original), dtype=self._id_dtype)
            self._bounds[node_type], self._original[node_type], self._new_id[node_type] = bounds, original, new_id

    def node_types(self) -> list[dict[str, Any]]:
        return [self._node_type(index, node_type) for index, node_type in enumerate(self._graph.nodes)]

    def edge_types(self) -> list[dict[str, Any]]:
        return [self._edge_type(index, edge_type) for index, edge_type in enumerate(self._graph.edges)]

    def keys(self, keys: Mapping[str, pyarrow.Array]) -> dict[str, str]:
        """One Parquet file per node type that has keys, in the user's order."""
        files = {}
        for index, node_type in enumerate(self._graph.nodes):
            if node_type in keys:
                import pyarrow
                import pyarrow.parquet

                name = files[node_type] = f"keys/{index}.parquet"
                path = self._directory / name
                path.parent.mkdir(exist_ok=True)
                pyarrow.parquet.write_table(pyarrow.table({"key": keys[node_type]}), path)
                self.files[name] = digest_file(path)
        return files

    def _node_type(self, index: int, node_type: str) -> dict[str, Any]:
        nodes, original = self._graph.nodes[node_type], self._original[node_type]
        self._progress(f"writing node type {index + 1} of {len(self._graph.nodes)}: {node_type}, {nodes.count:,} nodes")
        folder = f"nodes/{index}"
        self._write(f"{folder}/original_id.npy", original)
        return {
            "type": node_type,
            "num_nodes": nodes.count,
            "bounds": self._bounds[node_type].tolist(),
            "attributes": self._attributes(folder, nodes.attributes, original, reserved={"original_id"}),
        }

    def _edge_type(self, index: int, edge_type: EdgeType) -> dict[str, Any]:
        edges = self._graph.edges[edge_type]
        name = edge_type_name(edge_type)
        self._progress(f"writing edge type {index + 1} of {len(self._graph.edges)}: {name}, {edges.count:,} edges")
        src_type, _, dst_type = edge_type
        # Stable, so that the edges of a destination are in the order of their original ids.
        colptr, edge_id = group_by_key(self._new_id[dst_type][edges.dst], self._graph.nodes[dst_type].count)
        degree = count_keys(edges.src, self._graph.nodes[src_type].count).astype(np.int32)[self._original[src_type]]
        folder = f"edges/{index}"
        files = {file: f"{folder}/{file}.npy" for file in ("colptr", "row", "edge_id", "src_degree")}
        self._write(files["colptr"], colptr)
        new_src = self._new_id[src_type]
        rows = (new_src[edges.src[block]] for block in _blocks(edge_id, 8))
        self._write_blocks(files["row"], self._id_dtype, (edges.count,), rows)
        self._write(files["edge_id"], edge_id)
        self._write(files["src_degree"], degree)
        return {
            "type": list(edge_type),
            "num_edges": edges.count,
            "files": files,
            "attributes": self._attributes(folder, edges.attributes, edge_id, reserved=set(files)),
        }

    def _attributes(
        self, folder: str, attributes: dict[str, np.ndarray], order: np.ndarray, reserved: set[str]
    ) -> dict[str, Any]:
        taken = set(reserved)
        entries = {}
        for name, array in attributes.items():
            stem = _free_stem(name, taken)
            file = f"{folder}/{stem}.npy"
            row_bytes = array.itemsize * int(np.prod(array.shape[1:]))
            self._write_blocks(file, array.dtype, array.shape, (array[block] for block in _blocks(order, row_bytes)))
            summary = summarise(array, feature=name == "x")
            statistics: dict[str, str | None] = {"mean": None, "std": None}
            for statistic, values in (("mean", summary.mean), ("std", summary.std)):
                if values is not None:
                    statistics[statistic] = f"{folder}/{stem}.{statistic}.npy"
                    self._write(f"{folder}/{stem}.{statistic}.npy", values)
            entries[name] = {
                "file": file,
                "dtype": array.dtype.name,
                "shape": list(array.shape[1:]),
                "low": summary.low,
                "high": summary.high,
                "missing": summary.missing,
                **statistics,
            }
        return entries

    def _write(self, name: str, array: np.ndarray) -> None:
        self._write_blocks(name, array.dtype, array.shape, [array])

    def _write_blocks(self, name: str, dtype: np.dtype, shape: tuple[int, ...], blocks: Any) -> None:
        self.files[name] = write_array(self._directory / name, dtype, shape, blocks)


def _blocks(order: np.ndarray, row_bytes: int) -> Iterator[np.ndarray]:
    rows = max(_BLOCK_BYTES // max(row_bytes, 1), 1)
    for start in range(0, len(order), rows):
        yield order[start : start + rows]


def _free_stem(name: str, taken: set[str]) -> str:
    """A file name for an attribute: readable, safe on any file system, and not used yet (cases are not told apart)."""
    readable = re.sub(r"[^A-Za-z0-9_-]+", "_", name)[:64] or "attribute"
    stem, number = readable, 1
    while stem.lower() in taken:
        number += 1
        stem = f"{readable}_{number}"
    taken.add(stem.lower())
    return stem
