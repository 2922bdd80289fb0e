"""What a convolution of whole graphs takes of the edges: numbers, or the embeddings of categories."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor, nn

from .. import config
from ..config import ExperimentError
from ..graph.schema import Edges
from .inputs import is_categorical, num_codes


class EdgeInput(nn.Module):
    """`edge_attr` (any dtype, [E, ...]) -> float32 [E, out_channels]. Missing values are 0; whole numbers that are
    categories by `model.inputs.categorical` have an embedding for each column, side by side."""

    def __init__(self, settings: config.Inputs, edges: Edges) -> None:
        """edges: those of all graphs.

        Raises:
            ExperimentError: they are to be categories and cannot be.
        """
        super().__init__()
        attribute = edges.attributes["edge_attr"]
        columns = prod(attribute.shape)
        self.categories: nn.ModuleList | None = None
        self.out_channels = columns
        if is_categorical(settings.categorical, attribute):
            rows = num_codes("edge_attr", attribute, edges.count)
            self.categories = nn.ModuleList(nn.Embedding(rows, settings.categorical_dim) for _ in range(columns))
            self.out_channels = columns * settings.categorical_dim

    def forward(self, edge_attr: Tensor) -> Tensor:
        values = edge_attr.flatten(1) if edge_attr.dim() > 1 else edge_attr.unsqueeze(1)
        if self.categories is None:
            return values.float().nan_to_num()
        codes = values.long().unbind(1)
        return torch.cat([embed(column) for embed, column in zip(self.categories, codes, strict=True)], dim=1)


def edge_weight(name: str, edges: Edges) -> str:
    """The name of the attribute by which neighbours are weighed.

    Raises:
        ExperimentError: it does not exist, is not one number, or is negative.
    """
    attribute = edges.attributes.get(name)
    if attribute is None:
        raise ExperimentError(
            f'model.edge_weight is "{name}", and the edges have no such attribute; they have '
            f"{', '.join(edges.attributes) or 'none'}"
        )
    if prod(attribute.shape) != 1:
        raise ExperimentError(
            f'model.edge_weight: "{name}" has shape {list(attribute.shape)} for each edge; expected one number'
        )
    if (attribute.low or 0.0) < 0.0:
        raise ExperimentError(
            f'model.edge_weight: the smallest "{name}" is {attribute.low:g}; gcn divides by the root of their sums, so '
            "they must not be negative"
        )
    return name
