"""What every data source gives: one heterogeneous graph whose attributes are aligned with its nodes and edges."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.data.storage import EdgeStorage, NodeStorage
from torch_geometric.utils import to_edge_index

from ..config import EdgeType, ExperimentError, Task, edge_type_name
from ..config.counted import counted
from .attributes import MASK_OF_INDEX, as_mask, plain, rows_of, sparse_without_warnings
from .homogeneous import to_heterogeneous
from .nearest import nearest
from .scratch import Scratch

if TYPE_CHECKING:
    import pyarrow

BLOCK = 1 << 22
"""How many numbers are in memory at a time."""

# names that PyG reserves for attributes with a row per node or edge
_ALIGNED = {"x", "x_cat", "y", "pos", "time", "edge_attr", "edge_weight"}


@dataclass
class LoadedGraph:
    """A whole graph, in the user's own order. Tensors may lie on memory-mapped files."""

    data: HeteroData
    """Every attribute is a tensor with one row per node or edge; every node type has `num_nodes`."""
    keys: dict[str, pyarrow.ChunkedArray] = field(default_factory=dict)
    """The user's own key of each row, per node type. Only tables have them."""
    info: dict[str, Any] = field(default_factory=dict)
    """JSON: `classes`: type -> names of classes or labels; `features`: type or relation -> names of the columns of `x`
    or `edge_attr`; `categories`: type -> column of `x_cat` -> number of its codes; what was left out: see
    `left_out_lines`."""


def conform(graph: Any, origin: str, scratch_parent: str | Path | None = None) -> LoadedGraph:
    """Bring what a source returned into the one form that the rest works with.

    `Data` becomes a `HeteroData`. Attributes that are neither node- nor edge-aligned are left out (and named in
    `info["left_out"]`). What is kept in another form is named in `info["converted"]`: sparse attributes become dense,
    bfloat16 float32, `adj_t` an `edge_index`, masks of numbers and ids of a split's nodes (`train_idx`) boolean masks.

    Args:
        graph: what the source returned; it is not changed.
        origin: which source, for messages.
        scratch_parent: where the files lie that conversions are written to, see `Scratch`.

    Raises:
        ExperimentError: if `graph` is something else, an edge names a node that does not exist, a name holds a comma,
            or an attribute is of a kind that cannot be kept.
    """
    if isinstance(graph, (list, tuple)) and len(graph) == 1:
        graph = graph[0]
    if isinstance(graph, Data):
        graph = to_heterogeneous(graph)
    if not isinstance(graph, HeteroData):
        hint = (
            "; a collection of graphs is for task.kind graph_classification or graph_regression"
            if isinstance(graph, (list, tuple))
            else ""
        )
        raise ExperimentError(f"{origin}: expected a HeteroData or Data, got {type(graph).__name__}{hint}")
    _refuse_commas(graph, origin)
    result, left_out, converted = HeteroData(), list[str](), list[str]()
    with Scratch(scratch_parent) as scratch:
        edges = {kind: _edges(graph[kind], f"{origin}: {edge_type_name(kind)}", scratch) for kind in graph.edge_types}
        for node_type in graph.node_types:
            store = _with_split(graph, node_type)
            rows = result[node_type].num_nodes = _num_nodes(store, node_type, edges, origin)
            _copy_aligned(store, result[node_type], rows, node_type, scratch, left_out, converted)
            _use_published_ids(result[node_type])
        for edge_type, found in edges.items():
            store, name = result[edge_type], edge_type_name(edge_type)
            store.edge_index = found.edge_index
            if found.value is not None:
                store["edge_weight" if found.value.dim() == 1 else "edge_attr"] = found.value
            if found.size is not None:
                converted.append(f"{name}: adj_t became edge_index")
            rows = found.edge_index.size(1)
            _copy_aligned(dict(graph[edge_type].items()), store, rows, name, scratch, left_out, converted)
            for row, node_type in enumerate((edge_type[0], edge_type[2])):
                _check_range(found.edge_index[row], node_type, result, edge_type, origin)
    left_out += [name for name, _ in graph._global_store.items() if name != "split_idx"]
    info = {"left_out": left_out, "converted": converted}
    return LoadedGraph(result, info={name: value for name, value in info.items() if value})


def _refuse_commas(graph: HeteroData, origin: str) -> None:
    """A relation is written "src,rel,dst" wherever it is named, so its parts must be told apart."""
    for kind in (*graph.node_types, *graph.edge_types):
        for part in (kind,) if isinstance(kind, str) else kind:
            if "," in part or part != part.strip() or not part:
                raise ExperimentError(
                    f"{origin}: {kind!r} has a comma, a space at an end, or nothing in a name; relations are written "
                    f'"src,rel,dst", so give it another name where the graph is made, for instance '
                    f"{part.replace(',', ';').strip() or 'unnamed'!r}"
                )


class _Edges(NamedTuple):
    edge_index: Tensor
    value: Tensor | None = None
    """What the entries of an `adj_t` hold, where that says something."""
    size: tuple[int, int] | None = None
    """Of an `adj_t`: number of sources and destinations."""


def _edges(store: EdgeStorage, where: str, scratch: Scratch) -> _Edges:
    """The relation's `edge_index` [2, E], int32 or int64; from its `adj_t` where that is all there is."""
    if "edge_index" in store:
        edge_index = store.edge_index
        if isinstance(edge_index, np.ndarray):
            edge_index = plain(edge_index, where, scratch)[0]
        if not (isinstance(edge_index, Tensor) and edge_index.dim() == 2 and edge_index.size(0) == 2):
            # an empty relation that was built from an empty list has shape [0]
            if isinstance(edge_index, Tensor) and edge_index.numel() == 0:
                return _Edges(torch.empty(2, 0, dtype=torch.long))
            came = f"{list(edge_index.shape)}" if isinstance(edge_index, Tensor) else type(edge_index).__name__
            raise ExperimentError(f"{where}: edge_index must be a tensor of shape [2, num_edges], got {came}")
        edge_index = edge_index.detach().cpu().as_subclass(Tensor)
        if edge_index.layout != torch.strided:
            edge_index = edge_index.to_dense()
        if edge_index.dtype not in (torch.int32, torch.int64):
            if edge_index.dtype.is_floating_point or edge_index.dtype == torch.bool or edge_index.is_complex():
                raise ExperimentError(f"{where}: edge_index must hold integers, got {edge_index.dtype}")
            edge_index = edge_index.long()
        if edge_index.is_contiguous():
            return _Edges(edge_index)
        ends = scratch.array((edge_index.numel(),), edge_index[:, :0].numpy().dtype)
        for row in range(2):
            for start in range(0, edge_index.size(1), BLOCK):
                ends.write(row * edge_index.size(1) + start, edge_index[row, start : start + BLOCK].numpy())
        return _Edges(torch.from_numpy(ends.open()).view(2, -1))
    if "adj_t" in store:
        adjacency = store.adj_t
        with sparse_without_warnings():
            transposed, value = to_edge_index(adjacency)
        all_ones = value is None or (value.dim() == 1 and bool((value == 1).all()))
        size = tuple(adjacency.shape) if isinstance(adjacency, Tensor) else tuple(adjacency.sizes())
        return _Edges(transposed.flip(0).contiguous(), None if all_ones else value, (int(size[1]), int(size[0])))
    return _Edges(torch.empty(2, 0, dtype=torch.long))


def _with_split(graph: HeteroData, node_type: str) -> dict[str, Any]:
    """The attributes of a node type; ids in the graph's `split_idx` (as OGB names it) are among them."""
    attributes = dict(graph[node_type].items())
    split = graph._global_store.get("split_idx")
    for name, ids in split.items() if isinstance(split, dict) else ():
        if isinstance(ids, dict):
            ids = ids.get(node_type)
        elif len(graph.node_types) > 1:
            continue
        if f"{name}_idx" in MASK_OF_INDEX and ids is not None:
            attributes.setdefault(f"{name}_idx", ids)
    return attributes


def _num_nodes(store: dict[str, Any], node_type: str, edges: dict[EdgeType, _Edges], origin: str) -> int:
    if store.get("num_nodes") is not None:
        return int(store["num_nodes"])
    for name in ("x", "y", *(name for name in store if name not in MASK_OF_INDEX)):
        if name in store and (rows := rows_of(store[name])) is not None:
            return rows
    sizes = [
        found.size[end]
        for kind, found in edges.items()
        for end in (0, 1)
        if kind[2 * end] == node_type and found.size is not None
    ]
    ends = [found.edge_index[row] for kind, found in edges.items() for row in (0, 1) if kind[2 * row] == node_type]
    if not ends:
        raise ExperimentError(f'{origin}: node type "{node_type}" has no attribute and no edge; set its `num_nodes`')
    return max([*sizes, *(int(end.max()) + 1 for end in ends if end.numel())], default=0)


def _copy_aligned(
    source: dict[str, Any],
    target: Any,
    rows: int,
    where: str,
    scratch: Scratch,
    left_out: list[str],
    converted: list[str],
) -> None:
    """Copy the attributes that have `rows` rows; note the names of the others."""
    for name, value in source.items():
        if name in ("num_nodes", "edge_index", "adj_t"):
            continue
        place = f"{where}.{name}"
        length = rows_of(value)
        is_split = isinstance(target, NodeStorage) and (name.endswith("_mask") or name in MASK_OF_INDEX)
        if length is not None and is_split:
            target[name], how = as_mask(plain(value, place, scratch)[0], rows, place)
        elif length == rows:
            target[name], how = plain(value, place, scratch)
        elif (length is not None or isinstance(value, Tensor)) and name in _ALIGNED:
            shape = tuple(value.shape) if isinstance(value, (Tensor, np.ndarray)) else tuple(value.sizes())
            raise ExperimentError(f"{place}: expected one row for each of {rows}, got a tensor of shape {shape}")
        elif isinstance(value, (list, tuple)) and (name in _ALIGNED or is_split):
            raise ExperimentError(
                f"{place}: expected a tensor with a row for each of {rows}, got a {type(value).__name__} of "
                f"{len(value)}; make it a tensor where the graph is made (of text: numbers that stand for it)"
            )
        else:
            left_out.append(place)
            continue
        if how is not None:
            converted.append(how)


def _use_published_ids(store: Any) -> None:
    """Ids of the nodes of splits are masks by now; they are named so where there is no such mask already."""
    for name, mask in MASK_OF_INDEX.items():
        if name in store:
            value = store[name]
            del store[name]
            if mask not in store:
                store[mask] = value


def _check_range(ends: Tensor, node_type: str, data: HeteroData, edge_type: EdgeType, origin: str) -> None:
    if node_type not in data.node_types:
        raise ExperimentError(
            f'{origin}: relation "{edge_type_name(edge_type)}" names the node type "{node_type}", which has neither '
            f"attributes nor num_nodes{nearest(node_type, data.node_types)}"
        )
    num_nodes = data[node_type].num_nodes
    if ends.numel() and (int(ends.min()) < 0 or int(ends.max()) >= num_nodes):
        raise ExperimentError(
            f'{origin}: relation "{edge_type_name(edge_type)}" has ids of "{node_type}" from {int(ends.min())} to '
            f"{int(ends.max())}, with {counted(num_nodes, 'such node')}, numbered from 0 on"
        )


def target_node_type(data: HeteroData, task: Task) -> str:
    """The node type of the task: the one that it names, else the only one that has the label.

    Raises:
        ExperimentError: if it does not exist, has no label, or more than one type has it.
    """
    labelled = [node_type for node_type in data.node_types if task.label in data[node_type]]
    if task.node_type is None:
        if len(labelled) == 1:
            return labelled[0]
        if labelled:
            raise ExperimentError(f'task.node_type: several types have "{task.label}": {", ".join(labelled)}; name one')
        names = sorted({name for node_type in data.node_types for name in list(data[node_type].keys())} - {"num_nodes"})
        raise ExperimentError(f'task.label: no node type has an attribute "{task.label}"{nearest(task.label, names)}')
    if task.node_type not in data.node_types:
        raise ExperimentError(
            f'task.node_type: the graph has no node type "{task.node_type}"{nearest(task.node_type, data.node_types)}'
        )
    if task.node_type not in labelled:
        hint = f"; it is on: {', '.join(labelled)}" if labelled else nearest(task.label, data[task.node_type].keys())
        raise ExperimentError(f'task.label: "{task.node_type}" has no attribute "{task.label}"{hint}')
    return task.node_type
