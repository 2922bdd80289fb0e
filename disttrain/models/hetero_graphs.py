"""`hetero_conv` over collections: layers of one convolution per relation, then the nodes of each type are pooled."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch_geometric.data import HeteroData

from .. import config
from ..config import ExperimentError, edge_type_name
from ..graph.schema import Schema, Wants
from .blocks import Block
from .hetero_conv import HeteroConvLayer
from .inputs import Inputs, Statistics, is_featureless
from .module_dict import ModuleDict
from .of_graphs import Degrees, head_of
from .pooling import Pooling
from .readout import Readout


class HeteroGraphs(nn.Module):
    """inputs -> layers over all node types -> readout and pooling of each type -> side by side -> MLP."""

    def __init__(
        self,
        settings: config.HeteroConvModel,
        schema: Schema,
        target: str,
        out_channels: int,
        statistics: Statistics,
        degrees: Degrees,
    ) -> None:
        """Args:
        target: the node type that stands for the graphs.

        Raises:
            ExperimentError: a node type has no features, or `model.relations` names what there is not.
        """
        super().__init__()
        self.target = target
        inner = Schema({t: nodes for t, nodes in schema.nodes.items() if t != target}, schema.edges, schema.info)
        self.edge_types = list(inner.edges)
        lacking = [node_type for node_type, nodes in inner.nodes.items() if is_featureless(nodes)]
        if lacking:
            raise ExperimentError(
                f"model.kind: hetero_conv needs features of the nodes of each type, and {', '.join(lacking)} "
                f"{'has' if len(lacking) == 1 else 'have'} no `x`; add some with data.pre_transforms: "
                f"[{{Constant: {{node_types: [{', '.join(lacking)}]}}}}]"
            )
        for name in settings.relations:
            if config.parse_edge_type(name) not in inner.edges:
                known = ", ".join(f'"{edge_type_name(e)}"' for e in inner.edges)
                raise ExperimentError(f'model.relations: the graphs have no relation "{name}"; they have {known}')
        self.inputs = Inputs(settings.inputs, inner, inner.nodes, settings.hidden, statistics, of_collection=True)
        self.convs, channels = nn.ModuleList(), self.inputs.out_channels
        for _ in range(settings.layers):
            self.convs.append(HeteroConvLayer(settings, inner, channels, inner.nodes))
            channels = dict.fromkeys(inner.nodes, settings.hidden)
        self.readouts, self.poolings, width = ModuleDict(), ModuleDict(), 0
        graphs = max(1, schema.nodes[target].count)
        for node_type, nodes in inner.nodes.items():
            readout = self.readouts[node_type] = Readout(settings)
            pooling = self.poolings[node_type] = Pooling(settings.pooling, readout.out_channels, nodes.count / graphs)
            width += pooling.out_channels
        self.head = head_of(settings, width, out_channels)
        used = [conv for layer in self.convs for conv in layer.by_relation.items()]  # pyright: ignore
        self.attributes = {e: conv.attribute for e, conv in used if conv.attribute is not None}
        self.wants = Wants(self.inputs.wants, {e: (name,) for e, name in self.attributes.items()})  # pyright: ignore

    def embed(self, batch: HeteroData) -> Tensor:
        """The graphs' embeddings: [batch_size, width]."""
        block, edges = self._block(batch)
        x = self.inputs(batch)
        states: dict[str, list[Tensor]] = {node_type: [] for node_type in x}
        for layer in self.convs:
            x = layer(x, block, edges)
            for node_type, vectors in x.items():
                states[node_type].append(vectors)
        return torch.cat([self.poolings[t](self.readouts[t](found), batch[t]) for t, found in states.items()], dim=1)

    def forward(self, batch: HeteroData) -> Tensor:
        """[batch_size, out_channels], the graphs' logits."""
        return self.head(self.embed(batch))

    def _block(self, batch: HeteroData) -> tuple[Block, HeteroData]:
        """The whole batch as a block, and what layers ask of its edges; destinations ascending. Costs a sort of each
        relation's edges."""
        edges, index = HeteroData(), {}
        for edge_type in self.edge_types:
            src, dst = batch[edge_type].edge_index
            dst, order = torch.sort(dst, stable=True)
            src = src[order]
            index[edge_type] = torch.stack([src, dst])
            store = edges[edge_type]
            # A graph is in a batch as a whole, so the degrees in the batch are those in the graph.
            store.src_degree = torch.bincount(src, minlength=batch[edge_type[0]].num_nodes)
            store.dst_degree = torch.bincount(dst, minlength=batch[edge_type[2]].num_nodes)
            if edge_type in self.attributes:
                store[self.attributes[edge_type]] = batch[edge_type][self.attributes[edge_type]][order]
        sizes = {node_type: int(batch[node_type].num_nodes) for node_type in self.inputs.out_channels}
        return Block(sizes, sizes, index), edges
