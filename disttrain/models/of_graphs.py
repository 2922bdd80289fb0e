"""The models of homogeneous collections: inputs -> layers of one convolution each -> pooling -> MLP."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import HeteroData
from torch_geometric.nn import MLP

from .. import config
from ..config import EdgeType, ExperimentError, GraphConvOptions, edge_type_name
from ..graph.schema import Attribute, Nodes, Schema, Wants
from .edge_input import EdgeInput, edge_weight
from .gps_layer import GpsLayer
from .graph_convs import TAKE_EDGE_ATTR, Shape, build_graph_conv, convolve, norm_of
from .inputs import Inputs, NodeInput, Statistics, is_featureless
from .module_dict import ModuleDict
from .pooling import Pooling
from .readout import Readout
from .update import Update

Degrees = Callable[[EdgeType], np.ndarray]
"""Relation -> how many destination nodes of the training graphs have 0, 1, ... edges, int64."""

_ENCODINGS = ("random_walk_pe", "laplacian_eigenvector_pe")
"""What PyG's transforms call the encodings that they add."""


class ConvLayer(nn.Module):
    """A convolution, and what comes after it: norm, activation, dropout, the way around."""

    def __init__(self, settings: config.OfGraphs, conv: nn.Module, in_channels: int) -> None:
        super().__init__()
        self.conv, self.update = conv, Update(settings, in_channels)

    def forward(self, x: Tensor, edge_index: Tensor, edge: Tensor | None, batch: Tensor) -> Tensor:
        """x: [N, in_channels]; edge: what the convolution takes of the edges. Returns [N, hidden]."""
        return self.update(convolve(self.conv, x, edge_index, edge), x)


class OfGraphs(nn.Module):
    """The model of the kinds gin, gine, gcn, sage, gat, pna and gps."""

    def __init__(
        self,
        settings: config.OfGraphs,
        schema: Schema,
        target: str,
        out_channels: int,
        statistics: Statistics,
        degrees: Degrees,
    ) -> None:
        """Args:
        target: the node type that stands for the graphs.

        Raises:
            ExperimentError: the graphs have several types of nodes or edges, or lack what the model needs.
        """
        super().__init__()
        self.target, hidden = target, settings.hidden
        self.node_type, self.edge_type = _only_types(settings.kind, schema, target)
        nodes, edges = schema.nodes[self.node_type], schema.edges[self.edge_type]
        encodings = _encodings(settings, nodes)
        self.inputs: Inputs | None = None
        width = hidden
        if not is_featureless(nodes):
            self.inputs = Inputs(settings.inputs, schema, [self.node_type], hidden, statistics, of_collection=True)
            width = self.inputs.out_channels[self.node_type]
        elif not encodings:
            raise ExperimentError(
                f"model.kind: {settings.kind} needs features of the nodes, and these graphs have no `x`; add some with "
                "data.pre_transforms: [Constant], or [{OneHotDegree: {max_degree: 50}}]"
            )
        self.encodings = ModuleDict()
        for name in encodings:
            plain = settings.inputs.model_copy(update={"standardize": True, "project": True, "layer_norm": False})
            self.encodings[name] = NodeInput(
                plain, width, nodes.count, nodes.attributes[name], None, statistics(self.node_type, name), x_name=name
            )
        self.edge_input: EdgeInput | None = None
        self.weight: str | None = None
        options = _with_edges(settings, edges.attributes)
        if options.conv in TAKE_EDGE_ATTR and options.edge_attr:
            self.edge_input = EdgeInput(settings.inputs, edges)
        if options.conv == "gcn" and options.edge_weight is not None:
            self.weight = edge_weight(options.edge_weight, edges)
        edge_channels = self.edge_input.out_channels if self.edge_input is not None else None

        self.convs = nn.ModuleList()
        for _ in range(settings.layers):
            shape = Shape(width, hidden, settings.norm, edge_channels, lambda: _counted(degrees, self.edge_type))
            if isinstance(settings, config.GpsModel):
                if width != hidden:
                    raise ExperimentError(
                        f"model.kind: gps goes around its layers, so its inputs have to be as wide as hidden ("
                        f"{hidden}), and they are {width}; set model.inputs.project to true"
                    )
                conv = None if options.conv == "none" else build_graph_conv(options, shape)
                self.convs.append(GpsLayer(settings, conv))
            else:
                self.convs.append(ConvLayer(settings, build_graph_conv(options, shape), width))
            width = hidden
        self.readout = Readout(settings)
        graphs = max(1, schema.nodes[target].count)
        self.pooling = Pooling(settings.pooling, self.readout.out_channels, nodes.count / graphs)
        self.head = head_of(settings, self.pooling.out_channels, out_channels)
        names = (*(self.inputs.wants[self.node_type] if self.inputs is not None else ()), *encodings)
        of_edges = (*(("edge_attr",) if self.edge_input is not None else ()), *((self.weight,) if self.weight else ()))
        self.wants = Wants({self.node_type: names}, {self.edge_type: of_edges})  # pyright: ignore[reportArgumentType]

    def embed(self, batch: HeteroData) -> Tensor:
        """The graphs' embeddings: [batch_size, width]."""
        nodes, edges = batch[self.node_type], batch[self.edge_type]
        parts = [] if self.inputs is None else [self.inputs(batch)[self.node_type]]
        parts += [encode(nodes) for encode in self.encodings.values()]
        x = parts[0]
        for part in parts[1:]:
            x = x + part
        edge = None
        if self.edge_input is not None:
            edge = self.edge_input(edges.edge_attr)
        elif self.weight is not None:
            edge = edges[self.weight].reshape(-1).float().nan_to_num()
        states = []
        for layer in self.convs:
            x = layer(x, edges.edge_index, edge, nodes.batch)
            states.append(x)
        return self.pooling(self.readout(states), nodes)

    def forward(self, batch: HeteroData) -> Tensor:
        """[batch_size, out_channels], the graphs' logits."""
        return self.head(self.embed(batch))


def head_of(settings: config.Pooled, in_channels: int, out_channels: int) -> MLP:
    """From a graph's vector to the output."""
    widths = [in_channels, *[settings.hidden] * (settings.head_layers - 1), out_channels]
    norm, options = norm_of(settings.head_norm)
    bias = [*[settings.head_norm != "batch"] * (settings.head_layers - 1), True]  # see `graph_convs.Shape.norm`
    return MLP(widths, norm=norm, norm_kwargs=options, dropout=settings.head_dropout, bias=bias)


def _only_types(kind: str, schema: Schema, target: str) -> tuple[str, EdgeType]:
    node_types = [node_type for node_type in schema.nodes if node_type != target]
    if len(node_types) != 1 or len(schema.edges) != 1:
        relations = "; ".join(edge_type_name(edge_type) for edge_type in schema.edges) or "none"
        raise ExperimentError(
            f"model.kind: {kind} is for graphs of one node type and one relation; these have the node types "
            f"{', '.join(node_types)} and the relations {relations}. Choose model.kind=hetero_conv, or custom"
        )
    return node_types[0], next(iter(schema.edges))


def _encodings(settings: config.OfGraphs, nodes: Nodes) -> list[str]:
    if settings.encodings == "auto":
        return [name for name in _ENCODINGS if name in nodes.attributes]
    for name in settings.encodings:
        if name not in nodes.attributes or not prod(nodes.attributes[name].shape):
            known = ", ".join(nodes.attributes) or "none"
            raise ExperimentError(
                f"model.encodings: the nodes have no attribute `{name}`; they have {known}. Transforms make some: "
                "data.pre_transforms: [{AddRandomWalkPE: {walk_length: 16}}]"
            )
    return list(settings.encodings)


def _with_edges(settings: config.OfGraphs, attributes: dict[str, Attribute]) -> GraphConvOptions:
    """The convolution for edges with these attributes: `edge_attr` is whether it takes part."""
    options = settings.convolution
    has = "edge_attr" in attributes and prod(attributes["edge_attr"].shape) > 0
    if options.edge_attr is True and not has:
        instead = "gin" if options.conv == "gine" else "edge_attr: auto"
        raise ExperimentError(
            f"model.kind: {settings.kind} is to take edge_attr, and the graphs have no such attribute; choose {instead}"
        )
    takes = has and options.edge_attr is not False
    if options.conv == "auto":
        options = options._replace(conv="gine" if takes else "gin")
    return options._replace(edge_attr=takes)


def _counted(degrees: Degrees, edge_type: EdgeType) -> Tensor:
    return torch.from_numpy(degrees(edge_type))
