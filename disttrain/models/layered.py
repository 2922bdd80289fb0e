"""What every built-in model is: inputs -> layers -> readout -> head. Each part can be called by itself.

A mini-batch goes through all of it at once (`forward`). Layer-wise inference calls the parts one after the other over
the whole graph: `inputs` and then each of `layers()` for chunks of nodes, whose blocks it makes itself; at the end
`readout` of the target's vectors after each layer, [N, width] each, and `head` of that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor, nn
from torch_geometric.data import HeteroData

from .. import config
from ..config import EdgeType
from ..graph.schema import Schema, Wants
from .blocks import Block, blocks, needed_types
from .readout import Readout


class Layer(Protocol):
    """One layer: vectors of source nodes in, vectors of destinations out."""

    node_types: tuple[str, ...]
    """The node types that it computes, of those that can matter by schema, target and layers."""

    def __call__(self, x: dict[str, Tensor], block: Block, batch: HeteroData) -> dict[str, Tensor]:
        """Compute the destinations.

        Args:
            x: node type -> [num_src, width]; a node's own vector is among them, since the first `num_dst` sources of a
                type are the destinations. At least the types that the layer reads.
            block: which edges, and how many nodes.
            batch: what `model.wants` names of the edges that the block is cut from: attributes, degrees.

        Returns:
            Node type -> [num_dst, width] for each of `node_types`. A row depends on nothing but its own edges and
            their sources, whatever else is in the block (but for batch normalisation while training).
        """
        ...


class LayeredModel(nn.Module):
    """The common form of the built-in models; what differs are the layers, and which inputs they are given."""

    def __init__(
        self,
        settings: config.Layered,
        target: str,
        out_channels: int,
        inputs: nn.Module,
        layers: Sequence[nn.Module],
        edges: Wants,
        head: nn.Module | None = None,
    ) -> None:
        """Args:
        target: the node type of the seeds.
        out_channels: width of the head's output.
        inputs: batch -> node type -> [num_nodes, width] for the types that can matter; `inputs.wants` names attributes.
        layers: the first computed one first; each is a `Layer`.
        edges: what the layers want of the edges.
        head: from the embedding to the output; None: a Linear.
        """
        super().__init__()
        self.target = target
        self.inputs = inputs
        self.convs = nn.ModuleList(layers)
        self.readout = Readout(settings)
        self.head = nn.Linear(self.readout.out_channels, out_channels) if head is None else head
        self.wants = Wants(nodes=inputs.wants) | edges  # pyright: ignore[reportArgumentType]

    def layers(self) -> list[Layer]:
        """The first computed one first."""
        return list(self.convs)  # pyright: ignore[reportReturnType]

    def embed(self, batch: HeteroData) -> Tensor:
        """The seeds' embedding: [batch_size, width]."""
        layers = self.layers()
        cut = blocks(batch, len(layers))
        num_seeds = cut[-1].num_dst[self.target]
        x, states = self.inputs(batch), []
        for layer, block in zip(layers, cut, strict=True):
            x = layer(x, block, batch)
            states.append(x[self.target][:num_seeds])
        return self.readout(states)

    def forward(self, batch: HeteroData) -> Tensor:
        """[batch_size, out_channels], the seeds' logits."""
        return self.head(self.embed(batch))


def layer_types(schema: Schema, target: str, layers: int) -> list[list[str]]:
    """`needed_types`, each in the schema's order: which types the inputs, and then each layer, have to give."""
    return [[t for t in schema.nodes if t in types] for types in needed_types(schema.edges, target, layers)]


def relations_into(schema: Schema, node_types: Sequence[str]) -> list[EdgeType]:
    """The relations that lead to any of these types, in the schema's order."""
    return [e for e in schema.edges if e[2] in node_types]
