"""How a mini-batch comes by its graphs: cut from the arrays, or as objects that transforms have changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from ..data.transforms import Transforms, drawing_apart, seed_draws
from ..sampling.kernels import shuffle_keys, stream_key
from . import standing
from .collated import Collated
from .joining import Names, join
from .objects import graphs_of

_TRANSFORMS = 0x7472616E
"""Stands where sampling has a step, so that transforms draw apart from it."""


class Access(Protocol):
    """Gives the graphs of a mini-batch. Pickles small, and opens what it reads where it is used."""

    def pick(self, ids: np.ndarray, epoch: int = 0, names: Names | None = None) -> tuple[Collated, np.ndarray]:
        """Graphs among which are those of these numbers, and which ones these are.

        Args:
            ids: int64 [n], each of 0 to the number of graphs - 1, also repeatedly.
            epoch: by which transforms draw at random.
            names: the attributes that are wanted; others may be there too. None: all.

        Returns:
            The graphs, and int64 [n]: the places among them of those asked for.

        Raises:
            ExperimentError: a graph cannot be read, or is not like the others.
        """
        ...


class Transformed:
    """The graphs after `data.transforms`, which are applied anew at each access.

    Graph objects of just these graphs are made, transformed, and put together again; so what is cut from them is cut by
    the same rules. Transforms that draw at random draw by (run seed, epoch, graph), whoever makes the batch. Not for
    several threads of a process at a time: the generators that transforms draw from are the process's own.

    Args:
        source: of the graphs as they are stored.
        transforms: of the experiment.
        own_class: of the graphs, where it is the user's own.
    """

    def __init__(self, source: Access, transforms: Sequence[Any], run_seed: int, own_class: Any = None) -> None:
        self.source, self.transforms, self.run_seed, self.own_class = source, tuple(transforms), run_seed, own_class
        self.like: Collated | None = None
        """Graphs after the transforms, see `look_over`; what others have to be like."""
        self._apply: Callable[[Any, int], Any] | None = None
        self._draws = False
        """A transform has been seen to draw at random; before that, that none did is checked after each batch."""

    def __getstate__(self) -> dict[str, Any]:
        # What the user's own transforms hold need not pickle; they are built where they are used.
        return {**self.__dict__, "_apply": None}

    def pick(self, ids: np.ndarray, epoch: int = 0, names: Names | None = None) -> tuple[Collated, np.ndarray]:
        assert self.like is not None
        if not len(ids):
            return self.like, ids
        return join(self.graphs(ids, epoch), ids, self.like, names), np.arange(len(ids))

    def graphs(self, ids: np.ndarray, epoch: int = 0) -> list[Any]:
        """Each as the transforms leave it.

        Raises:
            RuntimeError: a transform failed; names graph and transform.
            ExperimentError: it returns something else.
        """
        if self._apply is None:
            self._apply = Transforms(self.transforms).apply
        picked, places = self.source.pick(ids)
        with drawing_apart() as drawn:
            if not self._draws:
                made = self._transformed(graphs_of(picked, places, self.own_class), ids)
                if not drawn:
                    return made
                # From now on each graph has a seed, which costs as much as its object does.
                self._draws = True
            made = graphs_of(picked, places, self.own_class)
            return self._transformed(made, ids, _seeds(self.run_seed, epoch, ids))

    def _transformed(self, graphs: list[Any], ids: np.ndarray, seeds: Sequence[int] | None = None) -> list[Any]:
        assert self._apply is not None
        for n, number in enumerate(ids.tolist()):
            standing.at_graph(number)
            if seeds is not None:
                seed_draws(seeds[n])
            graphs[n] = self._apply(graphs[n], number)
        return graphs


def _seeds(run_seed: int, epoch: int, ids: np.ndarray) -> list[int]:
    """A well-mixed 63-bit seed for each graph."""
    key = np.uint64(stream_key(run_seed, epoch, _TRANSFORMS, 0, 0))
    return (shuffle_keys(key, ids) >> np.uint64(1)).tolist()
