"""Graph convolution, https://arxiv.org/abs/1609.02907."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch_geometric.nn.dense.linear import Linear

from ..neighbours import Edges, sum_neighbours
from .convolution import Convolution, RelationBlock


class Gcn(Convolution):
    """Graph convolution with the degrees of the whole graph.

    Between two types: `W sum_j w_ij x_j / sqrt(out(j) in(i)) + b`, out and in being the relation's degrees. Within one
    type, as PyG's `GCNConv`: a self loop is added, and both degrees are in-degrees plus one (for graphs without self
    loops of their own the two are the same function; self loops of the graph count as edges beside the added one).
    Degrees are numbers of edges, also where edges have weights w (PyG adds up the weights).

    Of d neighbours k are drawn: their sum is scaled by d/k. That makes it an unbiased estimate of the whole sum, and
    the whole sum itself when all are drawn.
    """

    linear = True
    wants_degrees = True

    def __init__(self, in_channels: int, hidden: int, within_type: bool, weight: str | None = None) -> None:
        """weight: edge attribute by which each neighbour's vector is multiplied."""
        super().__init__()
        self.includes_own = within_type
        self.attribute = weight
        self.lin = Linear(in_channels, hidden, bias=False, weight_initializer="glorot")
        self.bias = nn.Parameter(torch.zeros(hidden))

    def forward(
        self, x_src: Tensor, x_dst: Tensor, relation: RelationBlock, neighbours: Tensor | None = None
    ) -> Tensor:
        if neighbours is None:
            _, (neighbours,) = sum_neighbours(x_src, [self.edges(relation)])
        if self.includes_own:
            degree = relation.batch[relation.edge_type].dst_degree[: x_dst.size(0)].float() + 1.0
            neighbours = neighbours + x_dst / degree.unsqueeze(1).to(x_dst.dtype)
        return self.lin(neighbours) + self.bias

    def edges(self, relation: RelationBlock) -> Edges:
        edges, store = relation.edges(self.attribute), relation.batch[relation.edge_type]
        loop = 1.0 if self.includes_own else 0.0
        src_degree = store.dst_degree if self.includes_own else store.src_degree
        dst_degree = store.dst_degree[: edges.pointer.numel() - 1].float()
        drawn = edges.pointer.diff().clamp(min=1)
        at_src = (src_degree.float() + loop).clamp(min=1.0).rsqrt()
        at_dst = dst_degree / drawn * (dst_degree + loop).clamp(min=1.0).rsqrt()
        weight = at_src[edges.src] * at_dst[edges.dst]
        if edges.weight is not None:
            weight = weight * edges.weight
        return Edges(edges.src, edges.dst, edges.pointer, weight=weight)
