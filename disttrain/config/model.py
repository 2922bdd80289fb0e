"""The models, and what each of their relations does."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, PositiveInt, model_validator

from .aggregation import PLAIN, Aggr
from .graph_models import GatModel, GcnModel, GineModel, GinModel, GpsModel, PnaModel, SageModel
from .layered import Layered, Pooled, heads_divide_hidden
from .section import DottedPath, Fraction, Relation, Section

Conv = Literal["sage", "gat", "gatv2", "gcn", "gin", "graph"]

TAKE_EDGE_ATTR = ("gat", "gatv2", "gin")
"""Convolutions that edge attributes take part in."""
TAKE_EDGE_WEIGHT = ("graph", "gcn")
"""Convolutions that multiply a neighbour's vector by its edge's weight."""


class RelationOptions(Section):
    """What one relation does differently; null: as the model says."""

    conv: Conv | None = None
    aggr: Aggr | None = None
    aggr_mode: Literal["cat", "proj"] | None = None
    heads: PositiveInt | None = None
    edge_attr: Literal["auto"] | bool | None = None
    edge_weight: str | None = None


class Options(NamedTuple):
    """What one relation does, all settled."""

    conv: Conv
    aggr: Aggr | None
    aggr_mode: str
    heads: int
    edge_attr: str | bool
    edge_weight: str | None


class HeteroConvModel(Pooled):
    """A convolution per relation, whose messages are combined at each node. Of a collection of graphs the nodes of each
    type are then pooled, and a graph's vector is those of its types side by side."""

    kind: Literal["hetero_conv"]
    conv: Conv = "sage"
    aggr: Aggr | None = None
    """Of `sage` and `graph`: one of PyG's aggregations, `{kind: ..., args: {...}}` for one with arguments, or a list of
    several. Null: mean for `sage`, sum for `graph`. Other convolutions sum, but for what a relation of `gat` says."""
    aggr_mode: Literal["cat", "proj"] = "cat"
    """Several aggregations side by side; `proj`: and then a Linear to the width of one."""
    heads: PositiveInt = 1
    """Attention heads of `gat` and `gatv2`; their outputs are averaged, so that the width stays `hidden`."""
    edge_attr: Literal["auto"] | bool = "auto"
    """Whether `edge_attr` takes part in `gat`, `gatv2` and `gin`; `auto`: in each relation that has it."""
    edge_weight: str | None = None
    """Edge attribute (one number) by which `graph` and `gcn` multiply a neighbour's vector, where a relation has it."""
    relation_aggr: Literal["sum", "mean", "max", "attention", "cat"] = "sum"
    """How a node's messages of several relations become one; `cat`: side by side, then a Linear."""
    relations: dict[Relation, RelationOptions] = {}

    def options(self, relation: str) -> Options:
        """What a relation does: its own options, and the model's where it has none."""
        own = self.relations.get(relation, RelationOptions())
        conv = own.conv or self.conv
        # The model's aggregation is not that of attention, whose weights add up to one.
        aggr = own.aggr if own.aggr is not None or conv not in ("sage", "graph") else self.aggr
        return Options(
            conv,
            aggr,
            own.aggr_mode or self.aggr_mode,
            own.heads or self.heads,
            self.edge_attr if own.edge_attr is None else own.edge_attr,
            own.edge_weight or self.edge_weight,
        )

    @model_validator(mode="after")
    def _options_fit(self) -> HeteroConvModel:
        found = _misfits("", self.conv, None, self.edge_attr, None)
        for relation, own in self.relations.items():
            options = self.options(relation)
            where = f'relations["{relation}"]: '
            found += _misfits(where, options.conv, options.aggr, own.edge_attr, own.edge_weight)
        if found:
            raise ValueError("; ".join(found))
        return self


def _misfits(
    where: str, conv: str, aggr: Aggr | None, edge_attr: str | bool | None, edge_weight: str | None
) -> list[str]:
    found = []
    if conv in ("gcn", "gin") and aggr not in (None, "sum"):
        what = "is a normalised sum" if conv == "gcn" else "sums its neighbours"
        found.append(f"{where}conv {conv} {what}, it has no other aggr; leave aggr out, or choose conv sage or graph")
    if conv in ("gat", "gatv2") and aggr is not None and aggr not in PLAIN:
        found.append(
            f"{where}conv {conv} weighs its messages by attention; of aggr it takes one of {', '.join(PLAIN)}, without "
            "arguments"
        )
    if edge_attr is True and conv not in TAKE_EDGE_ATTR:
        found.append(f"{where}conv {conv} takes no edge_attr; {', '.join(TAKE_EDGE_ATTR)} do")
    if edge_weight is not None and conv not in TAKE_EDGE_WEIGHT:
        found.append(f"{where}conv {conv} takes no edge_weight; {', '.join(TAKE_EDGE_WEIGHT)} do")
    return found


class RelationWeights(Layered):
    """A matrix per relation, or fewer parameters than that."""

    bases: PositiveInt | None = None
    """Each relation's matrix is a weighted sum of as many shared ones; null: a matrix per relation."""
    blocks: PositiveInt | None = None
    """Each relation's matrix is block-diagonal, of as many blocks; they have to divide `hidden`."""
    self_loop: bool = True
    """A matrix of its own for the node itself, shared by all types."""

    @model_validator(mode="after")
    def _one_decomposition(self) -> RelationWeights:
        if self.bases is not None and self.blocks is not None:
            raise ValueError("bases and blocks are two ways to have fewer parameters; give one of them")
        if self.blocks is not None and self.hidden % self.blocks:
            raise ValueError(f"blocks ({self.blocks}) must divide hidden ({self.hidden})")
        return self


class RgcnModel(RelationWeights):
    """R-GCN (arXiv:1703.06103): the mean of the neighbours of each relation by the relation's matrix, and their sum.

    Node types without features are one-hot in the first layer, as in the paper: each node has a row in each relation's
    matrix (in each of the `bases`). With `blocks`, `residual`, `inputs.embedding_dim` or `inputs.layer_norm` it has a
    learnable vector instead.
    """

    kind: Literal["rgcn"]
    head: bool = True
    """A Linear from the last layer's vector to the output. false: the last layer gives the output itself, without norm,
    activation and dropout, as in the paper."""

    @model_validator(mode="after")
    def _what_comes_before_the_head(self) -> RgcnModel:
        if not self.head:
            given = {
                "blocks": self.blocks is not None,
                "residual": self.residual,
                "jumping_knowledge": self.jumping_knowledge != "none",
                "l2_normalize": self.l2_normalize,
            }
            names = ", ".join(name for name, is_given in given.items() if is_given)
            if names:
                raise ValueError(
                    f"without a head the last layer gives the output itself, which has no {names}; leave that out, or "
                    "set head=true"
                )
        return self


class RgatModel(RelationWeights):
    """Relational graph attention (arXiv:1904.05811): a matrix per relation, and attention over the neighbours."""

    kind: Literal["rgat"]
    heads: PositiveInt = 4
    """Attention heads, side by side: they have to divide `hidden`."""
    attention: Literal["across", "within"] = "across"
    """Softmax over a node's neighbours of all relations (ARGAT), or of each relation by itself (WIRGAT)."""
    score: Literal["additive", "multiplicative"] = "additive"
    attention_dropout: Fraction = 0.0
    edge_attr: Literal["auto"] | bool = "auto"
    """Whether `edge_attr` takes part in the attention; `auto`: in each relation that has it."""

    @model_validator(mode="after")
    def _heads_divide_hidden(self) -> RgatModel:
        return heads_divide_hidden(self)


class HgtModel(Layered):
    """Heterogeneous Graph Transformer (arXiv:2003.01332): keys, queries and values per node type, a matrix and a prior
    per relation, and a gate between a node's vector before the layer and after it."""

    kind: Literal["hgt"]
    heads: PositiveInt = 4
    """Attention heads: they have to divide `hidden`."""
    activation: Literal["relu", "elu", "leaky_relu", "gelu", "none"] = "none"
    """After each layer; within it there is a GELU."""

    @model_validator(mode="after")
    def _heads_divide_hidden(self) -> HgtModel:
        return heads_divide_hidden(self)


class CustomModel(Section):
    """A module of the user's own; the contract is in `disttrain.models`."""

    kind: Literal["custom"]
    module: DottedPath
    args: dict[str, Any] = {}
    layers: PositiveInt = 2
    """Number of hops it consumes; must equal the length of `sampling.fanout`."""


Model = Annotated[
    HeteroConvModel
    | RgcnModel
    | RgatModel
    | HgtModel
    | GinModel
    | GineModel
    | GcnModel
    | SageModel
    | GatModel
    | PnaModel
    | GpsModel
    | CustomModel,
    Field(discriminator="kind"),
]
