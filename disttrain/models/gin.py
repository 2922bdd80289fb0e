"""Graph isomorphism network over the graphs of a collection (https://arxiv.org/abs/1810.00826), of PyG's layers."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch_geometric.data import HeteroData
from torch_geometric.nn import MLP, GINConv, global_add_pool, global_max_pool, global_mean_pool

from .. import config
from ..config import ExperimentError, edge_type_name
from ..graph.schema import Schema, Wants
from .inputs import Inputs, Statistics, is_featureless
from .readout import Readout
from .update import Update

_POOL = {"sum": global_add_pool, "mean": global_mean_pool, "max": global_max_pool}
_NORM: dict[str, tuple[str | None, dict[str, Any] | None]] = {
    "none": (None, None),
    "layer": ("layer_norm", {"mode": "node"}),
    # Fewer than two rows have no variance: then the running statistics serve.
    "batch": ("batch_norm", {"allow_single_element": True}),
}
"""What PyG's `MLP` calls them, and with what options."""


class Gin(nn.Module):
    """inputs -> `layers` times (GINConv, norm, activation, dropout) -> pooling -> MLP."""

    def __init__(
        self, settings: config.GinModel, schema: Schema, target: str, out_channels: int, statistics: Statistics
    ) -> None:
        """Args:
        target: the node type that stands for the graphs.

        Raises:
            ExperimentError: the graphs have several types of nodes or edges, or nodes without features.
        """
        super().__init__()
        self.target, self.pooling = target, settings.pooling
        node_types = [node_type for node_type in schema.nodes if node_type != target]
        if len(node_types) != 1 or len(schema.edges) != 1:
            relations = "; ".join(edge_type_name(edge_type) for edge_type in schema.edges) or "none"
            raise ExperimentError(
                "model.kind: gin is for graphs of one node type and one relation; these have the node types "
                f"{', '.join(node_types)} and the relations {relations}. Choose model.kind=custom"
            )
        (self.node_type,), (self.edge_type,) = node_types, schema.edges
        if is_featureless(schema.nodes[self.node_type]):
            raise ExperimentError(
                "model.kind: gin needs features of the nodes, and these graphs have no `x`; add some with "
                "data.pre_transforms: [Constant], or [{OneHotDegree: {max_degree: 50}}]"
            )
        self.inputs = Inputs(settings.inputs, schema, [self.node_type], settings.hidden, statistics)
        self.convs, self.updates = nn.ModuleList(), nn.ModuleList()
        # Before a batch norm, a bias only drifts: its gradient is 0 but for rounding, of which Adam makes whole steps.
        bias = settings.norm != "batch"
        width, hidden = self.inputs.out_channels[self.node_type], settings.hidden
        for _ in range(settings.layers):
            norm, options = _NORM[settings.norm]
            mlp = MLP([width, hidden, hidden], norm=norm, norm_kwargs=options, bias=bias)
            self.convs.append(GINConv(mlp, train_eps=settings.train_eps))
            self.updates.append(Update(settings, width))
            width = hidden
        self.readout = Readout(settings)
        widths = [self.readout.out_channels, *[hidden] * (settings.head_layers - 1), out_channels]
        self.head = MLP(widths, norm=None, dropout=settings.head_dropout)
        self.wants = Wants(nodes=self.inputs.wants)  # pyright: ignore[reportArgumentType]

    def embed(self, batch: HeteroData) -> Tensor:
        """The graphs' embeddings: [batch_size, width]."""
        x = self.inputs(batch)[self.node_type]
        edge_index, states = batch[self.edge_type].edge_index, []
        for conv, update in zip(self.convs, self.updates, strict=True):
            x = update(conv(x, edge_index), x)
            states.append(x)
        return _POOL[self.pooling](self.readout(states), batch[self.node_type].batch, batch[self.target].batch_size)

    def forward(self, batch: HeteroData) -> Tensor:
        """[batch_size, out_channels], the graphs' logits."""
        return self.head(self.embed(batch))
