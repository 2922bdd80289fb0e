"""A HeteroData as plain NumPy arrays, checked: what the partitioner cuts and writes."""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch_geometric.data import HeteroData
from torch_geometric.data.storage import BaseStorage

from ..config import EdgeType, ExperimentError, edge_type_name
from ..config.counted import counted
from .blocks import id_blocks

_MUST_FIT_NODES = ("x", "x_cat", "time", "train_mask", "val_mask", "test_mask")
_MUST_FIT_EDGES = ("edge_attr", "edge_weight", "time")
_MAX_INFO_BYTES = 4096


@dataclass(frozen=True)
class NodeArrays:
    """One node type."""

    count: int
    attributes: dict[str, np.ndarray] = field(default_factory=dict)
    """Each [count, ...], in the user's order."""

    @property
    def is_train_seed(self) -> np.ndarray:
        """bool [count]: those in `train_mask`; in any of its columns where it holds several splits."""
        mask = self.attributes.get("train_mask")
        if mask is None:
            return np.zeros(self.count, dtype=bool)
        return np.logical_or.reduce(mask, axis=tuple(range(1, mask.ndim)), dtype=bool) if mask.ndim > 1 else mask != 0


@dataclass(frozen=True)
class EdgeArrays:
    """One edge type."""

    src: np.ndarray
    """int [E]"""
    dst: np.ndarray
    """int [E]"""
    attributes: dict[str, np.ndarray] = field(default_factory=dict)
    """Each [E, ...], in the user's order."""

    @property
    def count(self) -> int:
        return len(self.src)


@dataclass(frozen=True)
class GraphArrays:
    """The whole graph, types in the order of the HeteroData. Arrays share memory with its tensors where they can."""

    nodes: dict[str, NodeArrays]
    edges: dict[EdgeType, EdgeArrays]
    info: dict[str, Any]
    """Small attributes of the graph or of a type that belong to no row: owner (`""`: the graph) -> name -> value."""

    @property
    def num_nodes(self) -> int:
        return sum(nodes.count for nodes in self.nodes.values())

    @property
    def num_edges(self) -> int:
        return sum(edges.count for edges in self.edges.values())

    @property
    def num_bytes(self) -> int:
        """Of attributes and edges in memory; about what the partition directory takes."""
        attributes = [
            array.nbytes
            for owner in (*self.nodes.values(), *self.edges.values())
            for array in owner.attributes.values()
        ]
        structure = 8 * self.num_nodes + sum(
            12 * edges.count + 12 * (self.nodes[src].count + self.nodes[dst].count)
            for (src, _, dst), edges in self.edges.items()
        )
        return sum(attributes) + structure


def graph_arrays(data: HeteroData) -> GraphArrays:
    """Check a HeteroData and take it apart.

    An attribute is a node type's (an edge type's) if it is a tensor or numeric array whose first dimension is the
    number of nodes (edges). Other attributes belong to no row: small JSON values go to `info`, one warning names the
    rest, which are left out.

    Raises:
        ExperimentError: no node types; a node type of unknown size; `x`, masks, times or edge attributes of the wrong
            length; a relation without `edge_index`, or with ends that are no node type or ids out of range; sparse,
            quantized, complex or bfloat16 tensors.
    """
    if not data.node_types:
        raise ExperimentError("the graph has no node types; a HeteroData with at least one node type was expected")
    left_out: list[str] = []
    info: dict[str, Any] = {}
    nodes = {node_type: _nodes(node_type, data[node_type], info, left_out) for node_type in data.node_types}
    counts = {node_type: entry.count for node_type, entry in nodes.items()}
    edges = {edge_type: _edges(edge_type, data[edge_type], counts, info, left_out) for edge_type in data.edge_types}
    _keep_or_leave("", dict(data._global_store.items()), info, left_out)
    if left_out:
        warnings.warn(
            "attributes that are neither one row per node nor one row per edge are left out of the partitions: "
            + ", ".join(left_out),
            stacklevel=2,
        )
    return GraphArrays(nodes, edges, info)


def _nodes(node_type: str, store: BaseStorage, info: dict[str, Any], left_out: list[str]) -> NodeArrays:
    where = f"data[{node_type!r}]"
    count = _num_nodes(where, store)
    values = {name: value for name, value in store.items() if name != "num_nodes"}
    if any(_is_sparse(value) for name, value in values.items() if name in ("adj", "adj_t")):
        raise ExperimentError(f"{where} holds an adjacency; expected edges as edge types with an `edge_index`")
    attributes, rest = _aligned(where, values, count, "nodes", _MUST_FIT_NODES)
    _keep_or_leave(node_type, rest, info, left_out)
    return NodeArrays(count, attributes)


def _num_nodes(where: str, store: BaseStorage) -> int:
    if store.get("num_nodes") is not None:
        count = int(store["num_nodes"])
        if count < 0:
            raise ExperimentError(f"{where}.num_nodes: expected 0 or more, got {count}")
        return count
    lengths = {name: len(value) for name, value in store.items() if _is_rows(value)}
    for name in _MUST_FIT_NODES:
        if name in lengths:
            return lengths[name]
    if len(set(lengths.values())) == 1:
        return next(iter(lengths.values()))
    raise ExperimentError(
        f"{where}: its number of nodes is unknown (no num_nodes, no x, "
        + (f"and attributes of different lengths {lengths}" if lengths else "no other attribute")
        + f"); set {where}.num_nodes"
    )


def _edges(
    edge_type: EdgeType, store: BaseStorage, counts: dict[str, int], info: dict[str, Any], left_out: list[str]
) -> EdgeArrays:
    where = f"data[{', '.join(map(repr, edge_type))}]"
    values = dict(store.items())
    if any(name in values for name in ("adj", "adj_t")):
        raise ExperimentError(
            f"{where} holds its edges as a sparse matrix ({'adj_t' if 'adj_t' in values else 'adj'}); expected an "
            "`edge_index` [2, E]. Leave out the ToSparseTensor transform, or set edge_index from the matrix: "
            "`col, row, _ = adj_t.t().coo(); edge_index = torch.stack([col, row])`"
        )
    if values.get("edge_index") is None:
        raise ExperimentError(f"{where} has no edge_index; expected an integer tensor of shape [2, E]")
    edge_index = _array(f"{where}.edge_index", values.pop("edge_index"))
    if edge_index.ndim != 2 or edge_index.shape[0] != 2 or edge_index.dtype.kind not in "iu":
        raise ExperimentError(
            f"{where}.edge_index: expected integers of shape [2, E], got {edge_index.dtype} {list(edge_index.shape)}"
        )
    src, dst = edge_index
    for end, node_type, ids in (("source", edge_type[0], src), ("destination", edge_type[2], dst)):
        if node_type not in counts:
            raise ExperimentError(
                f"{where}: its {end} type {node_type!r} is no node type of the graph ({sorted(counts)}); "
                f"set data[{node_type!r}].num_nodes"
            )
        if len(ids) and (ids.min() < 0 or ids.max() >= counts[node_type]):
            num_wrong, first = _out_of_range(ids, counts[node_type])
            raise ExperimentError(
                f"{where}.edge_index: {num_wrong} of {len(ids)} {end} ids are not among the {counts[node_type]} nodes "
                f"of type {node_type!r} (0 to {counts[node_type] - 1}), the first is {ids[first]} in edge {first}; "
                f"correct the edges, or data[{node_type!r}].num_nodes"
            )
    attributes, rest = _aligned(where, values, len(src), "edges", _MUST_FIT_EDGES)
    _keep_or_leave(edge_type_name(edge_type), rest, info, left_out)
    return EdgeArrays(src, dst, attributes)


def _out_of_range(ids: np.ndarray, count: int) -> tuple[int, int]:
    """How many ids are not below `count`, or are negative, and where the first is."""
    num_wrong, first, row = 0, -1, 0
    for block in id_blocks(ids):
        wrong = np.flatnonzero((block < 0) | (block >= count))
        if len(wrong) and first < 0:
            first = row + int(wrong[0])
        num_wrong += len(wrong)
        row += len(block)
    return num_wrong, first


def _aligned(
    where: str, values: dict[str, Any], count: int, what: str, must_fit: tuple[str, ...]
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Those with one row per node or edge, as arrays, and the rest."""
    attributes, rest = {}, {}
    for name, value in values.items():
        if isinstance(value, torch.Tensor) or _is_sparse(value) or _is_rows(value):
            array = _array(f"{where}.{name}", value)
            if array.ndim and len(array) == count:
                attributes[name] = array
                continue
            if name in must_fit:
                raise ExperimentError(
                    f"{where}.{name}: expected {counted(count, 'row')}, one for each of the {what}, got {_of(array)}"
                )
        rest[name] = value
    return attributes, rest


def _of(array: np.ndarray) -> str:
    return f"{len(array)} (shape {list(array.shape)})" if array.ndim else "a single value"


def _is_rows(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.dim() > 0
    return isinstance(value, np.ndarray) and value.ndim > 0 and value.dtype.kind in "biuf"


def _is_sparse(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.layout != torch.strided
    # torch_sparse is not imported for the sake of this check.
    return type(value).__name__ == "SparseTensor"


def _array(where: str, value: Any) -> np.ndarray:
    if _is_sparse(value):
        raise ExperimentError(
            f"{where}: expected a dense tensor, got a sparse one; convert it (`.to_dense()`) beforehand"
        )
    if isinstance(value, torch.Tensor):
        if value.dtype == torch.bfloat16:
            raise ExperimentError(
                f"{where}: bfloat16 has no counterpart in the partition files; convert it, `.float()` or `.half()`. "
                "(Training in bf16 is `train.precision: bf16` and needs no such features.)"
            )
        if value.is_quantized or value.is_complex():
            raise ExperimentError(f"{where}: expected real numbers, integers or booleans, got {value.dtype}")
        # EdgeIndex and Index of PyG are subclasses with checks of their own.
        value = value.detach().cpu().as_subclass(torch.Tensor)
        try:
            value = value.numpy()
        except TypeError as error:
            raise ExperimentError(f"{where}: expected real numbers, integers or booleans, got {value.dtype}") from error
    return value if value.dtype.isnative else value.astype(value.dtype.newbyteorder("="))


def _keep_or_leave(owner: str, values: dict[str, Any], info: dict[str, Any], left_out: list[str]) -> None:
    for name, value in values.items():
        try:
            small = len(json.dumps(value, allow_nan=False)) <= _MAX_INFO_BYTES  # NaN is no JSON
        except (TypeError, ValueError):
            small = False
        if small:
            info.setdefault(owner, {})[name] = value
        else:
            left_out.append(f"{owner or 'graph'}: {name}")
