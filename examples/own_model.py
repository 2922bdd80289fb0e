"""A model of your own: GraphSAGE with one weight matrix per node type instead of one per relation.

Used by `examples/own.yaml`. The contract is in `disttrain.models`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch_geometric.data import HeteroData
from torch_geometric.nn import MeanAggregation

from disttrain.graph.schema import Schema, Wants
from disttrain.models.blocks import blocks


class TypeSage(nn.Module):
    """Mean over all neighbours of a node type, whatever the relation, through one Linear per node type and layer."""

    def __init__(self, schema: Schema, target: str, out_channels: int, width: int = 32, layers: int = 2) -> None:
        super().__init__()
        self.target = target
        self.mean = MeanAggregation()
        # Every type here has features; one without could get an nn.Embedding over batch[node_type].n_id.
        self.inputs = nn.ModuleDict(
            {name: nn.Linear(nodes.attributes["x"].shape[0], width) for name, nodes in schema.nodes.items()}
        )
        self.layers = nn.ModuleList(
            nn.ModuleDict({name: nn.Linear(2 * width, width) for name in schema.nodes}) for _ in range(layers)
        )
        self.head = nn.Linear(width, out_channels)
        # Only what is named here is fetched for a batch.
        self.wants = Wants(nodes=dict.fromkeys(schema.nodes, ("x",)))

    def embed(self, batch: HeteroData) -> Tensor:
        x = {name: linear(batch[name].x) for name, linear in self.inputs.items()}
        for layer, block in zip(self.layers, blocks(batch, layers=len(self.layers)), strict=True):
            assert isinstance(layer, nn.ModuleDict)
            # The block says how many nodes of each type the next layer needs, and which edges lead to them.
            own = {name: vectors[: block.num_dst[name]] for name, vectors in x.items()}
            neighbours = {name: torch.zeros_like(own[name]) for name in own}
            for edge_type, (src, dst) in block.edge_index.items():
                source, _, destination = edge_type
                mean = self.mean(x[source][src], dst, dim_size=block.num_dst[destination], dim=0)
                neighbours[destination] = neighbours[destination] + mean
            x = {name: layer[name](torch.cat([own[name], neighbours[name]], dim=1)).relu() for name in own}
        # All parameters take part, also those of types that cannot reach the seeds in so few layers.
        unused = sum(parameter.sum() * 0.0 for parameter in self.parameters())
        return x[self.target] + unused

    def forward(self, batch: HeteroData) -> Tensor:
        """[batch_size, out_channels], the logits of the seeds."""
        return self.head(self.embed(batch))
