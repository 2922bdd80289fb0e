"""What every built-in model is: inputs -> layers -> readout -> head. Each part can be called by itself.

A mini-batch goes through all of it at once (`forward`). Layer-wise inference calls the parts one after the other over
the whole graph: with `inputs` and then each of `layers()` for chunks of nodes, whose blocks it makes itself.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol

from torch import Tensor, nn
from torch_geometric.data import HeteroData

from ..graph.schema import Wants
from .blocks import Block, blocks


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
    """The common form of the built-in models: a subclass sets what is declared here, and has `layers`.

    `inputs(batch)` is node type -> [num_nodes, width] for the types that can matter; `head(embedding)` the logits.
    """

    inputs: nn.Module
    head: nn.Module
    target: str
    """The node type of the seeds."""
    wants: Wants
    """What a mini-batch has to carry."""

    @abstractmethod
    def layers(self) -> Sequence[Layer]:
        """The first computed one first."""

    def readout(self, states: Sequence[Tensor]) -> Tensor:
        """The embedding of nodes of the target's type, from their vectors after each layer: [N, width] each."""
        return states[-1]

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
