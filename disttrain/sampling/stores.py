"""A partitioned graph behind PyG's interfaces, for PyG's own loaders: `FeatureStore`, `GraphStore`, and both together.

On one machine they show the whole graph. On several each call is a collective: all machines make the same calls, and
the rows that others own are fetched from them. Node ids are in partition order; the attribute `n_id` holds the original
ones.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import EdgeAttr, FeatureStore, GraphStore, HeteroData, TensorAttr
from torch_geometric.loader import NodeLoader
from torch_geometric.sampler import HeteroSamplerOutput

from ..config import EdgeType, ExperimentError, Sampling
from ..graph.graph import Graph
from ..graph.schema import Wants
from .columns import Column, Columns, taken_names
from .features import FeatureFetcher
from .kind import kind_conflicts, kind_of
from .neighbors import NeighborSampler
from .one_hop import one_hop_of
from .route import Route
from .subgraph import Subgraph


def everything(graph: Graph) -> Wants:
    """All attributes that the graph has."""
    return Wants(
        nodes={node_type: tuple(nodes.attributes) for node_type, nodes in graph.schema.nodes.items()},
        edges={edge_type: tuple(edges.attributes) for edge_type, edges in graph.schema.edges.items()},
    )


def marked_nodes(graph: Graph, node_type: str, mask: str) -> Tensor:
    """int64, in partition order: the nodes of this machine whose boolean attribute `mask` is set."""
    low, high = graph.node_books[node_type].range_of(graph.machine)
    return torch.from_numpy(low + np.flatnonzero(graph.node_attribute(node_type, mask)[low:high]))


class GraphFeatures(FeatureStore):
    """The attributes of nodes (group: the node type) and edges (group: the edge type; index: places in the CSC).

    Read only. One call of `multi_get_tensor` is one exchange, whatever it asks for.

    Args:
        graph: the opened partition directory.
        wants: the attributes that are shown; None: all. `n_id`, the original ids, always is.
        route: the line to the other machines, where there are any.

    Raises:
        ExperimentError: an attribute is called as one that batches have of their own, such as `n_id`.
    """

    def __init__(self, graph: Graph, wants: Wants | None = None, route: Route | None = None) -> None:
        super().__init__()
        self.graph, self.wants = graph, everything(graph) if wants is None else wants
        if taken := taken_names(self.wants):
            raise ExperimentError("\n".join(taken))
        self._fetcher = FeatureFetcher(Columns.of(graph, self.wants), Route() if route is None else route)

    def get_all_tensor_attrs(self) -> list[TensorAttr]:
        """Of nodes first."""
        nodes = [
            TensorAttr(t, name) for t in self.graph.schema.nodes for name in ("n_id", *self.wants.nodes.get(t, ()))
        ]
        edges: list[Any] = [(e, name) for e, names in self.wants.edges.items() for name in names]
        return nodes + [TensorAttr(edge_type, name) for edge_type, name in edges]

    def _get_tensor(self, attr: TensorAttr) -> Tensor | None:
        return self._multi_get_tensor([attr])[0]

    def _multi_get_tensor(self, attrs: list[TensorAttr]) -> list[Tensor | None]:
        """Each attribute at its index; attributes of one group have one index."""
        indices: dict[Any, np.ndarray] = {}
        for attr in attrs:
            ids = self._ids(attr)
            known = indices.setdefault(attr.group_name, ids)
            if known is not ids and not np.array_equal(known, ids):
                raise ValueError(f"expected one index for all attributes of {attr.group_name} in one call, got several")
        columns = self._fetcher.fetch(_subgraph(self.graph, indices))
        return [columns.get(Column(attr.group_name, attr.attr_name)) for attr in attrs]  # pyright: ignore

    def _ids(self, attr: TensorAttr) -> np.ndarray:
        index: Any = attr.index
        size = self._get_tensor_size(attr)
        if size is None:
            return np.empty(0, np.int64)
        if isinstance(index, Tensor):
            index = index.numpy()
        if isinstance(index, np.ndarray):
            return np.flatnonzero(index) if index.dtype == bool else index.astype(np.int64).reshape(-1)
        every = np.arange(size[0])
        return every if index is None else np.atleast_1d(every[index])

    def _get_tensor_size(self, attr: TensorAttr) -> tuple[int, ...] | None:
        group: Any = attr.group_name
        owners: dict[Any, Any] = {**self.graph.schema.nodes, **self.graph.schema.edges}
        if group not in owners:
            return None
        if attr.attr_name == "n_id" and group in self.graph.schema.nodes:
            return (owners[group].count,)
        found = owners[group].attributes.get(attr.attr_name)
        return None if found is None else (owners[group].count, *found.shape)

    def _put_tensor(self, tensor: Any, attr: TensorAttr) -> NoReturn:
        raise NotImplementedError("a partitioned graph is read only")

    def _remove_tensor(self, attr: TensorAttr) -> NoReturn:
        raise NotImplementedError("a partitioned graph is read only")


def _subgraph(graph: Graph, ids: dict[Any, np.ndarray]) -> Subgraph:
    nothing = np.empty(0, np.int64)
    return Subgraph(
        nodes={node_type: ids.get(node_type, nothing) for node_type in graph.schema.nodes},
        edge_place={edge_type: ids.get(edge_type, nothing) for edge_type in graph.schema.edges},
        num_nodes={},
        edge_index={},
        edge_id={},
        num_edges={},
    )


class GraphEdges(GraphStore):
    """The edges that this machine draws from, as CSC: sources, and where those of each destination begin.

    Destinations that other machines draw for have none here. Read only.
    """

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.graph = graph

    def get_all_edge_attrs(self) -> list[EdgeAttr]:
        return [EdgeAttr(edge_type, "csc", size=self._size(edge_type)) for edge_type in self.graph.schema.edges]  # pyright: ignore

    def _size(self, edge_type: EdgeType) -> tuple[int, int]:
        return self.graph.num_nodes(edge_type[0]), self.graph.num_nodes(edge_type[2])

    def _get_edge_index(self, edge_attr: EdgeAttr) -> tuple[Tensor, Tensor] | None:
        """int64 copies: (sources, pointers)."""
        if edge_attr.edge_type not in self.graph.schema.edges or edge_attr.layout.value != "csc":
            return None
        csc = self.graph.csc(edge_attr.edge_type)
        low, high = self.graph.topology_books[edge_attr.edge_type[2]].range_of(self.graph.machine)
        first, last = int(csc.colptr[low]), int(csc.colptr[high])
        pointers = np.zeros(len(csc.colptr), np.int64)
        pointers[low : high + 1] = csc.colptr[low : high + 1] - first
        pointers[high + 1 :] = last - first
        return torch.from_numpy(csc.row[first:last].astype(np.int64)), torch.from_numpy(pointers)

    def _put_edge_index(self, edge_index: Any, edge_attr: EdgeAttr) -> NoReturn:
        raise NotImplementedError("a partitioned graph is read only")

    def _remove_edge_index(self, edge_attr: EdgeAttr) -> NoReturn:
        raise NotImplementedError("a partitioned graph is read only")


class EdgeAttributes:
    """What PyG's loaders do not take from a `FeatureStore`: attributes and degrees of the sampled edges.

    `keep` is for `transform_sampler_output`, `add` for `transform`; in this process, one batch after the other.
    """

    def __init__(self, graph: Graph, wants: Wants, route: Route | None = None) -> None:
        columns = Columns.of(graph, Wants(edges=wants.edges, degrees=wants.degrees))
        self._fetcher = FeatureFetcher(columns, Route() if route is None else route)
        self._drawn: Subgraph | None = None

    def keep(self, out: HeteroSamplerOutput) -> HeteroSamplerOutput:
        assert out.metadata is not None
        self._drawn = out.metadata[-1]
        return out

    def add(self, batch: HeteroData) -> HeteroData:
        assert self._drawn is not None
        for column, tensor in self._fetcher.fetch(self._drawn).items():
            if not isinstance(column.owner, str):
                batch[column.owner][column.name] = tensor
        return batch


def pyg_node_loader(
    graph: Graph,
    node_type: str,
    seeds: Tensor,
    *,
    sampling: Sampling,
    wants: Wants | None = None,
    run_seed: int = 0,
    route: Route | None = None,
    **options: Any,
) -> NodeLoader:
    """PyG's own `NodeLoader` over a partitioned graph: `batches` of the settings that `sampling` holds.

    `loader.node_sampler.set_epoch(epoch)` before each epoch, or every epoch draws the same.

    Args:
        seeds: int64 [num_seeds], in partition order, e.g. of `marked_nodes`.
        sampling: fanout, weights, times; of the rest, `batch_size` unless `options` say otherwise.
        wants: what batches have to carry; None: all attributes.
        route: the line to the other machines, where there are any. They have to make the same number of batches.
        options: of PyG's loader: `shuffle`, `input_time`, `batch_sampler`, ...

    Raises:
        ExperimentError: the settings do not fit the graph.
    """
    if conflicts := kind_conflicts(sampling, graph.schema, node_type):
        raise ExperimentError("\n".join(conflicts))
    wants = everything(graph) if wants is None else wants
    route = Route() if route is None else route
    sampler = NeighborSampler(
        graph,
        sampling.fanout,
        route,
        replace=sampling.replace,
        run_seed=run_seed,
        places_of=[edge_type for edge_type, names in wants.edges.items() if names],
        disjoint=sampling.disjoint,
        kind=kind_of(sampling, graph.schema, node_type),
        one_hop=one_hop_of(sampling.backend),
    )
    if "batch_sampler" not in options:
        options.setdefault("batch_size", sampling.batch_size)
    if any(wants.edges.values()) or wants.degrees:
        of_edges = EdgeAttributes(graph, wants, route)
        options.setdefault("transform_sampler_output", of_edges.keep)
        options.setdefault("transform", of_edges.add)
    features = GraphFeatures(graph, wants, route)
    return NodeLoader((features, GraphEdges(graph)), sampler, (node_type, seeds), **options)
