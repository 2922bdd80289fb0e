"""Feature alignment: whatever a node type has becomes one float tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.data import HeteroData

from .. import config
from ..config import ExperimentError
from ..graph.schema import Attribute, Nodes, Schema
from .module_dict import ModuleDict

Statistics = Callable[[str, str], "tuple[np.ndarray, np.ndarray] | None"]
"""(node type, attribute) -> mean and standard deviation of each column over all nodes, or None where there are none."""


MOST_SPARE_CODES = 1 << 20
"""As high may a category's code be in spite of fewer nodes: an embedding has a row for each code up to the highest."""


def is_featureless(nodes: Nodes) -> bool:
    """Whether a node type has neither `x` nor `x_cat` of any width."""
    return not any(name in nodes.attributes and prod(nodes.attributes[name].shape) > 0 for name in ("x", "x_cat"))


_WIDE = ("float64", "int32", "int64", "uint32", "uint64")


class NodeInput(nn.Module):
    """One node type's input: `x` (any dtype, [N, ...]) and `x_cat` ([N, C] codes), or an embedding of the ids.

    Missing values (NaN) of `x` become their column's mean over all nodes (0 where the column has none), so they never
    spread. A type without `x` and `x_cat` has one learnable row per node; its gradient is dense, so each step costs
    O(nodes of the type) for it.
    """

    def __init__(
        self,
        settings: config.Inputs,
        hidden: int,
        num_nodes: int,
        x: Attribute | None,
        x_cat: Attribute | None,
        statistics: tuple[np.ndarray, np.ndarray] | None,
        codes: Sequence[int] | None = None,
        embedding_width: int | None = None,
    ) -> None:
        """Args:
        hidden: the width of what comes out, with `project`.
        codes: how many codes each column of `x_cat` has; None: as many as the highest of all columns says.
        embedding_width: of a type without features, not to be projected; None: as the settings say.

        Raises:
            ExperimentError: `x_cat` holds no codes.
        """
        super().__init__()
        width = 0
        self.has_x = x is not None and prod(x.shape) > 0
        self.fill = self.standardize = self.wide = False
        if self.has_x:
            assert x is not None
            width += prod(x.shape)
            self.fill = x.missing > 0
            self.standardize = settings.standardize
            # Times of this century differ in digits that float32 does not have.
            self.wide = self.standardize and x.dtype in _WIDE
            mean, std = statistics if statistics is not None else (np.zeros(width), np.ones(width))
            mean = torch.as_tensor(np.array(mean, dtype=np.float64)).reshape(-1)
            std = torch.as_tensor(np.array(std, dtype=np.float64)).reshape(-1)
            # Constant columns say nothing: they become 0 and not 0/0.
            std = torch.where(torch.isfinite(std) & (std > 0), std, torch.ones_like(std))
            # In the state dict: other data that the model is to predict is scaled as that which it was trained on.
            self.register_buffer("mean", mean.nan_to_num(0.0))
            self.register_buffer("std", std)
        self.categories = nn.ModuleList()
        if x_cat is not None and prod(x_cat.shape) > 0:
            highest = _num_codes(x_cat, num_nodes)
            columns = prod(x_cat.shape)
            if codes is None or len(codes) != columns or max(codes) < highest:
                codes = [highest] * columns
            for rows in codes:
                self.categories.append(nn.Embedding(rows, settings.categorical_dim))
                width += settings.categorical_dim
        self.embedding: nn.Embedding | None = None
        if width == 0:
            width = embedding_width or settings.embedding_dim or hidden
            self.embedding = nn.Embedding(max(num_nodes, 1), width)
        self.dropout = settings.dropout
        # An embedding that is as wide as it should be needs no projection: it is learnt as it is.
        as_it_is = self.embedding is not None and (embedding_width is not None or width == hidden)
        project = settings.project and not as_it_is
        self.linear = nn.Linear(width, hidden) if project else None
        self.out_channels = hidden if project else width
        self.norm = nn.LayerNorm(self.out_channels) if settings.layer_norm else None

    mean: Tensor
    std: Tensor

    def forward(self, nodes: HeteroData) -> Tensor:
        parts: list[Tensor] = []
        if self.has_x:
            x = nodes.x.flatten(1) if nodes.x.dim() > 1 else nodes.x.unsqueeze(1)
            x = x.double() if self.wide else x.float()
            mean, std = self.mean.to(x.dtype), self.std.to(x.dtype)
            if self.fill:
                x = torch.where(x.isnan(), mean, x)
            if self.standardize:
                x = (x - mean) / std
            parts.append(x.float())
        if len(self.categories):
            codes = nodes.x_cat.flatten(1) if nodes.x_cat.dim() > 1 else nodes.x_cat.unsqueeze(1)
            parts.extend(embed(codes[:, column].long()) for column, embed in enumerate(self.categories))
        if self.embedding is not None:
            parts.append(self.embedding(nodes.n_id))
        x = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        if self.dropout > 0:
            x = functional.dropout(x, self.dropout, self.training)
        if self.linear is not None:
            x = self.linear(x)
        return x if self.norm is None else self.norm(x)


def _num_codes(x_cat: Attribute, num_nodes: int) -> int:
    """How many rows an embedding of these codes needs."""
    if x_cat.dtype == "bool":
        return 2
    low, high = x_cat.low or 0, int(x_cat.high or 0)
    if not x_cat.dtype.startswith(("int", "uint")) or low < 0:
        came = f"the smallest is {low:g}" if low < 0 else f"they are {x_cat.dtype}"
        raise ExperimentError(f"x_cat holds codes, whole numbers from 0 on, of an integer type; {came}")
    if high >= max(num_nodes, MOST_SPARE_CODES):
        raise ExperimentError(
            f"x_cat has the code {high}, more than there are nodes ({num_nodes:,}); number the categories from 0 on"
        )
    return high + 1


class Inputs(nn.Module):
    """A `NodeInput` for each node type that can matter: batch -> {node type: [N, width of the type]}."""

    def __init__(
        self,
        settings: config.Inputs,
        schema: Schema,
        node_types: Iterable[str],
        hidden: int,
        statistics: Statistics,
        embedding_widths: Mapping[str, int] | None = None,
    ) -> None:
        """Args:
        node_types: those that can matter.
        hidden: width of each type's vectors, with `project`.
        embedding_widths: of types without features, whose embeddings are then not projected.

        Raises:
            ExperimentError: a type's `x_cat` holds no codes.
        """
        super().__init__()
        self.types = ModuleDict()
        self.out_channels: dict[str, int] = {}
        self.wants: dict[str, tuple[str, ...]] = {}
        for node_type in node_types:
            nodes = schema.nodes[node_type]
            x, x_cat = nodes.attributes.get("x"), nodes.attributes.get("x_cat")
            known = statistics(node_type, "x") if x is not None else None
            try:
                sizes = schema.info.get("categories", {}).get(node_type)
                module = NodeInput(
                    settings, hidden, nodes.count, x, x_cat, known,
                    codes=list(sizes.values()) if sizes else None,
                    embedding_width=(embedding_widths or {}).get(node_type),
                )  # fmt: skip
            except ExperimentError as error:
                raise ExperimentError(f'node type "{node_type}": {error}') from None
            self.types[node_type] = module
            self.out_channels[node_type] = module.out_channels
            self.wants[node_type] = tuple(name for name in ("x", "x_cat") if name in nodes.attributes)

    def forward(self, batch: HeteroData) -> dict[str, Tensor]:
        return {node_type: self.types[node_type](batch[node_type]) for node_type in self.out_channels}


def same_width(out_channels: dict[str, int], kind: str) -> int | None:
    """The width of all types' vectors; None where there are no types.

    Raises:
        ExperimentError: they differ; says which.
    """
    if len(set(out_channels.values())) > 1:
        came = ", ".join(f"{t} {width}" for t, width in out_channels.items())
        raise ExperimentError(
            f"model.inputs.project is false, but {kind} has the same matrices for all node types, and their vectors "
            f"have different widths ({came}); set model.inputs.project to true"
        )
    return next(iter(out_channels.values()), None)
