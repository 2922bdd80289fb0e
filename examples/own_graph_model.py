"""A model of your own for whole graphs: PyG's layers on what a mini-batch of graphs holds.

    model: {kind: custom, module: "examples.own_graph_model:Molecules", args: {width: 32}}

The contract is in `disttrain.models`.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch_geometric.data import HeteroData
from torch_geometric.nn import GraphConv, global_mean_pool

from disttrain.graph.schema import Schema, Wants


class Molecules(nn.Module):
    """Two layers of GraphConv, and the mean over a graph's nodes."""

    def __init__(self, schema: Schema, target: str, out_channels: int, width: int = 32) -> None:
        super().__init__()
        # The graphs themselves are nodes of the type `target`; their own nodes are of the type `node`, their edges
        # `node,edge,node`. Heterogeneous graphs keep their types' names.
        self.target = target
        (in_channels,) = schema.nodes["node"].attributes["x"].shape
        self.first, self.second = GraphConv(in_channels, width), GraphConv(width, width)
        self.head = nn.Linear(width, out_channels)
        self.wants = Wants(nodes={"node": ("x",)})  # only what is named here is cut out for a mini-batch

    def embed(self, batch: HeteroData) -> Tensor:
        nodes, edge_index = batch["node"], batch["node", "edge", "node"].edge_index
        x = self.first(nodes.x.float(), edge_index).relu()
        x = self.second(x, edge_index).relu()
        # Which graph a node is of; with the number of graphs, since the last ones may have no nodes.
        return global_mean_pool(x, nodes.batch, batch[self.target].batch_size)

    def forward(self, batch: HeteroData) -> Tensor:
        """[batch_size, out_channels]: a row for each graph."""
        return self.head(self.embed(batch))
