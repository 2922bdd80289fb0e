"""`rgcn`: relational graph convolution, https://arxiv.org/abs/1703.06103.

`h_i' = act(sum_r W_r mean_{j in N_r(i)} h_j + W_0 h_i + b)`: one set of matrices for all node types, as in the paper
and in PyG's `RGCNConv`. Computed by pairs (relation, destination): the mean first, then the matrix.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch_geometric.data import HeteroData
from torch_geometric.nn.inits import glorot

from .. import config
from ..config import EdgeType
from ..graph.schema import Schema, Wants
from .blocks import Block
from .inputs import Inputs, Statistics, is_featureless, same_width
from .layered import LayeredModel, layer_types, relations_into
from .module_dict import ModuleDict
from .neighbours import Edges, sum_neighbours
from .relation_matrices import RelationMatrices
from .relations import RelationEdges, add_up, connected, offsets, relation_edges
from .update import Update


class RgcnLayer(nn.Module):
    """One layer. Sources are vectors, or, of types that are `one_hot`, rows of the relations' matrices themselves."""

    def __init__(
        self,
        settings: config.RgcnModel,
        edge_types: Sequence[EdgeType],
        in_channels: int | None,
        node_types: Sequence[str],
        one_hot: Sequence[str] = (),
    ) -> None:
        """Args:
        edge_types: the relations that lead to `node_types`.
        in_channels: width of the vectors that it reads; None where all types are one-hot.
        node_types: the types that it computes.
        one_hot: types of which it reads `one_hot_width` numbers: [slots, hidden], see there.
        """
        super().__init__()
        self.node_types, self.one_hot, self.hidden = tuple(node_types), frozenset(one_hot), settings.hidden
        self.by_vectors = [e for e in edge_types if e[0] not in self.one_hot]
        self.by_rows = [e for t in one_hot for e in edge_types if e[0] == t]
        if self.by_vectors:
            assert in_channels is not None
            self.matrices = RelationMatrices(
                len(self.by_vectors), in_channels, self.hidden, settings.bases, settings.blocks
            )
        self.comp: nn.Parameter | None = None
        if self.by_rows and settings.bases is not None:
            self.comp = nn.Parameter(torch.empty(len(self.by_rows), settings.bases))
            glorot(self.comp)
        self.self_loop = settings.self_loop
        self.root: nn.Parameter | None = None
        if settings.self_loop and any(t not in self.one_hot for t in self.node_types):
            assert in_channels is not None
            self.root = nn.Parameter(torch.empty(in_channels, self.hidden))
            glorot(self.root)
        self.bias = nn.Parameter(torch.zeros(self.hidden))
        self.update = ModuleDict()
        for node_type in self.node_types:
            self.update[node_type] = Update(settings, in_channels or self.hidden)

    def forward(self, x: dict[str, Tensor], block: Block, batch: HeteroData) -> dict[str, Tensor]:
        num_dst = {t: block.num_dst[t] for t in self.node_types}
        out = self.bias
        if self.by_vectors:
            src = {t: x[t] for t in dict.fromkeys(e[0] for e in self.by_vectors)}
            begin = offsets({t: vectors.size(0) for t, vectors in src.items()})
            edges = relation_edges(block, self.by_vectors, [begin[e[0]] for e in self.by_vectors], num_dst)
            mean = _means(torch.cat(tuple(src.values())), edges)
            out = out + add_up(self.matrices(mean, edges.num_pairs), edges)
        if self.by_rows:
            begin = torch.tensor([0, *(x[e[0]].size(0) for e in self.by_rows)]).cumsum(0)[:-1].tolist()
            edges = relation_edges(block, self.by_rows, begin, num_dst)
            out = out + add_up(_means(self._rows(x), edges), edges)
        if self.self_loop:
            out = out + torch.cat([self._own(x[t][: num_dst[t]], t) for t in self.node_types])
        elif not (self.by_vectors or self.by_rows):
            out = out.expand(sum(num_dst.values()), -1)
        used = {e[0] for e in (*self.by_vectors, *self.by_rows)} | (set(self.node_types) if self.self_loop else set())
        out = connected(out, (vectors for t, vectors in x.items() if t not in used))
        parts = out.split(list(num_dst.values()))
        return {t: self.update[t](new, x[t][: num_dst[t]]) for t, new in zip(self.node_types, parts, strict=True)}

    def _rows(self, x: dict[str, Tensor]) -> Tensor:
        """What each source's row in the relation's matrix is, relation after relation: [sum of num_src, hidden]."""
        found, first = [], 0
        for node_type in dict.fromkeys(e[0] for e in self.by_rows):
            slots = x[node_type].unflatten(1, (-1, self.hidden))
            last = first + sum(e[0] == node_type for e in self.by_rows)
            if self.comp is not None:
                comp = self.comp[first:last]
                found.append(torch.einsum("rb,nbh->rnh", comp, slots[:, : comp.size(1)]).flatten(0, 1))
            else:
                found.append(slots[:, : last - first].transpose(0, 1).flatten(0, 1))
            first = last
        return torch.cat(found)

    def _own(self, own: Tensor, node_type: str) -> Tensor:
        if node_type in self.one_hot:
            return own[:, -self.hidden :]
        assert self.root is not None
        return own @ self.root


def _means(x: Tensor, edges: RelationEdges) -> Tensor:
    """[P, width]: the mean of each pair's sources."""
    _, (mean,) = sum_neighbours(x, [Edges(edges.src, edges.pair, edges.pointer, mean=True)])
    return mean


def one_hot_width(settings: config.RgcnModel, edge_types: Sequence[EdgeType], node_type: str, width: int) -> int:
    """How many numbers the first layer reads of each node of a type that is one-hot.

    [slots, width]: its rows in the bases, or in the matrices of the relations that leave from its type, and after
    these its row in the self-loop's matrix.
    """
    slots = settings.bases if settings.bases is not None else sum(e[0] == node_type for e in edge_types)
    return max(1, slots + settings.self_loop) * width


def build_rgcn(
    settings: config.RgcnModel, schema: Schema, target: str, out_channels: int, statistics: Statistics
) -> LayeredModel:
    """The model of `kind: rgcn`.

    Raises:
        ExperimentError: node types come in different widths.
    """
    types = layer_types(schema, target, settings.layers)
    first = relations_into(schema, types[1])
    one_hot = [t for t in types[0] if is_featureless(schema.nodes[t])] if _takes_one_hot(settings) else []
    first_width = settings.hidden if settings.head or settings.layers > 1 else out_channels
    widths = {t: one_hot_width(settings, first, t, first_width) for t in one_hot}
    inputs = Inputs(settings.inputs, schema, types[0], settings.hidden, statistics, embedding_widths=widths)
    for node_type in one_hot:
        rows = inputs.types[node_type].embedding
        assert isinstance(rows, nn.Embedding)
        bound = (6.0 / (rows.num_embeddings + first_width)) ** 0.5  # that of a [nodes, hidden] matrix, by Glorot
        nn.init.uniform_(rows.weight, -bound, bound)
    channels = same_width({t: width for t, width in inputs.out_channels.items() if t not in one_hot}, settings.kind)
    layers = []
    for number, node_types in enumerate(types[1:], 1):
        edge_types = relations_into(schema, node_types)
        of_layer = settings
        if number == settings.layers and not settings.head:
            plain = {"hidden": out_channels, "norm": "none", "activation": "none", "dropout": 0.0}
            of_layer = settings.model_copy(update=plain)
        layers.append(RgcnLayer(of_layer, edge_types, channels, node_types, one_hot if number == 1 else ()))
        channels = settings.hidden
    head = None if settings.head else nn.Identity()
    return LayeredModel(settings, target, out_channels, inputs, layers, Wants(), head)


def _takes_one_hot(settings: config.RgcnModel) -> bool:
    """Block-diagonal matrices, norms and ways around need vectors."""
    plain = settings.blocks is None and not settings.residual
    return plain and settings.inputs.embedding_dim is None and not settings.inputs.layer_norm
