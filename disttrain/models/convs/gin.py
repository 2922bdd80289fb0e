"""Graph isomorphism network, https://arxiv.org/abs/1810.00826, and with edge attributes https://arxiv.org/abs/1905.12265."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch_geometric.nn import MLP

from ..neighbours import Edges, sum_neighbours
from .convolution import Convolution, RelationBlock


class Gin(Convolution):
    """`mlp((1 + eps) x_i + sum_j x_j)`, eps learnt: PyG's `GINConv`.

    With an edge attribute e, PyG's `GINEConv`: `mlp((1 + eps) x_i + sum_j relu(x_j + W e_ij + b))`.
    """

    includes_own = True

    def __init__(
        self, in_channels: int, hidden: int, attribute: str | None = None, edge_channels: int | None = None
    ) -> None:
        """in_channels: of sources and destinations alike."""
        super().__init__()
        self.linear = attribute is None
        self.attribute = attribute
        self.eps = nn.Parameter(torch.zeros(()))
        self.mlp = MLP([in_channels, hidden, hidden], norm=None)
        self.lin = nn.Linear(edge_channels, in_channels) if edge_channels is not None else None

    def forward(
        self, x_src: Tensor, x_dst: Tensor, relation: RelationBlock, neighbours: Tensor | None = None
    ) -> Tensor:
        if self.lin is not None and self.attribute is not None:
            of_edges = self.lin(relation.attribute(self.attribute))
            src, dst = relation.edge_index
            messages = (x_src.index_select(0, src) + of_edges).relu()
            every = torch.arange(src.numel(), device=src.device)
            _, (neighbours,) = sum_neighbours(messages, [Edges(every, dst, relation.pointer)])
        elif neighbours is None:
            _, (neighbours,) = sum_neighbours(x_src, [self.edges(relation)])
        return self.mlp((1.0 + self.eps) * x_dst + neighbours)
