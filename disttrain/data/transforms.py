"""PyG transforms by name, or the user's own by dotted path."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch_geometric.transforms
from torch_geometric.data import Data, HeteroData

from ..config import ExperimentError
from .arguments import check_arguments
from .dotted import import_dotted
from .nearest import nearest

Graph = Data | HeteroData


def apply_transforms(graph: Any, transforms: Sequence[str | dict[str, dict[str, Any]]]) -> Any:
    """Apply the transforms of `data.transforms` in order.

    Those that draw at random do so under a fixed seed. Classes are constructed with their arguments; a function
    that a dotted path names is called with the graph and its arguments.

    Raises:
        ExperimentError: if a transform does not exist, does not take its arguments, or returns no graph.
    """
    if not transforms:
        return graph
    steps = [(where, transform) for i, entry in enumerate(transforms) for where, transform in _parse(entry, i)]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for where, transform in steps:
            try:
                graph = transform(graph)
            except Exception as error:
                raise RuntimeError(f"{where} failed on this graph: {type(error).__name__}: {error}") from error
            if not isinstance(graph, (Data, HeteroData)):
                raise ExperimentError(f"{where}: expected a Data or HeteroData back, got {type(graph).__name__}")
    return graph


def _parse(entry: str | dict[str, dict[str, Any]], position: int) -> list[tuple[str, Callable[[Any], Any]]]:
    where = f"data.transforms[{position}]"
    pairs = {entry: {}} if isinstance(entry, str) else entry
    return [(f"{where} {name}", _build(name, args or {}, f"{where} {name}")) for name, args in pairs.items()]


def _build(name: str, args: dict[str, Any], where: str) -> Callable[[Any], Any]:
    if ":" in name:
        found = import_dotted(name, where)
        if not isinstance(found, type):
            check_arguments(found, args, where, given=_first_parameter(found))
            return lambda graph: found(graph, **args)
    else:
        valid = torch_geometric.transforms.__all__
        if name not in valid:
            raise ExperimentError(
                f"{where}: torch_geometric.transforms has none of this name{nearest(name, valid)} "
                "(your own is written package.module:name)"
            )
        found = getattr(torch_geometric.transforms, name)
    check_arguments(found, args, where)
    return found(**_tuples(args))


def _first_parameter(function: Callable[..., Any]) -> list[str]:
    import inspect

    return list(inspect.signature(function).parameters)[:1]


def _tuples(args: dict[str, Any]) -> dict[str, Any]:
    """YAML knows no tuples: `"src,rel,dst"` becomes an edge type inside `metapaths`, where PyG wants tuples."""
    if "metapaths" not in args:
        return args

    def edge_type(value: Any) -> Any:
        return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else tuple(value)

    return {**args, "metapaths": [[edge_type(step) for step in path] for path in args["metapaths"]]}
