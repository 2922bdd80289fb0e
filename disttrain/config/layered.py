"""What models have in common: inputs, layers, and the readout of whole graphs."""

from __future__ import annotations

from typing import Literal, TypeVar

from pydantic import PositiveInt

from .aggregation import Pooling
from .section import Fraction, Section


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
    categorical: Literal["auto"] | bool = "auto"
    """Whether whole numbers in `x` are categories with an embedding for each column, as `x_cat` is; `auto`: in
    collections, where they are of an integer type and from 0 to 999 (as PyG's `from_smiles` writes atoms). Likewise
    `edge_attr` for the models of collections."""
    categorical_dim: PositiveInt = 16
    """Width of the embedding of each categorical column."""


class Layered(Section):
    """What all built-in models have."""

    kind: Literal[
        "hetero_conv", "rgcn", "rgat", "hgt", "gin", "gine", "gcn", "sage", "gat", "pna", "gps"
    ]  # fmt: skip
    hidden: PositiveInt = 64
    layers: PositiveInt = 2
    residual: bool = False
    """Add a node's vector before the layer to that after it (by a Linear where the widths differ)."""
    norm: Literal["none", "layer", "batch"] = "none"
    activation: Literal["relu", "elu", "leaky_relu", "gelu", "none"] = "relu"
    dropout: Fraction = 0.0
    """Of the vectors after each layer, in training."""
    jumping_knowledge: Literal["none", "cat", "max", "lstm"] = "none"
    """What the embedding is made of: the last layer's vector, or those after all layers (arXiv:1806.03536)."""
    l2_normalize: bool = False
    """Normalise the output embedding before the head to unit length, as Simple-HGN does."""
    inputs: Inputs = Inputs()


class Pooled(Layered):
    """What models of collections have: one vector for each graph, and an MLP from that to the output."""

    pooling: Pooling = "sum"
    """How the vectors of a graph's nodes become the graph's: any of the aggregations of `hetero_conv`, or several in a
    list, side by side. `attention` is short for `attentional`, and `set2set` has 3 processing steps unless told
    otherwise."""
    head_layers: PositiveInt = 2
    """Of the MLP from a graph's vector to the output."""
    head_norm: Literal["none", "layer", "batch"] = "none"
    """In that MLP, before each activation. What is summed over large graphs is large and hard to learn from without."""
    head_dropout: Fraction = 0.0


_Headed = TypeVar("_Headed", bound=Layered)


def heads_divide_hidden(model: _Headed) -> _Headed:
    heads: int = getattr(model, "heads")  # noqa: B009
    if model.hidden % heads:
        raise ValueError(f"heads ({heads}) must divide hidden ({model.hidden})")
    return model
