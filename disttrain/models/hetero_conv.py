"""`hetero_conv`: inputs -> layers of one convolution per relation -> head, computed in blocks."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn
from torch_geometric.data import HeteroData

from .. import config
from ..config import EdgeType, ExperimentError, edge_type_name, parse_edge_type
from ..graph.schema import Schema, Wants
from .blocks import Block
from .combine import Combine
from .convs import Convolution, RelationBlock, build_convolution
from .inputs import Inputs, Statistics
from .layered import LayeredModel, layer_types
from .module_dict import ModuleDict
from .neighbours import sum_neighbours
from .update import Update


class HeteroConvLayer(nn.Module):
    """One layer: per node type, `dropout(activation(norm(combine(messages) + own)))`.

    A node's own vector enters through a `gin` relation, or through the self loop of a `gat`, `gatv2` or `gcn` relation
    within its type, or else through one Linear; and once more, as it is, with `residual`.
    """

    def __init__(
        self,
        settings: config.HeteroConvModel,
        schema: Schema,
        in_channels: dict[str, int],
        node_types: Iterable[str],
    ) -> None:
        """Args:
        in_channels: node type -> width of the vectors that the layer reads.
        node_types: the node types that it computes.
        """
        super().__init__()
        self.node_types = tuple(node_types)
        self.convs, self.own, self.combine, self.update = ModuleDict(), ModuleDict(), ModuleDict(), ModuleDict()
        self.by_relation: dict[EdgeType, Convolution] = {}
        for edge_type in schema.edges:
            if edge_type[2] in self.node_types:
                self.by_relation[edge_type] = build_convolution(settings, schema, edge_type, in_channels)
                self.convs[edge_type] = self.by_relation[edge_type]
        hidden = settings.hidden
        for node_type in self.node_types:
            relations = [e for e in self.by_relation if e[2] == node_type]
            if not any(self.by_relation[e].includes_own for e in relations):
                # Where there are messages they bring a bias of their own.
                self.own[node_type] = nn.Linear(in_channels[node_type], hidden, bias=not relations)
            if relations:
                self.combine[node_type] = Combine(settings.relation_aggr, hidden, len(relations))
            self.update[node_type] = Update(settings, in_channels[node_type])

    def forward(self, x: dict[str, Tensor], block: Block, batch: HeteroData) -> dict[str, Tensor]:
        """x: node type -> [num_src, width]. Returns node type -> [num_dst, hidden]."""
        own, neighbours = self._sums(x, block, batch)
        messages: dict[str, list[Tensor]] = {t: [] for t in self.node_types}
        for edge_type, conv in self.by_relation.items():
            relation = RelationBlock(block, edge_type, batch)
            message = conv(x[edge_type[0]], own[edge_type[2]], relation, neighbours.get(edge_type))
            messages[edge_type[2]].append(message)
        return {t: self.update[t](self._combined(t, messages[t], own[t], block), own[t]) for t in self.node_types}

    def _sums(
        self, x: dict[str, Tensor], block: Block, batch: HeteroData
    ) -> tuple[dict[str, Tensor], dict[EdgeType, Tensor]]:
        """Each type's destinations themselves, and for each relation with a linear convolution its neighbour sums."""
        own: dict[str, Tensor] = {}
        sums: dict[EdgeType, Tensor] = {}
        for node_type, vectors in x.items():
            edges = {
                e: conv.edges(RelationBlock(block, e, batch))
                for e, conv in self.by_relation.items()
                if e[0] == node_type and conv.linear
            }
            own[node_type], found = sum_neighbours(vectors, list(edges.values()), block.num_dst[node_type])
            sums.update(zip(edges, found, strict=True))
        return own, sums

    def _combined(self, node_type: str, messages: list[Tensor], own: Tensor, block: Block) -> Tensor:
        out = None
        if messages:
            pointers = [block.pointer(e) for e in self.by_relation if e[2] == node_type]
            out = self.combine[node_type](messages, pointers)
        if node_type in self.own:
            projected = self.own[node_type](own)
            out = projected if out is None else out + projected
        assert out is not None
        return out


class HeteroConv(LayeredModel):
    """The model of `kind: hetero_conv`. What cannot matter, by schema, target and layers, has no parameters."""

    def __init__(
        self,
        settings: config.HeteroConvModel,
        schema: Schema,
        target: str,
        out_channels: int,
        statistics: Statistics,
    ) -> None:
        """Args:
        target: the node type of the seeds.
        out_channels: width of the head's output.
        statistics: (node type, attribute) -> (mean, std) per column over all nodes, or None.

        Raises:
            ExperimentError: a relation of `model.relations` that the graph lacks, or that no layer uses.
        """
        types = layer_types(schema, target, settings.layers)
        _check_relations(settings, schema, types)
        inputs = Inputs(settings.inputs, schema, types[0], settings.hidden, statistics)
        layers, channels = [], inputs.out_channels
        for node_types in types[1:]:
            layers.append(HeteroConvLayer(settings, schema, channels, node_types))
            channels = dict.fromkeys(node_types, settings.hidden)
        used = {e: conv for layer in layers for e, conv in layer.by_relation.items()}
        wants = Wants(
            edges={e: (conv.attribute,) for e, conv in used.items() if conv.attribute is not None},
            degrees=frozenset(e for e, conv in used.items() if conv.wants_degrees),
        )
        super().__init__(settings, target, out_channels, inputs, layers, wants)


def _check_relations(settings: config.HeteroConvModel, schema: Schema, types: list[list[str]]) -> None:
    for name in settings.relations:
        edge_type = parse_edge_type(name)
        if edge_type not in schema.edges:
            known = ", ".join(f'"{edge_type_name(e)}"' for e in schema.edges)
            raise ExperimentError(f'model.relations: the graph has no relation "{name}"; it has {known}')
        if edge_type[2] not in types[1]:
            raise ExperimentError(
                f'model.relations["{name}"]: with {settings.layers} layers this relation never reaches the seeds, '
                "so its options would be ignored; remove them or add layers"
            )
