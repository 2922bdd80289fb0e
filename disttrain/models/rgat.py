"""`rgat`: relational graph attention, https://arxiv.org/abs/1904.05811.

Neighbours and the node itself are multiplied by the relation's matrix, `g = W_r h`; a neighbour's weight is the
softmax of `LeakyReLU(q . g_i + k . g_j + e . a_ij)` (or `(q . g_i) (k . g_j) (e . a_ij)`) over the neighbours of all
relations, or its own; `e . a_ij` is there where the edge has attributes. One set of matrices, queries and keys for all
node types, laid out as in PyG's `RGATConv`. What that has for edge attributes, a matrix and a vector behind it, is one
matrix here, of each relation: their columns need not mean the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.data import HeteroData
from torch_geometric.nn.inits import glorot
from torch_geometric.utils import softmax

from .. import config
from ..config import EdgeType, ExperimentError, edge_type_name
from ..graph.schema import Schema, Wants
from .blocks import Block
from .convs import RelationBlock
from .inputs import Inputs, Statistics, same_width
from .layered import LayeredModel, layer_types, relations_into
from .module_dict import ModuleDict
from .relation_matrices import RelationMatrices
from .relations import connected, offsets, relation_edges
from .update import Update


class RgatLayer(nn.Module):
    """One layer: [N, in_channels] of every type -> [N, hidden], the heads side by side."""

    def __init__(
        self,
        settings: config.RgatModel,
        edge_types: Sequence[EdgeType],
        in_channels: int,
        node_types: Sequence[str],
        edge_channels: Mapping[EdgeType, int] | None = None,
    ) -> None:
        """Args:
        edge_types: the relations that lead to `node_types`, the types that it computes.
        edge_channels: of them, those whose `edge_attr` takes part, and its width.
        """
        super().__init__()
        self.node_types, self.edge_types = tuple(node_types), tuple(edge_types)
        self.heads, self.across = settings.heads, settings.attention == "across"
        self.additive, self.dropout = settings.score == "additive", settings.attention_dropout
        hidden = settings.hidden
        if self.edge_types:
            self.matrices = RelationMatrices(len(self.edge_types), in_channels, hidden, settings.bases, settings.blocks)
            self.q = nn.Parameter(torch.empty(hidden, self.heads))
            self.k = nn.Parameter(torch.empty(hidden, self.heads))
            glorot(self.q)
            glorot(self.k)
        self.e = ModuleDict()
        for edge_type, width in (edge_channels or {}).items():
            self.e[edge_type_name(edge_type)] = nn.Linear(width, self.heads, bias=False)
        self.root = nn.Linear(in_channels, hidden, bias=False) if settings.self_loop else None
        self.bias = nn.Parameter(torch.zeros(hidden))
        self.update = ModuleDict()
        for node_type in self.node_types:
            self.update[node_type] = Update(settings, in_channels)

    def forward(self, x: dict[str, Tensor], block: Block, batch: HeteroData) -> dict[str, Tensor]:
        num_dst = {t: block.num_dst[t] for t in self.node_types}
        own = torch.cat([x[t][: num_dst[t]] for t in self.node_types])
        out = self.bias.expand(own.size(0), -1) if self.root is None else self.root(own) + self.bias
        if self.edge_types:
            out = out + self._messages(x, own, block, num_dst, batch)
        used = {*(e[0] for e in self.edge_types), *(self.node_types if self.root is not None else ())}
        out = connected(out, (vectors for t, vectors in x.items() if t not in used))
        parts = out.split(list(num_dst.values()))
        return {t: self.update[t](new, x[t][: num_dst[t]]) for t, new in zip(self.node_types, parts, strict=True)}

    def _messages(
        self, x: dict[str, Tensor], own: Tensor, block: Block, num_dst: dict[str, int], batch: HeteroData
    ) -> Tensor:
        src = {t: x[t] for t in dict.fromkeys(e[0] for e in self.edge_types)}
        begin = offsets({t: vectors.size(0) for t, vectors in src.items()})
        edges = relation_edges(block, self.edge_types, [begin[e[0]] for e in self.edge_types], num_dst)
        # By edges and not by nodes: in a mini-batch a relation's neighbours are few of the nodes, and met about once.
        sources = self.matrices(torch.cat(tuple(src.values())).index_select(0, edges.src), edges.num_edges)
        queries = self.matrices(own.index_select(0, edges.pair_dst), edges.num_pairs) @ self.q
        q, k = queries.float().index_select(0, edges.pair), (sources @ self.k).float()
        if self.e:
            of_edges = self._edge_scores(block, batch)
            q = q + of_edges if self.additive else q * of_edges
        score = functional.leaky_relu(q + k, 0.2) if self.additive else q * k
        dst = edges.dst
        if self.across:
            weight = softmax(score, dst, num_nodes=edges.num_dst)
        else:
            weight = softmax(score, edges.pair, num_nodes=edges.pair_dst.numel())
        weight = functional.dropout(weight, self.dropout, self.training) if self.dropout > 0 else weight
        messages = sources.unflatten(1, (self.heads, -1)) * weight.unsqueeze(-1).to(sources.dtype)
        return messages.new_zeros(edges.num_dst, sources.size(1)).index_add(0, dst, messages.flatten(1))

    def _edge_scores(self, block: Block, batch: HeteroData) -> Tensor:
        """What the attributes say of each edge, float32 [E, heads]; where there are none, what changes nothing."""
        found, nothing = [], 0.0 if self.additive else 1.0
        for edge_type in self.edge_types:
            name = edge_type_name(edge_type)
            if name in self.e:
                found.append(self.e[name](RelationBlock(block, edge_type, batch).attribute("edge_attr")).float())
            else:
                found.append(self.k.new_full((block.num_edges(edge_type), self.heads), nothing, dtype=torch.float32))
        return torch.cat(found)


def build_rgat(
    settings: config.RgatModel, schema: Schema, target: str, out_channels: int, statistics: Statistics
) -> LayeredModel:
    """The model of `kind: rgat`.

    Raises:
        ExperimentError: node types come in different widths.
    """
    types = layer_types(schema, target, settings.layers)
    inputs = Inputs(settings.inputs, schema, types[0], settings.hidden, statistics)
    channels = same_width(inputs.out_channels, settings.kind) or settings.hidden
    layers, wanted = [], {}
    for node_types in types[1:]:
        edge_types = relations_into(schema, node_types)
        edge_channels = _edge_channels(settings, schema, edge_types)
        wanted |= dict.fromkeys(edge_channels, ("edge_attr",))
        layers.append(RgatLayer(settings, edge_types, channels, node_types, edge_channels))
        channels = settings.hidden
    return LayeredModel(settings, target, out_channels, inputs, layers, Wants(edges=wanted))


def _edge_channels(settings: config.RgatModel, schema: Schema, edge_types: Sequence[EdgeType]) -> dict[EdgeType, int]:
    """The relations whose `edge_attr` takes part, and its width."""
    if settings.edge_attr is False:
        return {}
    found = {e: prod(schema.edges[e].attributes["edge_attr"].shape) for e in edge_types if _has_attribute(schema, e)}
    lacking = [edge_type_name(e) for e in edge_types if e not in found]
    if settings.edge_attr is True and lacking:
        raise ExperimentError(
            f"model.edge_attr is true, but {', '.join(lacking)} {'has' if len(lacking) == 1 else 'have'} no attribute "
            "edge_attr; set it to auto, then it takes part where there is one"
        )
    return found


def _has_attribute(schema: Schema, edge_type: EdgeType) -> bool:
    attribute = schema.edges[edge_type].attributes.get("edge_attr")
    return attribute is not None and prod(attribute.shape) > 0
