"""The convolutions of the models of collections: PyG's layers by name, and what they take of the edges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch_geometric.nn import MLP, GATConv, GATv2Conv, GCNConv, GINConv, GINEConv, PNAConv, SAGEConv

from ..config import ExperimentError, GraphConvOptions
from .aggregate import nothing

TAKE_EDGE_ATTR = ("gine", "gat", "pna")
"""Those that edge attributes take part in."""

_NORM: dict[str, tuple[str | None, dict[str, Any] | None]] = {
    "none": (None, None),
    "layer": ("layer_norm", {"mode": "node"}),
    # Fewer than two rows have no variance: then the running statistics serve.
    "batch": ("batch_norm", {"allow_single_element": True}),
}


def norm_of(name: str) -> tuple[str | None, dict[str, Any] | None]:
    """What PyG's resolver calls a norm, and with what options."""
    return _NORM[name]


class Shape(NamedTuple):
    """What a convolution has to fit."""

    in_channels: int
    hidden: int
    norm: str
    """What follows it. Before a batch norm a bias only drifts: its gradient is 0 but for rounding, of which Adam makes
    whole steps; so there is none."""
    edge_channels: int | None
    """Width of the edge attribute that takes part; None: none does."""
    degrees: Callable[[], Tensor]
    """How many nodes of the training graphs have 0, 1, ... neighbours, int64."""

    @property
    def bias(self) -> bool:
        return self.norm != "batch"


def build_graph_conv(options: GraphConvOptions, shape: Shape) -> nn.Module:
    """A layer of PyG: `(x, edge_index)`, or `(x, edge_index, attribute or weight of each edge)`, to [N, hidden].

    Raises:
        ExperimentError: the training graphs do not have what it needs.
    """
    return _BUILD[options.conv](options, shape)


def convolve(conv: nn.Module, x: Tensor, edge_index: Tensor, edge: Tensor | None) -> Tensor:
    """What the convolution gives; every parameter takes part, without nodes and edges too.

    Args:
        edge: [E, ...], what it takes of the edges, if it takes something.
    """
    out = conv(x, edge_index) if edge is None else conv(x, edge_index, edge)
    if edge_index.size(1) == 0:
        out = out + nothing(conv, x, 1, 1)
        if edge is not None:
            out = out + edge.sum() * 0.0
    return out


def _mlp(shape: Shape) -> MLP:
    norm, options = norm_of(shape.norm)
    return MLP([shape.in_channels, shape.hidden, shape.hidden], norm=norm, norm_kwargs=options, bias=shape.bias)


def _gat(options: GraphConvOptions, shape: Shape) -> nn.Module:
    make = GATConv if options.version == 1 else GATv2Conv
    return make(
        shape.in_channels, shape.hidden // options.heads, heads=options.heads, dropout=options.attention_dropout,
        edge_dim=shape.edge_channels, bias=shape.bias,
    )  # fmt: skip


def _pna(options: GraphConvOptions, shape: Shape) -> nn.Module:
    degrees = shape.degrees()
    if not degrees[1:].sum():
        raise ExperimentError(
            "pna scales by the degrees of the training graphs, and they have no edges; choose another convolution"
        )
    conv = PNAConv(
        shape.in_channels, shape.hidden, list(options.aggregators), list(options.scalers), degrees,
        edge_dim=shape.edge_channels, towers=options.towers,
    )  # fmt: skip
    # What its scalers go by is a buffer of it, and so in every checkpoint.
    if not shape.bias:
        last: list[Any] = [conv.lin, *(layers[-1] for layers in conv.post_nns)]  # pyright: ignore[reportIndexIssue]
        for linear in last:
            linear.bias = None
    return conv


_BUILD: dict[str, Callable[[GraphConvOptions, Shape], nn.Module]] = {
    "gin": lambda options, shape: GINConv(_mlp(shape), train_eps=options.train_eps),
    "gine": lambda options, shape: GINEConv(_mlp(shape), train_eps=options.train_eps, edge_dim=shape.edge_channels),
    "gcn": lambda options, shape: GCNConv(shape.in_channels, shape.hidden, bias=shape.bias),
    "sage": lambda options, shape: SAGEConv(shape.in_channels, shape.hidden, aggr=options.aggr, bias=shape.bias),
    "gat": _gat,
    "pna": _pna,
}
