"""`hgt`: Heterogeneous Graph Transformer, https://arxiv.org/abs/2003.01332.

Keys, queries and values by node type; per relation and head a matrix between key and query, one for the value, and a
prior. The softmax is over a node's neighbours of all relations. PyG's `HGTConv` multiplies each relation's matrices
with all of its sources; here they are multiplied with the queries, and with the weighted sums of values, of the pairs
(relation, destination): the same function, and never more work than there are edges.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.data import HeteroData
from torch_geometric.nn.inits import glorot
from torch_geometric.utils import softmax

from .. import config
from ..config import EdgeType
from ..graph.schema import Schema, Wants
from .blocks import Block
from .grouped import grouped_matmul
from .inputs import Inputs, Statistics
from .layered import LayeredModel, layer_types, relations_into
from .module_dict import ModuleDict
from .relations import add_up, connected, offsets, relation_edges
from .update import Update


class HgtLayer(nn.Module):
    """One layer: node type -> [N, its width] to node type -> [N, hidden].

    A type without relations that lead to it passes its vectors on, by a Linear where the width differs.
    """

    def __init__(
        self,
        settings: config.HgtModel,
        edge_types: Sequence[EdgeType],
        in_channels: dict[str, int],
        node_types: Sequence[str],
    ) -> None:
        """edge_types: the relations that lead to `node_types`, the types that it computes."""
        super().__init__()
        self.node_types, self.edge_types = tuple(node_types), tuple(edge_types)
        self.reached = tuple(t for t in self.node_types if any(e[2] == t for e in self.edge_types))
        self.sources = tuple(dict.fromkeys(e[0] for e in self.edge_types))
        self.heads, hidden = settings.heads, settings.hidden
        width = hidden // self.heads
        self.key_value, self.query, self.out, self.update = ModuleDict(), ModuleDict(), ModuleDict(), ModuleDict()
        for node_type in self.sources:
            self.key_value[node_type] = nn.Linear(in_channels[node_type], 2 * hidden)
        for node_type in self.node_types:
            self.update[node_type] = Update(settings, in_channels[node_type])
            if node_type in self.reached:
                self.query[node_type] = nn.Linear(in_channels[node_type], hidden)
                self.out[node_type] = nn.Linear(hidden, hidden)
            elif in_channels[node_type] != hidden:
                self.out[node_type] = nn.Linear(in_channels[node_type], hidden)
        # Where the width changes there is nothing to pass by.
        self.gated = [t for t in self.reached if in_channels[t] == hidden]
        if self.gated:
            self.skip = nn.Parameter(torch.ones(len(self.gated)))
        if self.edge_types:
            self.key_matrix = nn.Parameter(torch.empty(len(self.edge_types), self.heads, width, width))
            self.value_matrix = nn.Parameter(torch.empty(len(self.edge_types), self.heads, width, width))
            self.prior = nn.Parameter(torch.ones(len(self.edge_types), self.heads))
            glorot(self.key_matrix)
            glorot(self.value_matrix)

    def forward(self, x: dict[str, Tensor], block: Block, batch: HeteroData) -> dict[str, Tensor]:
        own = {t: x[t][: block.num_dst[t]] for t in self.node_types}
        new = dict(own)
        if self.edge_types:
            new |= self._attend(x, own, block)
        for node_type in self.node_types:
            if node_type in self.reached:
                new[node_type] = self._gate(self.out[node_type](functional.gelu(new[node_type])), own, node_type)
            elif node_type in self.out:
                new[node_type] = self.out[node_type](own[node_type])
        unused = [vectors for t, vectors in x.items() if t not in self.sources and t not in self.node_types]
        first = self.node_types[0]
        new[first] = connected(new[first], unused)
        return {t: self.update[t](new[t], own[t]) for t in self.node_types}

    def _attend(self, x: dict[str, Tensor], own: dict[str, Tensor], block: Block) -> dict[str, Tensor]:
        """What the neighbours give, of the types that have any relation: [num_dst, hidden]."""
        num_dst = {t: own[t].size(0) for t in self.reached}
        begin = offsets({t: x[t].size(0) for t in self.sources})
        edges = relation_edges(block, self.edge_types, [begin[e[0]] for e in self.edge_types], num_dst)
        both = torch.cat([self.key_value[t](x[t]) for t in self.sources])
        both = both.unflatten(1, (2, self.heads, -1))
        queries = torch.cat([self.query[t](own[t]) for t in self.reached])
        queries = queries.unflatten(1, (self.heads, -1)).index_select(0, edges.pair_dst)
        scale = (self.prior / math.sqrt(queries.size(-1))).unsqueeze(-1).unsqueeze(-1)
        queries = grouped_matmul(queries, edges.num_pairs, self.key_matrix.transpose(-2, -1) * scale)
        of_edges = both.index_select(0, edges.src)
        score = (queries.index_select(0, edges.pair) * of_edges[:, 0]).float().sum(dim=-1)
        weight = softmax(score, edges.dst, num_nodes=edges.num_dst)
        values = of_edges[:, 1] * weight.unsqueeze(-1).to(of_edges.dtype)
        values = values.new_zeros(edges.pair_dst.numel(), *values.shape[1:]).index_add(0, edges.pair, values)
        out = add_up(grouped_matmul(values, edges.num_pairs, self.value_matrix), edges).flatten(1)
        return dict(zip(num_dst, out.split(list(num_dst.values())), strict=True))

    def _gate(self, new: Tensor, own: dict[str, Tensor], node_type: str) -> Tensor:
        if node_type not in self.gated:
            return new
        share = self.skip[self.gated.index(node_type)].sigmoid()
        return share * new + (1 - share) * own[node_type]


def build_hgt(
    settings: config.HgtModel, schema: Schema, target: str, out_channels: int, statistics: Statistics
) -> LayeredModel:
    """The model of `kind: hgt`."""
    types = layer_types(schema, target, settings.layers)
    inputs = Inputs(settings.inputs, schema, types[0], settings.hidden, statistics)
    layers, channels = [], inputs.out_channels
    for node_types in types[1:]:
        layers.append(HgtLayer(settings, relations_into(schema, node_types), channels, node_types))
        channels = dict.fromkeys(node_types, settings.hidden)
    return LayeredModel(settings, target, out_channels, inputs, layers, Wants())
