"""The files of a partition directory, written one after another from the whole graph and the part of each node."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ..config import EdgeType, edge_type_name
from ..config.counted import counted
from .arrays import EdgeArrays, GraphArrays
from .blocks import blocks_of, bytes_per_row, id_blocks, row_blocks
from .columns import summarise
from .external_order import ROWS_AT_ONCE, ExternalOrder
from .files import digest_file, write_array
from .journal import Journal
from .order import add_counts, group_by_key, starts_of

if TYPE_CHECKING:
    import pyarrow

DISK_BYTES_PER_EDGE = 14
"""Of a relation, while it is sorted."""


class PartitionWriter:
    """Writes what the journal does not have yet; returns what the manifest says of it.

    Memory: 20 bytes a node, none per edge; what is written is read from the graph a block at a time.
    """

    def __init__(
        self,
        journal: Journal,
        graph: GraphArrays,
        part_of: Mapping[str, np.ndarray],
        parts: int,
        progress: Callable[[str], None],
    ) -> None:
        self._journal = journal
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
                name = files[node_type] = f"keys/{index}.parquet"
                if name not in self._journal.files:
                    self._write_keys(name, keys[node_type])
        return files

    def _write_keys(self, name: str, keys: pyarrow.Array) -> None:
        import pyarrow
        import pyarrow.parquet

        path = self._journal.directory / name
        path.parent.mkdir(exist_ok=True)
        with path.open("xb") as file:
            pyarrow.parquet.write_table(pyarrow.table({"key": keys}), file)
            file.flush()
            os.fsync(file.fileno())
        self._journal.add_file(name, digest_file(path))

    def _node_type(self, index: int, node_type: str) -> dict[str, Any]:
        nodes, original = self._graph.nodes[node_type], self._original[node_type]
        self._progress(
            f"writing node type {index + 1} of {len(self._graph.nodes)}: {node_type}, {counted(nodes.count, 'node')}"
        )
        folder = f"nodes/{index}"
        self._write(f"{folder}/original_id.npy", original.dtype, original.shape, lambda: [original])
        stems = _stems(nodes.attributes, reserved={"original_id"})
        for name, array in nodes.attributes.items():

            def blocks(array: np.ndarray = array) -> Iterator[np.ndarray]:
                return (array[original[rows]] for rows in row_blocks(len(original), bytes_per_row(array)))

            self._write(f"{folder}/{stems[name]}.npy", array.dtype, array.shape, blocks)
        return {
            "type": node_type,
            "num_nodes": nodes.count,
            "bounds": self._bounds[node_type].tolist(),
            "attributes": self._attributes(folder, nodes.attributes, stems),
        }

    def _edge_type(self, index: int, edge_type: EdgeType) -> dict[str, Any]:
        edges = self._graph.edges[edge_type]
        name = edge_type_name(edge_type)
        self._progress(
            f"writing edge type {index + 1} of {len(self._graph.edges)}: {name}, {counted(edges.count, 'edge')}"
        )
        folder = f"edges/{index}"
        files = {file: f"{folder}/{file}.npy" for file in ("colptr", "row", "edge_id", "src_degree")}
        stems = _stems(edges.attributes, reserved=set(files))
        src_type = edge_type[0]

        def degree() -> list[np.ndarray]:
            counts = np.zeros(self._graph.nodes[src_type].count, dtype=np.int64)
            for ids in id_blocks(edges.src):
                add_counts(ids, counts)
            return [counts.astype(np.int32)[self._original[src_type]]]

        num_src = self._graph.nodes[src_type].count
        self._write(files["src_degree"], np.dtype(np.int32), (num_src,), degree)
        sorted_files = [files["colptr"], files["row"], files["edge_id"], *(f"{folder}/{s}.npy" for s in stems.values())]
        if not all(file in self._journal.files for file in sorted_files):
            self._sorted_edges(
                edge_type, edges, files, {f"{folder}/{stems[n]}.npy": a for n, a in edges.attributes.items()}
            )
        return {
            "type": list(edge_type),
            "num_edges": edges.count,
            "files": files,
            "attributes": self._attributes(folder, edges.attributes, stems),
        }

    def _sorted_edges(
        self, edge_type: EdgeType, edges: EdgeArrays, files: dict[str, str], attributes: dict[str, np.ndarray]
    ) -> None:
        """The files of a relation that are in the order of its destinations."""
        new_src, new_dst = self._new_id[edge_type[0]], self._new_id[edge_type[2]]
        counts = np.zeros(len(new_dst), dtype=np.int64)
        for ids in id_blocks(edges.dst):
            add_counts(ids, counts)
        starts = starts_of(counts[self._original[edge_type[2]]])
        del counts
        self._write(files["colptr"], starts.dtype, starts.shape, lambda: [starts])
        # Stable, so that the edges of a destination are in the order of their original ids.
        keys = (new_dst[ids] for ids in id_blocks(edges.dst))
        order = ExternalOrder(starts, keys, self._journal.work, ROWS_AT_ONCE)
        try:
            rows = (new_src[ids] for ids in id_blocks(edges.src))
            self._write(files["row"], self._id_dtype, (edges.count,), lambda: order.apply(rows, self._id_dtype))
            ids = (np.arange(rows.start, rows.stop) for rows in row_blocks(edges.count, 8))
            int64 = np.dtype(np.int64)
            self._write(files["edge_id"], int64, (edges.count,), lambda: order.apply(ids, int64))
            for file, array in attributes.items():

                def blocks(array: np.ndarray = array) -> Iterator[np.ndarray]:
                    return order.apply(blocks_of(array), array.dtype, array.shape[1:])

                self._write(file, array.dtype, array.shape, blocks)
        finally:
            order.close()

    def _attributes(
        self, folder: str, attributes: Mapping[str, np.ndarray], stems: Mapping[str, str]
    ) -> dict[str, Any]:
        """What the manifest says of the attributes of a type, whose files have been written."""
        entries = {}
        for name, array in attributes.items():
            stem, find = f"{folder}/{stems[name]}", partial(self._summary, f"{folder}/{stems[name]}", name, array)
            kind = {"file": f"{stem}.npy", "dtype": array.dtype.name, "shape": list(array.shape[1:])}
            entries[name] = {**kind, **self._journal.note(f"summary of {stem}", find)}
        return entries

    def _summary(self, stem: str, name: str, array: np.ndarray) -> dict[str, Any]:
        summary = summarise(array, feature=name == "x")
        statistics: dict[str, str | None] = {"mean": None, "std": None}
        for statistic, values in (("mean", summary.mean), ("std", summary.std)):
            if values is not None:
                file = statistics[statistic] = f"{stem}.{statistic}.npy"
                self._write(file, values.dtype, values.shape, lambda values=values: [values])
        return {"low": summary.low, "high": summary.high, "missing": summary.missing, **statistics}

    def _write(
        self, name: str, dtype: np.dtype, shape: tuple[int, ...], blocks: Callable[[], Iterable[np.ndarray]]
    ) -> None:
        if name not in self._journal.files:
            self._journal.add_file(name, write_array(self._journal.directory / name, dtype, shape, blocks()))


def _stems(attributes: Iterable[str], reserved: set[str]) -> dict[str, str]:
    """A file name for each attribute: readable, safe on any file system, and of its own (cases are not told apart)."""
    taken = set(reserved)
    stems = {}
    for name in attributes:
        readable = re.sub(r"[^A-Za-z0-9_-]+", "_", name)[:64] or "attribute"
        stem, number = readable, 1
        while stem.lower() in taken:
            number += 1
            stem = f"{readable}_{number}"
        taken.add(stem.lower())
        stems[name] = stem
    return stems
