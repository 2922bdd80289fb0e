"""The models, and what each of their relations does."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt

from .section import DottedPath, Fraction, Relation, Section

Conv = Literal["sage", "gat", "gcn"]
Aggr = Literal["mean", "max", "min", "sum", "softmax", "std", "var", "median", "powermean"]


class RelationOptions(Section):
    """What one relation does differently; null: as the model says."""

    conv: Conv | None = None
    aggr: Aggr | None = None
    heads: PositiveInt | None = None


class Inputs(Section):
    """Feature alignment: each node type's attributes become one tensor of width `hidden` (or stay as they are)."""

    project: bool = True
    """A Linear per type to `hidden`. false: features go to the first convolution as wide as they are."""
    standardize: bool = False
    """Subtract the mean and divide by the standard deviation of each column of `x` (computed over all nodes)."""
    layer_norm: bool = False
    dropout: Fraction = 0.0
    embedding_dim: PositiveInt | None = None
    """Width of the learnable embedding of types without features; null: `hidden`."""
    categorical_dim: PositiveInt = 16
    """Width of the embedding of each categorical column (`x_cat`)."""


class HeteroConvModel(Section):
    kind: Literal["hetero_conv"]
    hidden: PositiveInt = 64
    layers: PositiveInt = 2
    conv: Conv = "sage"
    aggr: Aggr = "mean"
    heads: PositiveInt = 1
    """Attention heads of `gat`; their outputs are averaged, so that the width stays `hidden`."""
    relation_aggr: Literal["sum", "mean", "max", "attention"] = "sum"
    relations: dict[Relation, RelationOptions] = {}
    residual: bool = False
    norm: Literal["none", "layer", "batch"] = "none"
    activation: Literal["relu", "elu", "leaky_relu", "gelu"] = "relu"
    dropout: Fraction = 0.0
    inputs: Inputs = Inputs()
    l2_normalize: bool = False
    """Normalise the output embedding before the head to unit length, as Simple-HGN does."""


class CustomModel(Section):
    """A module of the user's own; the contract is in `disttrain.models`."""

    kind: Literal["custom"]
    module: DottedPath
    args: dict[str, Any] = {}
    layers: PositiveInt = 2
    """Number of hops it consumes; must equal the length of `sampling.fanout`."""


Model = Annotated[HeteroConvModel | CustomModel, Field(discriminator="kind")]
