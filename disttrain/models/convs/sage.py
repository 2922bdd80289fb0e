"""GraphSAGE (https://arxiv.org/abs/1706.02216) and its kin with weights on edges (https://arxiv.org/abs/1810.02244)."""

from __future__ import annotations

from torch import Tensor
from torch_geometric.nn.dense.linear import Linear

from ...config import Aggr
from ..aggregate import Aggregate, with_mean_weights
from ..neighbours import Edges, sum_neighbours
from .convolution import Convolution, RelationBlock


class Sage(Convolution):
    """`W aggr(neighbours) + b`: PyG's `SAGEConv` without its root weight; with `weight`, PyG's `GraphConv` without its.

    The root weights of the relations into one type add up to one matrix; `HeteroConvLayer` has that one.
    """

    def __init__(
        self,
        in_channels: int,
        hidden: int,
        aggr: Aggr,
        mode: str = "cat",
        weight: str | None = None,
        mean_degree: float = 1.0,
    ) -> None:
        """Args:
        mode: how several aggregations become one vector, see `Aggregate`.
        weight: edge attribute by which each neighbour's vector is multiplied.
        mean_degree: of a destination, in the whole graph.
        """
        super().__init__()
        self.aggregate = Aggregate(aggr, in_channels, mode, mean_degree)
        self.lin_l = Linear(self.aggregate.out_channels, hidden)
        self.linear = self.aggregate.kinds in (["mean"], ["sum"])
        self.attribute = weight

    def forward(
        self, x_src: Tensor, x_dst: Tensor, relation: RelationBlock, neighbours: Tensor | None = None
    ) -> Tensor:
        if neighbours is not None:
            return self.lin_l(neighbours)
        if self.linear:
            _, (neighbours,) = sum_neighbours(x_src, [self.edges(relation)])
            return self.lin_l(neighbours)
        return self.lin_l(self.aggregate(x_src, relation.edges(self.attribute)))

    def edges(self, relation: RelationBlock) -> Edges:
        edges = relation.edges(self.attribute)
        if self.aggregate.kinds == ["sum"]:
            return edges
        if edges.weight is not None:
            return with_mean_weights(edges)
        return Edges(edges.src, edges.dst, edges.pointer, mean=True)
