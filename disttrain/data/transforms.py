"""PyG transforms by name, or the user's own by dotted path; and filters of the user's own."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch_geometric.transforms
from torch_geometric.data import Data, HeteroData

from ..config import DataSource, ExperimentError
from ..own_code import OwnCodeError
from .arguments import check_arguments
from .dotted import import_dotted
from .nearest import nearest

Graph = Data | HeteroData
Entries = Sequence[str | dict[str, dict[str, Any]]]


def transform_once(graph: Any, data: DataSource) -> Any:
    """The one graph of a source after `data.pre_transforms` and `data.transforms`.

    Raises:
        ExperimentError: as `Transforms`.
    """
    return Transforms(data.transforms)(Transforms(data.pre_transforms, "data.pre_transforms")(graph))


class Transforms:
    """Transforms that a setting names, in order. Classes are constructed with their arguments, once; a function that a
    dotted path names is called with the graph and its arguments.

    Raises:
        ExperimentError: a transform does not exist, or does not take its arguments.
    """

    def __init__(self, entries: Entries, setting: str = "data.transforms") -> None:
        self._steps = [(where, _build(name, args, where)) for name, args, where in _named(entries, setting)]

    def __call__(self, graph: Any, seed: int = 0) -> Any:
        """Args:
            seed: those that draw at random do so under it.

        Raises:
            ExperimentError: a transform returns no graph.
        """
        if not self._steps:
            return graph
        with drawing_apart():
            seed_draws(seed)
            return self.apply(graph)

    def apply(self, graph: Any, number: int | None = None) -> Any:
        """Without a seed of its own.

        Args:
            number: of the graph, for messages.

        Raises:
            ExperimentError: a transform returns no graph, or one of PyG's fails.
            OwnCodeError: one of the user's own fails.
        """
        for where, transform in self._steps:
            try:
                graph = transform(graph)
            except Exception as error:
                called = "this graph" if number is None else f"graph {number}"
                said = f"{where} failed on {called}: {type(error).__name__}: {error}"
                if ":" in where or isinstance(error, (MemoryError, OSError)):
                    raise OwnCodeError(said) from error
                raise ExperimentError(f"{said}; look at its arguments, and at what the graph has") from error
            if not isinstance(graph, (Data, HeteroData)):
                of = "" if number is None else f" of graph {number}"
                raise ExperimentError(f"{where}: expected a Data or HeteroData back{of}, got {type(graph).__name__}")
        return graph


class Filters:
    """Filters that a setting names; functions and classes as for `Transforms`, but all of the user's own.

    Raises:
        ExperimentError: a filter does not exist, or does not take its arguments.
    """

    def __init__(self, entries: Entries, setting: str = "data.pre_filter") -> None:
        self._steps: list[tuple[str, Callable[[Any], Any]]] = []
        for name, args, where in _named(entries, setting):
            if ":" not in name:
                raise ExperimentError(f"{where}: expected a function of your own, written package.module:name")
            self._steps.append((where, _build(name, args, where)))

    def __str__(self) -> str:
        return " with ".join(where.partition(" ")[2] for where, _ in self._steps)

    def __call__(self, graph: Any) -> bool:
        """Whether a graph passes all of them.

        Raises:
            ExperimentError: a filter answers neither yes nor no.
        """
        for where, passes in self._steps:
            try:
                answer = passes(graph)
            except Exception as error:
                raise OwnCodeError(f"{where} failed on this graph: {type(error).__name__}: {error}") from error
            if isinstance(answer, (Data, HeteroData)) or answer is None:
                raise ExperimentError(f"{where}: expected true or false back, got {type(answer).__name__}")
            if not answer:
                return False
        return True


class Drawn:
    """Whether anything was drawn from the generators since."""

    def __init__(self) -> None:
        self._python, self._arrays, self._tensors = _states()

    def __bool__(self) -> bool:
        python, arrays, tensors = _states()
        as_bytes = arrays[1].tobytes() != self._arrays[1].tobytes() or arrays[2:] != self._arrays[2:]
        return python != self._python or as_bytes or not torch.equal(tensors, self._tensors)

    def undo(self) -> None:
        random.setstate(self._python)
        np.random.set_state(self._arrays)  # noqa: NPY002
        torch.default_generator.set_state(self._tensors)


def _states() -> tuple[Any, Any, torch.Tensor]:
    return random.getstate(), np.random.get_state(), torch.default_generator.get_state()  # noqa: NPY002


@contextmanager
def drawing_apart() -> Iterator[Drawn]:
    """While the block runs the global generators of Python, NumPy and torch (CPU) may be seeded; afterwards they are as
    before. Not for several threads at a time."""
    drawn = Drawn()
    try:
        yield drawn
    finally:
        drawn.undo()


def seed_draws(seed: int) -> None:
    """Seed these generators, in some 13 microseconds: `torch.manual_seed`, which asks for accelerators too, takes 280.

    Args:
        seed: 0 to 2**63 - 1.
    """
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    torch.default_generator.manual_seed(seed)


def _named(entries: Entries, setting: str) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Name, arguments, and what messages call it."""
    for position, entry in enumerate(entries):
        for name, args in ({entry: {}} if isinstance(entry, str) else entry).items():
            yield name, args or {}, f"{setting}[{position}] {name}"


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
    try:
        return found(**_tuples(args))
    except Exception as error:
        if ":" in name:
            raise
        raise ExperimentError(f"{where} cannot be made: {type(error).__name__}: {error}") from error


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
