"""Convolutions of one relation: sources -> destinations.

The parameters and the mathematics are those of PyG's layers; no edge at all is a case like any other. Each is called as

    conv(x_src, x_dst, block, edge_type, batch)   ->  [N_dst, hidden]

Those whose neighbour part is a sum with constant weights (`conv.linear`) say which sum (`conv.edges`), and take it as
`neighbours` where the layer has computed it already, with those of other relations (see `neighbours.py`).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.data import HeteroData
from torch_geometric.nn import GATConv, SAGEConv
from torch_geometric.nn.aggr import Aggregation, MedianAggregation, PowerMeanAggregation, SoftmaxAggregation
from torch_geometric.nn.dense.linear import Linear
from torch_geometric.nn.inits import zeros

from ..config import Aggr, EdgeType
from .blocks import Block
from .neighbours import Edges, sum_neighbours


def _nothing(module: nn.Module, x: Tensor, rows: int, width: int) -> Tensor:
    """Zeros [rows, width] that give x and every parameter of the module a zero gradient instead of none."""
    connected = x.sum() * 0.0
    for parameter in module.parameters():
        connected = connected + parameter.sum() * 0.0
    return x.new_zeros(rows, width) + connected


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
        present, position = torch.unique(index, return_inverse=True)
        out = super().forward(x, position, None, present.numel(), dim)
        return out.new_zeros(size).index_copy(dim, present, out)


def _aggregation(aggr: Aggr) -> str | Aggregation:
    if aggr == "median":
        return _Median()
    # With fixed exponents, `powermean` is the mean; both are learnt, as in DeeperGCN (https://arxiv.org/abs/2006.07739).
    if aggr == "softmax":
        return SoftmaxAggregation(learn=True)
    if aggr == "powermean":
        return PowerMeanAggregation(learn=True)
    return aggr


class Sage(nn.Module):
    """GraphSAGE's neighbour part, `W aggr(neighbours) + b`, by PyG's `SAGEConv` without its root weight.

    The root weights of the relations into one type add up to one matrix; `HeteroConvLayer` has that one.
    """

    def __init__(self, in_channels: int, hidden: int, aggr: Aggr) -> None:
        super().__init__()
        self.aggr = aggr
        self.linear = aggr in ("mean", "sum")
        self.conv = SAGEConv((in_channels, in_channels), hidden, aggr=_aggregation(aggr), root_weight=False)  # pyright: ignore[reportArgumentType]

    def forward(
        self,
        x_src: Tensor,
        x_dst: Tensor,
        block: Block,
        edge_type: EdgeType,
        batch: HeteroData,
        neighbours: Tensor | None = None,
    ) -> Tensor:
        if self.linear:
            if neighbours is None:
                _, (neighbours,) = sum_neighbours(x_src, [self.edges(block, edge_type, batch)])
            return self.conv.lin_l(neighbours)
        if self.aggr in ("max", "min"):
            sign = 1.0 if self.aggr == "max" else -1.0
            src, pointer = block.edge_index[edge_type][0], block.pointer(edge_type)
            x = functional.embedding_bag(src, x_src * sign, pointer, mode="max", include_last_offset=True)
            return self.conv.lin_l(x * sign)
        rows = x_dst.size(0)
        if block.num_edges(edge_type) == 0:
            return self.conv.lin_l(_nothing(self.conv.aggr_module, x_src, rows, x_src.size(1)))
        return self.conv((x_src, None), block.edge_index[edge_type], size=(x_src.size(0), rows))

    def edges(self, block: Block, edge_type: EdgeType, batch: HeteroData) -> Edges:
        src, dst = block.edge_index[edge_type]
        return Edges(src, dst, block.pointer(edge_type), mean=self.aggr == "mean")


class Gat(nn.Module):
    """Graph attention by PyG's `GATConv`, heads averaged; `edge_attr`, where the relation has it, takes part.

    Within one node type a node attends to itself too, as in the paper (https://arxiv.org/abs/1710.10903).
    """

    def __init__(
        self,
        in_channels: tuple[int, int],
        hidden: int,
        heads: int,
        aggr: Aggr | None,
        within_type: bool,
        edge_channels: int | None,
    ) -> None:
        super().__init__()
        self.uses_edges = edge_channels is not None
        self.conv = GATConv(
            in_channels[0] if within_type else in_channels,
            hidden,
            heads=heads,
            concat=False,
            add_self_loops=within_type,
            edge_dim=edge_channels,
            aggr=_aggregation(aggr or "sum"),
        )

    def forward(self, x_src: Tensor, x_dst: Tensor, block: Block, edge_type: EdgeType, batch: HeteroData) -> Tensor:
        edge_attr = None
        if self.uses_edges:
            edge_attr = block.edge_attribute(batch, edge_type).float().nan_to_num()
            edge_attr = edge_attr.flatten(1) if edge_attr.dim() > 1 else edge_attr.unsqueeze(1)
        size = (x_src.size(0), x_dst.size(0))
        out = self.conv((x_src, x_dst), block.edge_index[edge_type], edge_attr, size=size)
        if self.uses_edges and block.num_edges(edge_type) == 0:
            # Without edges GATConv passes its edge parameters by.
            out = out + _nothing(self.conv, x_src, 1, 1)
        return out


class Gcn(nn.Module):
    """Graph convolution (https://arxiv.org/abs/1609.02907) with the degrees of the whole graph.

    Between two types: `W sum_j x_j / sqrt(out(j) in(i)) + b`, out and in being the relation's degrees. Within one type,
    as PyG's `GCNConv`: a self loop is added, and both degrees are in-degrees plus one (for graphs without self loops of
    their own the two are the same function; self loops of the graph count as edges beside the added one).

    Of d neighbours k are drawn: their sum is scaled by d/k. That makes it an unbiased estimate of the whole sum, and
    the whole sum itself when all are drawn.
    """

    linear = True

    def __init__(self, in_channels: int, hidden: int, within_type: bool) -> None:
        super().__init__()
        self.within_type = within_type
        self.lin = Linear(in_channels, hidden, bias=False, weight_initializer="glorot")
        self.bias = nn.Parameter(torch.empty(hidden))
        zeros(self.bias)

    def forward(
        self,
        x_src: Tensor,
        x_dst: Tensor,
        block: Block,
        edge_type: EdgeType,
        batch: HeteroData,
        neighbours: Tensor | None = None,
    ) -> Tensor:
        if neighbours is None:
            _, (neighbours,) = sum_neighbours(x_src, [self.edges(block, edge_type, batch)])
        if self.within_type:
            degree = batch[edge_type].dst_degree[: x_dst.size(0)].float() + 1.0
            neighbours = neighbours + x_dst / degree.unsqueeze(1).to(x_dst.dtype)
        return self.lin(neighbours) + self.bias

    def edges(self, block: Block, edge_type: EdgeType, batch: HeteroData) -> Edges:
        src, dst = block.edge_index[edge_type]
        pointer = block.pointer(edge_type)
        loop = 1.0 if self.within_type else 0.0
        src_degree = batch[edge_type].dst_degree if self.within_type else batch[edge_type].src_degree
        dst_degree = batch[edge_type].dst_degree[: pointer.numel() - 1].float()
        drawn = (pointer[1:] - pointer[:-1]).clamp(min=1)
        at_src = (src_degree.float() + loop).clamp(min=1.0).rsqrt()
        at_dst = dst_degree / drawn * (dst_degree + loop).clamp(min=1.0).rsqrt()
        return Edges(src, dst, pointer, weight=at_src[src] * at_dst[dst])
