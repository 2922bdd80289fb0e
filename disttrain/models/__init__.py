"""Models: a mini-batch in, the seeds' logits out.

A module of your own
--------------------
`model: {kind: custom, module: "my_project.models:MyGNN", args: {width: 32}, layers: 2}` builds

    MyGNN(schema=..., target=..., out_channels=..., width=32)

schema: `disttrain.graph.schema.Schema`, node and edge types with counts and attributes; target: the node type of the
seeds; out_channels: how many numbers each seed needs (classes, or labels). It is any callable that returns a
`torch.nn.Module`, and the module

- is called with a mini-batch, a `HeteroData`, and returns [batch_size, out_channels]: the seeds are the first
  `batch[target].batch_size` nodes of their type. batch_size may be 0;
- finds all node and edge types in the batch, those without nodes or edges as tensors of zero rows, and
  `n_id`, `num_sampled_nodes` of each node type, `edge_index`, `e_id`, `num_sampled_edges` of each edge type;
- gets the attributes it names in `self.wants` (`disttrain.graph.schema.Wants`); without `wants`: `x` and `x_cat` of
  each node type and `edge_attr` of each edge type that has them;
- uses each of its parameters on every batch, also on an empty one: a zero-row tensor through a layer is enough. A
  parameter that gets no gradient on one rank stops distributed training with an error;
- may have `embed(batch) -> [batch_size, width]`, for embeddings;
- reads `layers` hops: `disttrain.models.blocks.blocks(batch, layers)` cuts the batch so that each layer computes only
  what the next one needs (see `examples/own_model.py`).

Of a collection of graphs, target is `graph`, the node type that stands for the graphs: there the label is, and the
module returns a row for each graph of the batch. The graphs' own node types (`node` of a homogeneous collection) carry
`batch`, which of these each node belongs to; they have no `n_id`, `e_id` and `num_sampled_...`. `layers` does nothing.
`wants` may name anything that the graphs have, and gets what PyG's `Batch.from_data_list` makes of it: what has a row
for each node or edge under these; all else (`face`, `smiles`, indices by rules of your own) under `graph`, and where
the graphs are heterogeneous under the type that has it. `x_s_batch` and `x_s_ptr` are those that `follow_batch` makes
of `x_s`, and `"*"` is all that a type has.

The random seed is set before the module is built, the same on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from .. import config
from ..graph.schema import Schema
from .blocks import Block, blocks
from .custom import build_custom
from .hetero_conv import HeteroConv
from .hetero_graphs import HeteroGraphs
from .hgt import build_hgt
from .inputs import Statistics
from .of_graphs import Degrees, OfGraphs
from .rgat import build_rgat
from .rgcn import build_rgcn

__all__ = ["Block", "blocks", "build_model"]

_BUILD: dict[str, Callable[..., nn.Module]] = {
    "hetero_conv": HeteroConv,
    "rgcn": build_rgcn,
    "rgat": build_rgat,
    "hgt": build_hgt,
}
_BUILD_OF_GRAPHS: dict[str, Callable[..., nn.Module]] = {
    "hetero_conv": HeteroGraphs,
    **dict.fromkeys(("gin", "gine", "gcn", "sage", "gat", "pna", "gps"), OfGraphs),
}


def build_model(
    model: config.Model,
    schema: Schema,
    target: str,
    out_channels: int,
    statistics: Statistics,
    degrees: Degrees | None = None,
) -> nn.Module:
    """Build the model that the experiment names; torch's random generator decides its first weights.

    Args:
        target: the node type of the seeds.
        out_channels: width of the output.
        statistics: (node type, attribute) -> (mean, std) of each column over all nodes, or None where there are none.
        degrees: of a collection, what `of_graphs.Degrees` says; None: the schema is of one graph.

    Returns:
        A module: `module(batch)` is [batch_size, out_channels], `module.wants` says what a batch must carry.

    Raises:
        ExperimentError: the model does not fit the graph.
    """
    if isinstance(model, config.CustomModel):
        return build_custom(model, schema, target, out_channels)
    if degrees is not None:
        return _BUILD_OF_GRAPHS[model.kind](model, schema, target, out_channels, statistics, degrees)
    return _BUILD[model.kind](model, schema, target, out_channels, statistics)
