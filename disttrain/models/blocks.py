"""Blocks: of a mini-batch, what each layer has to compute, and nothing more.

Layer l of L computes the nodes within L-l-1 hops of the seeds, from the nodes within L-l hops. A mini-batch lists nodes
and edges hop by hop, so a block is a prefix: no masks, no copies. With PyG's layers:

    for convolution, block in zip(self.convolutions, blocks(batch, layers=len(self.convolutions))):
        x = {t: x[t][: block.num_dst[t]] for t in x} | {
            e[2]: convolution[e]((x[e[0]], x[e[2]][: block.num_dst[e[2]]]), block.edge_index[e]) ... }
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.index import index2ptr

from ..config import EdgeType


@dataclass
class Block:
    """One layer's part of a mini-batch; local indices are those of the batch itself."""

    num_src: dict[str, int]
    """Node type -> how many of its nodes (the first ones of the batch) the layer reads."""
    num_dst: dict[str, int]
    """Node type -> how many of its nodes (the first ones of the batch) the layer computes."""
    edge_index: dict[EdgeType, Tensor]
    """Edge type -> [2, E] int64, the first E edges of the batch, destinations (row 1) ascending."""
    _pointers: dict[EdgeType, Tensor] = field(default_factory=dict, repr=False)

    def num_edges(self, edge_type: EdgeType) -> int:
        return self.edge_index[edge_type].size(1)

    def edge_attribute(self, batch: HeteroData, edge_type: EdgeType, name: str = "edge_attr") -> Tensor:
        """The block's rows of an edge attribute: [E, ...]."""
        return batch[edge_type][name][: self.num_edges(edge_type)]

    def pointer(self, edge_type: EdgeType) -> Tensor:
        """Where each destination's edges begin and end, [num_dst + 1] int64.

        The edges of i are `pointer[i]:pointer[i + 1]`. Made on first use: O(E).
        """
        if edge_type not in self._pointers:
            self._pointers[edge_type] = index2ptr(self.edge_index[edge_type][1], self.num_dst[edge_type[2]])
        return self._pointers[edge_type]


def blocks(batch: HeteroData, layers: int) -> list[Block]:
    """Cut a mini-batch of `layers` hops into one block per layer, the first computed one first.

    Args:
        batch: as the loader gives it: `num_sampled_nodes` of each node type (layers + 1 entries, the seeds first) and
            `num_sampled_edges` of each edge type (layers entries).

    The last block computes the seeds: `num_dst[seed type] == batch_size`. Costs no copy of any tensor.
    """
    nodes: dict[str, list[int]] = {t: batch[t].num_sampled_nodes for t in batch.node_types}
    edges: dict[EdgeType, list[int]] = {e: batch[e].num_sampled_edges for e in batch.edge_types}
    return [
        Block(
            num_src={t: sum(hops[: layers - layer + 1]) for t, hops in nodes.items()},
            num_dst={t: sum(hops[: layers - layer]) for t, hops in nodes.items()},
            edge_index={e: batch[e].edge_index[:, : sum(hops[: layers - layer])] for e, hops in edges.items()},
        )
        for layer in range(layers)
    ]


def needed_types(edge_types: Iterable[EdgeType], target: str, layers: int) -> list[frozenset[str]]:
    """Which node types can matter: entry l (of layers + 1) holds those whose vectors layer l may read.

    Entry `layers` is the target alone. A relation e has a place in layer l only if `e[2]` is in entry l + 1.
    """
    edge_types = list(edge_types)
    needed = [frozenset([target])]
    for _ in range(layers):
        needed.insert(0, needed[0] | {src for src, _, dst in edge_types if dst in needed[0]})
    return needed
