"""The models of collections of graphs: a convolution in each layer, then one vector for each graph."""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

from pydantic import Field, PositiveInt, model_validator

from .layered import Pooled, heads_divide_hidden
from .section import Fraction, Names

GraphConv = Literal["gin", "gine", "gcn", "sage", "gat", "pna"]

_Aggregator = Literal["mean", "sum", "max", "min", "std", "var"]
_Scaler = Literal["identity", "amplification", "attenuation", "linear", "inverse_linear"]


class GraphConvOptions(NamedTuple):
    """What the convolution of a layer is, all settled."""

    conv: Literal["auto", "none"] | GraphConv
    """`auto`: gine where the graphs have `edge_attr`, gin elsewhere."""
    train_eps: bool = True
    aggr: str = "mean"
    heads: int = 4
    version: int = 1
    attention_dropout: float = 0.0
    aggregators: tuple[str, ...] = ("mean", "min", "max", "std")
    scalers: tuple[str, ...] = ("identity", "amplification", "attenuation")
    towers: int = 1
    edge_attr: Literal["auto"] | bool = "auto"
    edge_weight: str | None = None


class OfGraphs(Pooled):
    """What the models of homogeneous collections have."""

    layers: PositiveInt = 4
    norm: Literal["none", "layer", "batch"] = "batch"
    jumping_knowledge: Literal["none", "cat", "max", "lstm"] = "cat"
    """Which layers' vectors are pooled; `cat`, side by side, is that of GIN's paper."""
    encodings: Literal["auto"] | Names = "auto"
    """Attributes of the nodes that say where in the graph they are: each is standardised, and added to the inputs by a
    Linear. `auto`: `random_walk_pe` and `laplacian_eigenvector_pe` where the graphs have them, as PyG's
    `AddRandomWalkPE` and `AddLaplacianEigenvectorPE` (`data.pre_transforms`) name them; []: none."""

    @property
    def convolution(self) -> GraphConvOptions:
        raise NotImplementedError


class GinModel(OfGraphs):
    """Graph isomorphism network (arXiv:1810.00826): PyG's `GINConv`, a two-layer MLP in each. `norm` stands in the MLPs
    and after each layer. Edge attributes take no part."""

    kind: Literal["gin"]
    train_eps: bool = True
    """Learn how much a node counts beside its neighbours; false: as much as each of them."""

    @property
    def convolution(self) -> GraphConvOptions:
        return GraphConvOptions("gin", train_eps=self.train_eps)


class GineModel(OfGraphs):
    """GIN with edge attributes (arXiv:1905.12265): PyG's `GINEConv`. The graphs have to have `edge_attr`."""

    kind: Literal["gine"]
    train_eps: bool = True

    @property
    def convolution(self) -> GraphConvOptions:
        return GraphConvOptions("gine", train_eps=self.train_eps, edge_attr=True)


class GcnModel(OfGraphs):
    """Graph convolutional network (arXiv:1609.02907): PyG's `GCNConv`."""

    kind: Literal["gcn"]
    edge_weight: str | None = None
    """Edge attribute (one number, not negative) by which neighbours are weighed."""

    @property
    def convolution(self) -> GraphConvOptions:
        return GraphConvOptions("gcn", edge_weight=self.edge_weight)


class SageModel(OfGraphs):
    """GraphSAGE (arXiv:1706.02216): PyG's `SAGEConv`."""

    kind: Literal["sage"]
    aggr: Literal["mean", "sum", "max", "min"] = "mean"

    @property
    def convolution(self) -> GraphConvOptions:
        return GraphConvOptions("sage", aggr=self.aggr)


class GatModel(OfGraphs):
    """Graph attention network: PyG's `GATConv` (arXiv:1710.10903) or `GATv2Conv` (arXiv:2105.14491)."""

    kind: Literal["gat"]
    heads: PositiveInt = 4
    """Attention heads, side by side: they have to divide `hidden`."""
    version: Literal[1, 2] = 1
    attention_dropout: Fraction = 0.0
    edge_attr: Literal["auto"] | bool = "auto"
    """Whether `edge_attr` takes part in the attention; `auto`: where the graphs have it."""

    @property
    def convolution(self) -> GraphConvOptions:
        return GraphConvOptions(
            "gat", heads=self.heads, version=self.version, attention_dropout=self.attention_dropout,
            edge_attr=self.edge_attr,
        )  # fmt: skip

    @model_validator(mode="after")
    def _heads_divide_hidden(self) -> GatModel:
        return heads_divide_hidden(self)


class PnaModel(OfGraphs):
    """Principal neighbourhood aggregation (arXiv:2004.05718): PyG's `PNAConv`. The degrees that its scalers go by are
    those of the nodes of the training graphs; they are counted when the model is made, and kept with its weights."""

    kind: Literal["pna"]
    aggregators: Annotated[tuple[_Aggregator, ...], Field(min_length=1)] = ("mean", "min", "max", "std")
    scalers: Annotated[tuple[_Scaler, ...], Field(min_length=1)] = ("identity", "amplification", "attenuation")
    towers: PositiveInt = 1
    """They have to divide `hidden`."""
    edge_attr: Literal["auto"] | bool = "auto"
    """Whether `edge_attr` takes part in the messages; `auto`: where the graphs have it."""

    @property
    def convolution(self) -> GraphConvOptions:
        return GraphConvOptions(
            "pna", aggregators=self.aggregators, scalers=self.scalers, towers=self.towers, edge_attr=self.edge_attr
        )

    @model_validator(mode="after")
    def _towers_divide_hidden(self) -> PnaModel:
        if self.hidden % self.towers:
            raise ValueError(f"towers ({self.towers}) must divide hidden ({self.hidden})")
        return self


class GpsModel(OfGraphs):
    """Graph transformer of the GPS recipe (arXiv:2205.12454): PyG's `GPSConv`, a convolution and an attention over all
    nodes of a graph in each layer, with ways around both and an MLP after them. Where in the graph a node is, it learns
    from `encodings`."""

    kind: Literal["gps"]
    conv: Literal["auto", "gin", "gine", "gcn", "sage", "gat", "pna", "none"] = "auto"
    """The convolution; as the kind of this name has it by default. `auto`: gine where the graphs have `edge_attr`, gin
    elsewhere. none: attention only."""
    attention: Literal["multihead", "performer"] = "multihead"
    """`multihead`: exact, with the square of the largest graph of a mini-batch in time and memory; `performer`
    (arXiv:2009.14794): approximate, linear."""
    heads: PositiveInt = 4
    """Of the attention, and of `conv: gat`: they have to divide `hidden`."""
    attention_dropout: Fraction = 0.0
    activation: Literal["relu", "elu", "leaky_relu", "gelu"] = "relu"
    """Of the MLP in each layer."""
    jumping_knowledge: Literal["none", "cat", "max", "lstm"] = "none"
    edge_attr: Literal["auto"] | bool = "auto"
    """Whether `edge_attr` takes part in `conv` gine, gat and pna; `auto`: where the graphs have it."""
    edge_weight: str | None = None
    """Of `conv: gcn`: edge attribute (one number, not negative) by which neighbours are weighed."""

    @property
    def convolution(self) -> GraphConvOptions:
        edge_attr = True if self.conv == "gine" else self.edge_attr
        return GraphConvOptions(self.conv, heads=self.heads, edge_attr=edge_attr, edge_weight=self.edge_weight)

    @model_validator(mode="after")
    def _options_fit(self) -> GpsModel:
        if self.conv == "gine" and self.edge_attr is False:
            raise ValueError("conv gine needs edge_attr; choose gin, or leave edge_attr out")
        if self.edge_attr is True and self.conv in ("gin", "gcn", "sage", "none"):
            raise ValueError(f"conv {self.conv} takes no edge_attr; auto, gine, gat and pna do")
        if self.edge_weight is not None and self.conv != "gcn":
            raise ValueError(f"conv {self.conv} takes no edge_weight; gcn does")
        return heads_divide_hidden(self)
