"""The edges of several relations as one list, for layers that treat all relations alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..config import EdgeType
from .blocks import Block


@dataclass
class RelationEdges:
    """A block's edges, relation after relation, and the pairs (relation, destination) that have any.

    What a relation sends to a destination is computed once per pair: there are at most as many as edges, however many
    relations there are, most of which send nothing to most nodes.
    """

    src: Tensor
    """[E] int64: the source's row, in the vectors of all sources (those of the first type or relation first)."""
    pair: Tensor
    """[E] int64, ascending: which pair an edge belongs to."""
    pointer: Tensor
    """[P + 1] int64: the edges of pair p are `pointer[p]:pointer[p + 1]`."""
    pair_dst: Tensor
    """[P] int64: the pair's destination, a row in the vectors of all destinations (type after type)."""
    num_pairs: list[int]
    """How many pairs each relation has."""
    num_edges: list[int]
    """How many edges each relation has."""
    num_dst: int
    """Destinations of all types."""

    @property
    def dst(self) -> Tensor:
        """[E] int64: each edge's destination, a row in the vectors of all destinations."""
        return self.pair_dst[self.pair]


def offsets(counts: Mapping[str, int]) -> dict[str, int]:
    """Where each type's rows begin when those of all types come one after the other."""
    begin, found = 0, {}
    for node_type, count in counts.items():
        found[node_type] = begin
        begin += count
    return found


def relation_edges(
    block: Block, edge_types: Sequence[EdgeType], src_offsets: Sequence[int], num_dst: Mapping[str, int]
) -> RelationEdges:
    """Join the edges of relations.

    Args:
        edge_types: which, in this order; at least one.
        src_offsets: of each of them, the row of its first source in the vectors of all sources.
        num_dst: destination types, in the order in which their vectors lie, and how many of each the block computes.

    Cost: O(E + destinations of each relation). On a GPU it waits for the device once, to learn the number of pairs.
    """
    begin = offsets(num_dst)
    device = block.edge_index[edge_types[0]].device
    counts = torch.cat([block.pointer(e).diff() for e in edge_types])
    ends = torch.tensor([num_dst[e[2]] for e in edge_types]).cumsum(0)
    found = counts.nonzero().squeeze(1)
    # The number of pairs of each relation: how many of the rows found lie before its last destination.
    last = torch.searchsorted(found, ends.to(device)).tolist()
    num_pairs = [high - low for low, high in zip([0, *last[:-1]], last)]
    all_dst = torch.cat([torch.arange(begin[e[2]], begin[e[2]] + num_dst[e[2]], device=device) for e in edge_types])
    pointer = torch.cat([counts.new_zeros(1), counts[found].cumsum(0)])
    num_edges = [block.num_edges(e) for e in edge_types]
    src = [
        block.edge_index[e][0] + first if first else block.edge_index[e][0] for e, first in zip(edge_types, src_offsets)
    ]
    return RelationEdges(
        src=torch.cat(src),
        pair=torch.repeat_interleave(pointer.diff(), output_size=sum(num_edges)),
        pointer=pointer,
        pair_dst=all_dst[found],
        num_pairs=num_pairs,
        num_edges=num_edges,
        num_dst=sum(num_dst.values()),
    )


def add_up(values: Tensor, edges: RelationEdges) -> Tensor:
    """Sum what the pairs have for each destination: [P, ...] -> [num_dst, ...], zeros where there is no pair."""
    return values.new_zeros(edges.num_dst, *values.shape[1:]).index_add(0, edges.pair_dst, values)


def connected(out: Tensor, unused: Iterable[Tensor]) -> Tensor:
    """`out` as it is, with a zero gradient for vectors that a layer has no use for (what made them gets one so)."""
    for vectors in unused:
        out = out + vectors.sum() * 0.0
    return out
