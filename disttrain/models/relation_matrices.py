"""A matrix per relation, as R-GCN has it: each by itself, made of shared bases, or block-diagonal."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch_geometric.nn.inits import glorot

from ..config import ExperimentError
from .grouped import grouped_matmul


class RelationMatrices(nn.Module):
    """[in_channels, out_channels] for each relation (https://arxiv.org/abs/1703.06103, equations 3 and 4).

    Parameters are laid out as in PyG's `RGCNConv`: `weight` [R, in, out]; with bases `weight` [bases, in, out] and
    `comp` [R, bases]; with blocks `weight` [R, blocks, in / blocks, out / blocks].
    """

    def __init__(
        self, num_relations: int, in_channels: int, out_channels: int, bases: int | None, blocks: int | None
    ) -> None:
        super().__init__()
        self.blocks = blocks
        self.comp: nn.Parameter | None = None
        if blocks is not None:
            if in_channels % blocks or out_channels % blocks:
                raise ExperimentError(
                    f"model.blocks is {blocks}, which has to divide the widths {in_channels} and {out_channels}"
                )
            shape = (num_relations, blocks, in_channels // blocks, out_channels // blocks)
        elif bases is not None:
            shape = (bases, in_channels, out_channels)
            self.comp = nn.Parameter(torch.empty(num_relations, bases))
            glorot(self.comp)
        else:
            shape = (num_relations, in_channels, out_channels)
        self.weight = nn.Parameter(torch.empty(shape))
        glorot(self.weight)

    def forward(self, x: Tensor, sizes: Sequence[int]) -> Tensor:
        """x: [N, in], the rows of the first relation, then of the second, ...; sizes: how many. Returns [N, out]."""
        if self.blocks is not None:
            return grouped_matmul(x.unflatten(1, (self.blocks, -1)), sizes, self.weight).flatten(1)
        weight = self.weight
        if self.comp is not None:
            weight = torch.einsum("rb,bio->rio", self.comp, weight)
        return grouped_matmul(x, sizes, weight)
