"""A module of the user's own, by dotted path. Its contract is written in `disttrain.models`."""

from __future__ import annotations

import inspect

from torch import nn

from .. import config
from ..config import ExperimentError
from ..data.dotted import import_dotted
from ..graph.schema import Schema, Wants


def build_custom(model: config.CustomModel, schema: Schema, target: str, out_channels: int) -> nn.Module:
    """Build the user's module and give it `wants` where it has none: `x`, `x_cat` and `edge_attr` where present.

    Raises:
        ExperimentError: the path names nothing, or nothing that makes an `nn.Module`, or the arguments do not fit.
    """
    make = import_dotted(model.module, "model.module")
    given = {"schema": schema, "target": target, "out_channels": out_channels, **model.args}
    try:
        inspect.signature(make).bind(**given)
    except TypeError as error:
        raise ExperimentError(
            f"model.args do not fit {model.module}: {error}; it is called with schema, target, out_channels and these "
            "(disttrain/models/__init__.py has the contract)"
        ) from error
    module = make(**given)
    if not isinstance(module, nn.Module):
        raise ExperimentError(f"model.module: {model.module} must make a torch.nn.Module, got {type(module).__name__}")
    if not isinstance(getattr(module, "wants", None), Wants):
        module.wants = Wants(  # pyright: ignore[reportArgumentType]
            nodes={
                t: tuple(name for name in ("x", "x_cat") if name in nodes.attributes)
                for t, nodes in schema.nodes.items()
            },
            edges={e: ("edge_attr",) for e, edges in schema.edges.items() if "edge_attr" in edges.attributes},
        )
    return module
