"""Convolutions of one relation: sources -> destinations. A file each; `convolution.py` says what is common to them."""

from __future__ import annotations

from math import prod

from ... import config
from ...config import EdgeType, ExperimentError, edge_type_name
from ...graph.schema import Attribute, Schema
from .convolution import Convolution, RelationBlock
from .gat import Gat
from .gcn import Gcn
from .gin import Gin
from .sage import Sage

__all__ = ["Convolution", "Gat", "Gcn", "Gin", "RelationBlock", "Sage", "build_convolution"]


def build_convolution(
    settings: config.HeteroConvModel, schema: Schema, edge_type: EdgeType, in_channels: dict[str, int]
) -> Convolution:
    """The convolution that the experiment has for a relation.

    Args:
        in_channels: node type -> width of the vectors that it reads.

    Raises:
        ExperimentError: its options do not fit the graph.
    """
    options = settings.options(edge_type_name(edge_type))
    where = f'model.relations["{edge_type_name(edge_type)}"]'
    src, _, dst = edge_type
    edges, hidden, kind = schema.edges[edge_type], settings.hidden, options.conv
    attribute, columns = _edge_attr(options, edges.attributes, where)
    weight = _edge_weight(settings, options, edge_type, edges.attributes, where)
    if kind == "gcn":
        return Gcn(in_channels[src], hidden, src == dst, weight)
    if kind == "gin":
        if in_channels[src] != in_channels[dst]:
            raise ExperimentError(
                f"{where}: conv gin adds the vectors of neighbours to the node's own, so they must be equally wide; "
                f"here they are {in_channels[src]} and {in_channels[dst]}: set model.inputs.project to true"
            )
        return Gin(in_channels[src], hidden, attribute, columns)
    if kind in ("gat", "gatv2"):
        channels = (in_channels[src], in_channels[dst])
        version = 1 if kind == "gat" else 2
        return Gat(channels, hidden, options.heads, options.aggr, src == dst, attribute, columns, version)
    aggr = options.aggr or ("mean" if kind == "sage" else "sum")
    mean_degree = edges.count / max(1, schema.nodes[dst].count)
    try:
        return Sage(in_channels[src], hidden, aggr, options.aggr_mode, weight, mean_degree)
    except ExperimentError as error:
        raise ExperimentError(f"{where}: aggr {error}") from None


def _edge_attr(options: config.Options, attributes: dict[str, Attribute], where: str) -> tuple[str | None, int | None]:
    """Name and width of the edge attribute that takes part, if any."""
    if options.conv not in config.TAKE_EDGE_ATTR or options.edge_attr is False:
        return None, None
    found = attributes.get("edge_attr")
    if found is None or prod(found.shape) == 0:
        if options.edge_attr is True:
            raise ExperimentError(f"{where}: edge_attr is true, but the relation has no attribute edge_attr")
        return None, None
    return "edge_attr", prod(found.shape)


def _edge_weight(
    settings: config.HeteroConvModel,
    options: config.Options,
    edge_type: EdgeType,
    attributes: dict[str, Attribute],
    where: str,
) -> str | None:
    """Name of the edge attribute that weighs neighbours, if any."""
    name = options.edge_weight
    if name is None or options.conv not in config.TAKE_EDGE_WEIGHT:
        return None
    if name not in attributes:
        own = settings.relations.get(edge_type_name(edge_type))
        if own is None or own.edge_weight is None:
            return None  # the model's: where relations have it
        raise ExperimentError(
            f'{where}: edge_weight is "{name}", but the relation has no such attribute; it has '
            f"{', '.join(attributes) or 'none'}"
        )
    if prod(attributes[name].shape) != 1:
        raise ExperimentError(
            f'{where}: edge_weight "{name}" has shape {list(attributes[name].shape)} per edge; expected one number'
        )
    return name
