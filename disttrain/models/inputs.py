"""Feature alignment: whatever a node type has becomes one float tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import Literal

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


MOST_PLAIN_CODES = 1000
"""Whole numbers of fewer values than this are taken for categories by `categorical: auto`."""


def is_categorical(choice: Literal["auto"] | bool, attribute: Attribute) -> bool:
    """Whether an attribute of a collection is to be read as codes, by `model.inputs.categorical`."""
    whole = attribute.dtype.startswith(("int", "uint"))
    if choice != "auto":
        return choice and whole
    return whole and (attribute.low or 0) >= 0 and (attribute.high or 0) < MOST_PLAIN_CODES


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
        x_name: str = "x",
        x_is_codes: bool = False,
    ) -> None:
        """Args:
        hidden: the width of what comes out, with `project`.
        x_name: what the batch calls `x`.
        x_is_codes: it holds whole numbers that are categories, as `x_cat` does.
        codes: how many codes each column of `x_cat` has; None: as many as the highest of all columns says.
        embedding_width: of a type without features, not to be projected; None: as the settings say.

        Raises:
            ExperimentError: `x_cat` holds no codes.
        """
        super().__init__()
        width = 0
        self.x_name = x_name
        codes_of = {"x_cat": x_cat} | ({x_name: x} if x_is_codes else {})
        self.has_x = x is not None and prod(x.shape) > 0 and not x_is_codes
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
        self.coded: list[str] = []
        for name, attribute in codes_of.items():
            if attribute is None or prod(attribute.shape) == 0:
                continue
            self.coded.append(name)
            highest, columns = num_codes(name, attribute, num_nodes), prod(attribute.shape)
            if name != "x_cat" or codes is None or len(codes) != columns or max(codes) < highest:
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
            x = _by_columns(nodes[self.x_name])
            x = x.double() if self.wide else x.float()
            mean, std = self.mean.to(x.dtype), self.std.to(x.dtype)
            if self.fill:
                x = torch.where(x.isnan(), mean, x)
            if self.standardize:
                x = (x - mean) / std
            parts.append(x.float())
        if len(self.categories):
            columns = [column for name in self.coded for column in _by_columns(nodes[name]).long().unbind(1)]
            parts.extend(embed(column) for embed, column in zip(self.categories, columns, strict=True))
        if self.embedding is not None:
            parts.append(self.embedding(nodes.n_id))
        x = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        if self.dropout > 0:
            x = functional.dropout(x, self.dropout, self.training)
        if self.linear is not None:
            x = self.linear(x)
        return x if self.norm is None else self.norm(x)


def _by_columns(values: Tensor) -> Tensor:
    """[N, C]"""
    return values.flatten(1) if values.dim() > 1 else values.unsqueeze(1)


def num_codes(name: str, attribute: Attribute, num_rows: int) -> int:
    """How many rows an embedding of these codes needs.

    Raises:
        ExperimentError: they are no codes.
    """
    if attribute.dtype == "bool":
        return 2
    low, high = attribute.low or 0, int(attribute.high or 0)
    if not attribute.dtype.startswith(("int", "uint")) or low < 0:
        came = f"the smallest is {low:g}" if low < 0 else f"they are {attribute.dtype}"
        raise ExperimentError(f"{name} holds codes, whole numbers from 0 on, of an integer type; {came}")
    if high >= max(num_rows, MOST_SPARE_CODES):
        raise ExperimentError(
            f"{name} has the code {high}, more than there are rows ({num_rows:,}); number the categories from 0 on"
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
        of_collection: bool = False,
    ) -> None:
        """Args:
        of_collection: of many graphs, whose `x` may be categories by `categorical: auto`.
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
                choice = settings.categorical
                coded = x is not None and (of_collection or choice is True) and is_categorical(choice, x)
                sizes = schema.info.get("categories", {}).get(node_type)
                module = NodeInput(
                    settings, hidden, nodes.count, x, x_cat, known,
                    codes=list(sizes.values()) if sizes else None,
                    embedding_width=(embedding_widths or {}).get(node_type),
                    x_is_codes=coded,
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
