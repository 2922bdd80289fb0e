"""What every data source gives: one heterogeneous graph whose attributes are aligned with its nodes and edges."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.data.storage import EdgeStorage, NodeStorage
from torch_geometric.utils import to_edge_index

from ..config import EdgeType, ExperimentError, Task, edge_type_name
from .homogeneous import to_heterogeneous
from .nearest import nearest

if TYPE_CHECKING:
    import pyarrow

# names that PyG reserves for attributes with a row per node or edge
_ALIGNED = {"x", "x_cat", "y", "pos", "time", "edge_attr", "edge_weight"}


@dataclass
class LoadedGraph:
    """A whole graph in memory, in the user's own order."""

    data: HeteroData
    """Every attribute is a tensor with one row per node or edge; every node type has `num_nodes`."""
    keys: dict[str, pyarrow.Array] = field(default_factory=dict)
    """The user's own key of each row, per node type. Only tables have them."""
    info: dict[str, Any] = field(default_factory=dict)
    """JSON: names of classes, features and categories, what was left out."""


def conform(graph: Data | HeteroData, origin: str) -> LoadedGraph:
    """Bring what a source returned into the one form that the rest works with.

    `Data` becomes a `HeteroData`. Attributes that are neither node- nor edge-aligned are left out (and named in
    `info["left_out"]`), sparse features become dense, `adj_t` becomes `edge_index`.

    Args:
        graph: what the source returned; it is not changed.
        origin: which source, for messages.

    Raises:
        ExperimentError: if `graph` is something else, or an edge names a node that does not exist.
    """
    if isinstance(graph, Data):
        graph = to_heterogeneous(graph)
    if not isinstance(graph, HeteroData):
        hint = "; a collection of graphs cannot be trained on yet" if isinstance(graph, (list, tuple)) else ""
        raise ExperimentError(f"{origin}: expected a HeteroData or Data, got {type(graph).__name__}{hint}")

    result, left_out = HeteroData(), []
    edges = {edge_type: _edge_index(graph[edge_type], f"{origin}: {edge_type}") for edge_type in graph.edge_types}
    for node_type in graph.node_types:
        result[node_type].num_nodes = _num_nodes(graph[node_type], node_type, edges, origin)
        left_out += _copy_aligned(graph[node_type], result[node_type], result[node_type].num_nodes, node_type)
    for edge_type, (edge_index, value) in edges.items():
        store = result[edge_type]
        store.edge_index = edge_index
        if value is not None:
            store.edge_weight = value
        left_out += _copy_aligned(graph[edge_type], store, edge_index.size(1), edge_type_name(edge_type))
        for row, node_type in enumerate((edge_type[0], edge_type[2])):
            _check_range(edge_index[row], node_type, result, edge_type, origin)
    left_out += [name for name, _ in graph._global_store.items()]
    return LoadedGraph(result, info={"left_out": left_out} if left_out else {})


def _edge_index(store: EdgeStorage, where: str) -> tuple[Tensor, Tensor | None]:
    """The relation's `edge_index` [2, E], and the values of its `adj_t` where that is all there is."""
    if "edge_index" in store:
        edge_index = store.edge_index
        if not (isinstance(edge_index, Tensor) and edge_index.dim() == 2 and edge_index.size(0) == 2):
            # an empty relation that was built from an empty list has shape [0]
            if isinstance(edge_index, Tensor) and edge_index.numel() == 0:
                return torch.empty(2, 0, dtype=torch.long), None
            raise ExperimentError(f"{where}: edge_index must be a tensor of shape [2, num_edges]")
        return edge_index.long().contiguous(), None
    if "adj_t" in store:
        transposed, value = to_edge_index(store.adj_t)
        all_ones = value is None or bool((value == 1).all())
        return transposed.flip(0).contiguous(), None if all_ones else value
    return torch.empty(2, 0, dtype=torch.long), None


def _num_nodes(store: NodeStorage, node_type: str, edges: dict[EdgeType, tuple[Tensor, Any]], origin: str) -> int:
    if "num_nodes" in store:
        return int(store["num_nodes"])
    for name in ("x", "y", "train_mask", *store.keys()):
        if name in store and isinstance(store[name], (Tensor, np.ndarray)) and store[name].ndim > 0:
            return int(store[name].shape[0])
    ends = [index[row] for kind, (index, _) in edges.items() for row in (0, 1) if kind[2 * row] == node_type]
    if not ends:
        raise ExperimentError(f'{origin}: node type "{node_type}" has no attribute and no edge; set its `num_nodes`')
    return max((int(end.max()) + 1 for end in ends if end.numel()), default=0)


def _copy_aligned(source: Any, target: Any, rows: int, where: str) -> list[str]:
    """Copy the attributes that have `rows` rows; the names of the others come back."""
    left_out = []
    for name, value in source.items():
        if name in ("num_nodes", "edge_index", "adj_t"):
            continue
        if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
            value = torch.from_numpy(value)
        if isinstance(value, Tensor) and value.dim() > 0 and value.size(0) == rows:
            value = value.to_dense() if value.layout != torch.strided else value
            target[name] = value.detach().cpu().contiguous()
        elif isinstance(value, Tensor) and (name in _ALIGNED or name.endswith("_mask")):
            raise ExperimentError(
                f"{where}.{name}: expected one row for each of {rows}, got a tensor of shape {tuple(value.shape)}"
            )
        else:
            left_out.append(f"{where}.{name}")
    return left_out


def _check_range(ends: Tensor, node_type: str, data: HeteroData, edge_type: EdgeType, origin: str) -> None:
    if node_type not in data.node_types:
        raise ExperimentError(
            f'{origin}: relation "{edge_type_name(edge_type)}" names the node type "{node_type}"'
            f"{nearest(node_type, data.node_types)}"
        )
    num_nodes = data[node_type].num_nodes
    if ends.numel() and (int(ends.min()) < 0 or int(ends.max()) >= num_nodes):
        raise ExperimentError(
            f'{origin}: relation "{edge_type_name(edge_type)}" has ids of "{node_type}" from {int(ends.min())} to '
            f"{int(ends.max())}, but there are {num_nodes} such nodes (ids 0 to {num_nodes - 1})"
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
        names = sorted({name for node_type in data.node_types for name in list(data[node_type].keys())})
        raise ExperimentError(f'task.label: no node type has an attribute "{task.label}"{nearest(task.label, names)}')
    if task.node_type not in data.node_types:
        raise ExperimentError(
            f'task.node_type: the graph has no node type "{task.node_type}"{nearest(task.node_type, data.node_types)}'
        )
    if task.node_type not in labelled:
        hint = f"; it is on: {', '.join(labelled)}" if labelled else nearest(task.label, data[task.node_type].keys())
        raise ExperimentError(f'task.label: "{task.node_type}" has no attribute "{task.label}"{hint}')
    return task.node_type
