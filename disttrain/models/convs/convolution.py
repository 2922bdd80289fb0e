"""What a convolution of one relation is: sources -> destinations."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn
from torch_geometric.data import HeteroData

from ...config import EdgeType
from ..blocks import Block
from ..neighbours import Edges


@dataclass
class RelationBlock:
    """One relation's part of a block."""

    block: Block
    edge_type: EdgeType
    batch: HeteroData

    @property
    def edge_index(self) -> Tensor:
        """[2, E] int64, destinations (row 1) ascending."""
        return self.block.edge_index[self.edge_type]

    @property
    def pointer(self) -> Tensor:
        """[N_dst + 1] int64: where each destination's edges begin and end."""
        return self.block.pointer(self.edge_type)

    @property
    def num_edges(self) -> int:
        return self.block.num_edges(self.edge_type)

    def attribute(self, name: str) -> Tensor:
        """An edge attribute, float32 [E, width]; missing values are 0."""
        values = self.block.edge_attribute(self.batch, self.edge_type, name).float().nan_to_num()
        return values.flatten(1) if values.dim() > 1 else values.unsqueeze(1)

    def edges(self, weight: str | None = None) -> Edges:
        """The edges for a sum, each weighted by an attribute if one is named."""
        src, dst = self.edge_index
        return Edges(src, dst, self.pointer, weight=None if weight is None else self.attribute(weight).squeeze(1))


class Convolution(nn.Module):
    """The parameters and the mathematics are those of PyG's layers; no edge at all is a case like any other."""

    linear = False
    """Whether its neighbour part is a sum with constant weights: then `edges` says which, and the layer computes it
    together with those of other relations (see `neighbours.py`)."""
    includes_own = False
    """Whether the node's own vector is in what comes out."""
    attribute: str | None = None
    """The edge attribute that it reads."""
    wants_degrees = False

    def edges(self, relation: RelationBlock) -> Edges:
        """Which sum `linear` is."""
        return relation.edges()

    def forward(
        self, x_src: Tensor, x_dst: Tensor, relation: RelationBlock, neighbours: Tensor | None = None
    ) -> Tensor:
        """Args:
        x_src: [N_src, width].
        x_dst: [N_dst, width of its type].
        neighbours: of a linear one, the sum that `edges` says where it is known already, [N_dst, width].

        Returns:
            [N_dst, hidden].
        """
        raise NotImplementedError
