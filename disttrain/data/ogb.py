"""Node-property sets of the Open Graph Benchmark (Hu et al., NeurIPS 2020), read from their raw files.

Only the list of sets and the download are the `ogb` package's. Its processed files are pickles, and its readers hold
everything in memory at once; the raw files are tables and arrays, which go block by block into memory-mapped ones.
"""

from __future__ import annotations

import csv
import glob
import importlib.util
import os
import shutil
import zipfile
from collections.abc import Iterator
from typing import Any

import duckdb
import numpy as np
import torch
from torch_geometric.data import HeteroData

from ..config import EdgeType, ExperimentError, OgbData
from .attributes import as_mask
from .homogeneous import EDGE_TYPE, NODE_TYPE
from .nearest import nearest
from .scratch import Scratch
from .sockets import bounded_sockets
from .table_database import batches, brief, connect
from .table_files import literal

_SPLITS = {"train": "train_mask", "valid": "val_mask", "test": "test_mask"}
_BLOCK_BYTES = 1 << 25
_OWN_NAMES = {"node_feat": "x", "edge_feat": "edge_attr", "node_year": "time"}


def folder_of(data: OgbData) -> str:
    """Where the set lies, or will, below `data.root`."""
    _about(data)
    name = data.dataset.replace("-", "_")
    of_pyg = os.path.join(data.root, f"{name}_pyg")  # an older place
    return of_pyg if os.path.exists(of_pyg) else os.path.join(data.root, name)


def is_there(data: OgbData) -> bool:
    """Whether its raw files lie in `root`."""
    return os.path.isdir(os.path.join(folder_of(data), "raw"))


def raw_files(data: OgbData) -> list[str]:
    """The files that decide the graph, downloaded where they are not there.

    Raises:
        ExperimentError: no such set, `ogb` is not installed, the download fails, or the files are of another release.
    """
    folder, about = folder_of(data), _about(data)
    if not is_there(data):
        _download(data, about, folder)
    release = f"RELEASE_v{about['version']}.txt"
    if not os.path.exists(os.path.join(folder, release)):
        raise ExperimentError(
            f"data.root: {folder} holds another release of {data.dataset} than version {about['version']} (there is no "
            f"{release}); remove the folder to download it again, or put that file there if you know it to be this one"
        )
    places = (os.path.join(folder, "raw"), os.path.join(folder, "split", about["split"]))
    files = [path for place in places for path in glob.glob(os.path.join(glob.escape(place), "**"), recursive=True)]
    return sorted(path for path in files if os.path.isfile(path))


def read_ogb(data: OgbData, scratch: Scratch) -> HeteroData:
    """The set as one graph: `x`, `y`, `edge_attr`, years as `time`, other files under their own names, official masks.

    A set without types has the types `node` and `node,edge,node`. Where OGB adds inverse edges, they follow the edge
    that they are the inverse of, as OGB has them.

    Raises:
        ExperimentError: see `raw_files`; or a file is missing or damaged.
    """
    raw_files(data)
    with connect(scratch, None) as database:
        try:
            return _Reader(data, scratch, database).read()
        except FileNotFoundError as error:
            raise ExperimentError(f"data.root: {data.dataset} is not complete: there is no {error.filename}") from None
        except (zipfile.BadZipFile, ValueError, duckdb.Error) as error:
            if isinstance(error, ExperimentError):
                raise
            raise ExperimentError(f"data.root: a file of {data.dataset} is damaged: {brief(error)}") from error


def _about(data: OgbData) -> dict[str, str]:
    """What OGB says of a set, by its package's list; the package is not imported, since that asks the network."""
    spec = importlib.util.find_spec("ogb")
    if spec is None or not spec.submodule_search_locations:
        raise ExperimentError("data.source: ogb needs the package ogb, which is not installed; pip install ogb")
    path = os.path.join(next(iter(spec.submodule_search_locations)), "nodeproppred", "master.csv")
    with open(path, encoding="utf-8", newline="") as file:
        (_, *names), *lines = csv.reader(file)
    if data.dataset not in names:
        raise ExperimentError(
            f'data.dataset: OGB has no node-property set "{data.dataset}"{nearest(data.dataset, names)}'
        )
    column = 1 + names.index(data.dataset)
    return {line[0]: line[column] for line in lines if line}


def _download(data: OgbData, about: dict[str, str], folder: str) -> None:
    from ogb.utils.url import download_url, extract_zip  # type: ignore[import-not-found]

    try:
        os.makedirs(data.root, exist_ok=True)
        with bounded_sockets():
            archive = download_url(about["url"], data.root)
        extract_zip(archive, data.root)
        os.unlink(archive)
        shutil.rmtree(folder, ignore_errors=True)
        shutil.move(os.path.join(data.root, about["download_name"]), folder)
    except (OSError, zipfile.BadZipFile) as error:
        raise ExperimentError(
            f"data.dataset: {data.dataset} could not be downloaded ({error}); unpack {about['url']} yourself, so that "
            f"its folder raw is {os.path.join(folder, 'raw')}"
        ) from error


class _Reader:
    """Reads one set."""

    def __init__(self, data: OgbData, scratch: Scratch, database: duckdb.DuckDBPyConnection) -> None:
        self.about, self.scratch, self.database = _about(data), scratch, database
        self.raw = os.path.join(folder_of(data), "raw")
        self.split = os.path.join(folder_of(data), "split", self.about["split"])
        self.both_ways = self.about["add_inverse_edge"] == "True"
        self.graph = HeteroData()

    def read(self) -> HeteroData:
        typed, binary = self.about["is hetero"] == "True", self.about["binary"] == "True"
        if typed and binary:
            raise ExperimentError("data.dataset: sets with types in binary files are not supported")
        if typed:
            self._typed()
        elif binary:
            self._binary()
        else:
            self._plain(NODE_TYPE, EDGE_TYPE)
        return self.graph

    def _extra(self, kind: str) -> list[str]:
        listed = self.about[f"additional {kind} files"]
        return [] if listed == "None" else listed.split(",")

    def _plain(self, node_type: str, edge_type: EdgeType) -> None:
        nodes, edges = self.graph[node_type], self.graph[edge_type]
        nodes.num_nodes = int(self._table(self.raw, "num-node-list")[0, 0])
        self._attributes(nodes, self.raw, ["node-feat", *self._extra("node")])
        self._edges(edges, self.raw)
        self._label(nodes, self._table(self.raw, "node-label"))
        self._masks(nodes, self.split)

    def _typed(self) -> None:
        counts = self._header(self.raw, "num-node-dict")
        for node_type in sorted(counts):
            nodes = self.graph[node_type]
            nodes.num_nodes = int(counts[node_type])
            self._attributes(nodes, os.path.join(self.raw, "node-feat", node_type), ["node-feat", *self._extra("node")])
        for edge_type in sorted(self._triplets()):
            self._edges(self.graph[edge_type], os.path.join(self.raw, "relations", "___".join(edge_type)))
        for node_type in self._named(self.raw, "nodetype-has-label"):
            self._label(
                self.graph[node_type], self._table(os.path.join(self.raw, "node-label", node_type), "node-label")
            )
        for node_type in self._named(self.split, "nodetype-has-split"):
            self._masks(self.graph[node_type], os.path.join(self.split, node_type))

    def _binary(self) -> None:
        nodes, edges = self.graph[NODE_TYPE], self.graph[EDGE_TYPE]
        path = os.path.join(self.raw, "data.npz")
        nodes.num_nodes = int(_member(path, "num_nodes_list", self.scratch)[0])
        edges.edge_index = torch.from_numpy(_member(path, "edge_index", self.scratch))
        with zipfile.ZipFile(path) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist()]
        for name in names:
            if name.startswith(("node_", "edge_")) and name != "edge_index":
                array = torch.from_numpy(_member(path, name, self.scratch))
                store = nodes if name.startswith("node_") else edges
                store[_OWN_NAMES.get(name, name)] = _flat(array) if name == "node_year" else array
        self._label(nodes, _member(os.path.join(self.raw, "node-label.npz"), "node_label", self.scratch))
        self._masks(nodes, self.split)

    def _attributes(self, store: Any, folder: str, names: list[str]) -> None:
        for name in names:
            if os.path.exists(os.path.join(folder, f"{name}.csv.gz")):
                values = torch.from_numpy(self._table(folder, name))
                own = name.replace("-", "_")
                store[_OWN_NAMES.get(own, own)] = _flat(values) if own == "node_year" else values

    def _edges(self, store: Any, folder: str) -> None:
        pairs, times = self._table(folder, "edge"), 2 if self.both_ways else 1
        count = times * len(pairs)
        ends = self.scratch.array((2 * count,), np.int64)
        step = _BLOCK_BYTES // 32
        for start in range(0, len(pairs), step):
            block = np.repeat(pairs[start : start + step], times, axis=0)
            if self.both_ways:
                block[1::2] = block[1::2, ::-1].copy()
            for end in range(2):
                ends.write(end * count + times * start, block[:, end])
        store.edge_index = torch.from_numpy(ends.open().reshape(2, count))
        for name in ("edge-feat", *self._extra("edge")):
            if os.path.exists(os.path.join(folder, f"{name}.csv.gz")):
                values = self._table(folder, name)
                if self.both_ways:
                    blocks = (np.repeat(values[i : i + step], 2, axis=0) for i in range(0, len(values), step))
                    values = self.scratch.filled((count, *values.shape[1:]), values.dtype, blocks)
                own = name.replace("-", "_")
                store[_OWN_NAMES.get(own, own)] = torch.from_numpy(values)

    def _label(self, store: Any, values: np.ndarray) -> None:
        known = not np.isnan(values).any()
        kind = np.int64 if "classification" in self.about["task type"] and known else np.float32
        store.y = _flat(torch.from_numpy(values.astype(kind)))

    def _masks(self, store: Any, folder: str) -> None:
        for split, mask in _SPLITS.items():
            ids = torch.from_numpy(self._table(folder, split)[:, 0].copy())
            store[mask], _ = as_mask(ids, store.num_nodes, f"{split}.csv.gz")

    def _named(self, folder: str, name: str) -> list[str]:
        return [kind for kind, has in self._header(folder, name).items() if has.lower() in ("true", "1")]

    def _path(self, folder: str, name: str) -> str:
        path = os.path.join(folder, f"{name}.csv.gz")
        if not os.path.exists(path):
            raise FileNotFoundError(2, "not there", path)
        return path

    def _header(self, folder: str, name: str) -> dict[str, str]:
        """A CSV of one line under a header."""
        options = "header = true, all_varchar = true, delim = ','"
        result = self.database.sql(f"SELECT * FROM read_csv({literal(self._path(folder, name))}, {options})")
        return dict(zip(result.columns, map(str, result.fetchall()[0])))

    def _triplets(self) -> list[EdgeType]:
        path = literal(self._path(self.raw, "triplet-type-list"))
        rows = self.database.sql(f"SELECT * FROM read_csv({path}, header = false, all_varchar = true, delim = ',')")
        return [(str(a), str(b), str(c)) for a, b, c in rows.fetchall()]

    def _table(self, folder: str, name: str) -> np.ndarray:
        """A CSV of numbers, [rows, columns]: int64 where all are whole, else float32; as OGB reads it."""
        path = literal(self._path(folder, name))
        table = f'"{self.scratch.path()}"'
        options = "header = false, delim = ',', sample_size = -1"
        self.database.execute(f"CREATE TABLE {table} AS SELECT * FROM read_csv({path}, {options})")
        described = self.database.sql(f"DESCRIBE {table}").fetchall()
        whole = all("INT" in kind for _, kind, *_ in described)
        missing = " OR ".join(f'"{column}" IS NULL' for column, *_ in described)
        rows, absent = self.database.sql(f"SELECT count(*), count(*) FILTER ({missing}) FROM {table}").fetchall()[0]
        whole = whole and not absent
        kind = "BIGINT" if whole else "DOUBLE"
        columns = ", ".join(f'CAST("{column}" AS {kind})' for column, *_ in described)

        def blocks() -> Iterator[np.ndarray]:
            with self.database.cursor() as cursor:
                for batch in batches(cursor, f"SELECT {columns} FROM {table}"):
                    yield np.stack([column.to_numpy(zero_copy_only=False) for column in batch.columns], axis=1)

        array = self.scratch.filled((rows, len(described)), np.int64 if whole else np.float32, blocks())
        self.database.execute(f"DROP TABLE {table}")
        return array


def _flat(values: torch.Tensor) -> torch.Tensor:
    return values[:, 0].contiguous() if values.dim() == 2 and values.size(1) == 1 else values


def _member(path: str, name: str, scratch: Scratch) -> np.ndarray:
    """One array of an `.npz`, without having it in memory."""
    with zipfile.ZipFile(path) as archive:
        if f"{name}.npy" not in archive.namelist():
            raise ValueError(f"{path} holds no {name}")
        with archive.open(f"{name}.npy") as file:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, fortran, dtype = read(file)
            if dtype.hasobject:
                raise ValueError(f"{path}: {name} holds objects")
            if fortran:
                return np.load(path, allow_pickle=False)[name]
            # By numbers, not rows: of an edge_index there are two.
            count, step = int(np.prod(shape, dtype=np.int64)), max(_BLOCK_BYTES // dtype.itemsize, 1)

            def blocks() -> Iterator[np.ndarray]:
                for start in range(0, count, step):
                    size = min(step, count - start) * dtype.itemsize
                    data = file.read(size)
                    if len(data) != size:
                        raise ValueError(f"{path}: {name} is shorter than it says")
                    yield np.frombuffer(data, dtype=dtype)

            return scratch.filled((count,), dtype, blocks()).reshape(shape)
