"""Graph attention, https://arxiv.org/abs/1710.10903 and https://arxiv.org/abs/2105.14491."""

from __future__ import annotations

from torch import Tensor
from torch_geometric.nn import GATConv, GATv2Conv
from torch_geometric.nn.aggr import Aggregation, MedianAggregation, PowerMeanAggregation, SoftmaxAggregation

from ...config import Aggr
from ..aggregate import nothing
from .convolution import Convolution, RelationBlock


class _Median(MedianAggregation):
    """PyG's median (2.8.1) fails where the first destination has no edge: it is given only those that have."""

    def forward(
        self,
        x: Tensor,
        index: Tensor | None = None,
        ptr: Tensor | None = None,
        dim_size: int | None = None,
        dim: int = -2,
    ) -> Tensor:
        assert index is not None and dim_size is not None
        size = list(x.shape)
        size[dim] = dim_size
        if index.numel() == 0:
            return x.new_zeros(size) + x.sum() * 0.0
        present, position = index.unique(return_inverse=True)
        out = super().forward(x, position, None, present.numel(), dim)
        return out.new_zeros(size).index_copy(dim, present, out)


def _aggregation(aggr: Aggr | None) -> str | Aggregation:
    # The weights of attention add up to one, so messages are summed unless the relation says otherwise.
    if aggr is None:
        return "sum"
    if aggr == "median":
        return _Median()
    if aggr == "softmax":
        return SoftmaxAggregation(learn=True)
    if aggr == "powermean":
        return PowerMeanAggregation(learn=True)
    assert isinstance(aggr, str)
    return aggr


class Gat(Convolution):
    """PyG's `GATConv` or `GATv2Conv`, heads averaged; an edge attribute takes part.

    Within one node type a node attends to itself too, as in the paper.
    """

    def __init__(
        self,
        in_channels: tuple[int, int],
        hidden: int,
        heads: int,
        aggr: Aggr | None,
        within_type: bool,
        attribute: str | None = None,
        edge_channels: int | None = None,
        version: int = 1,
    ) -> None:
        """Args:
        in_channels: of sources and destinations.
        within_type: sources and destinations are of one type.
        attribute: edge attribute that takes part, of `edge_channels` columns.
        version: 1 or 2, of the paper.
        """
        super().__init__()
        self.includes_own = within_type
        self.attribute = attribute
        make = GATConv if version == 1 else GATv2Conv
        self.conv = make(
            in_channels[0] if within_type else in_channels,  # pyright: ignore[reportArgumentType]
            hidden,
            heads=heads,
            concat=False,
            add_self_loops=within_type,
            edge_dim=edge_channels,
            aggr=_aggregation(aggr),
        )

    def forward(
        self, x_src: Tensor, x_dst: Tensor, relation: RelationBlock, neighbours: Tensor | None = None
    ) -> Tensor:
        edge_attr = None if self.attribute is None else relation.attribute(self.attribute)
        if relation.num_edges == 0 and not self.includes_own:
            # Not all versions and settings of PyG's layers use each of their parameters then; there is the bias only.
            out = nothing(self.conv, x_src, x_dst.size(0), self.conv.out_channels)
            return out + x_dst.sum() * 0.0 + self.conv.bias  # pyright: ignore[reportOperatorIssue]
        size = (x_src.size(0), x_dst.size(0))
        if isinstance(self.conv, GATConv):
            out = self.conv((x_src, x_dst), relation.edge_index, edge_attr, size=size)
        else:
            out = self.conv((x_src, x_dst), relation.edge_index, edge_attr)
        if edge_attr is not None and relation.num_edges == 0:
            out = out + nothing(self.conv, x_src, 1, 1)
        return out
