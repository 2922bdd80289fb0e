"""Collections of graphs: a PyG data set of several graphs, or what a function of the user's own returns."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import islice
from typing import Any

import torch.utils.data
from torch_geometric.data import Data, Dataset, HeteroData, InMemoryDataset, OnDiskDataset
from torch_geometric.data.separate import separate

from ..config import DataSource, ExperimentError, PygData, PythonData
from ..config.counted import counted
from ..own_code import OwnCodeError
from .dotted import import_dotted
from .python import call_function
from .transforms import Filters, Transforms

_READ_AT_ONCE = 64
"""Graphs of a data set on the disk."""
START = "start"
"""Parameter of a function of the user's own, by which it can begin at a graph."""


class GraphSource:
    """The graphs of a collection that pass `data.pre_filter`, as `data.pre_transforms` leave them. None is kept.

    A data set is downloaded and processed where needed.

    Args:
        data: `pyg` or `python`.
        anew: a data set is processed again, whatever lies in its folder.
        setting: that names a function, for messages.

    Raises:
        ExperimentError: the source has no collection, or cannot be what the experiment says.
    """

    def __init__(self, data: DataSource, anew: bool = False, setting: str = "data.function") -> None:
        if not isinstance(data, (PygData, PythonData)):
            raise ExperimentError(f"data.source: {data.source} gives one graph; a collection comes from pyg or python")
        self._data, self._anew = data, anew
        self._passes = Filters(data.pre_filter)
        self._transform = Transforms(data.pre_transforms, "data.pre_transforms")
        self._found: Any = None
        """What can be asked for any graph."""
        self._begun: Any = None
        """What nothing has been taken of yet."""
        self._seen = 0
        """How many graphs have been asked whether they pass."""
        self.setting = setting
        self.origin = f"data.dataset {data.dataset}" if isinstance(data, PygData) else f"{setting} {data.function}"

    def begin(self) -> None:
        """Construct the data set, or call the function, unless that may be costly where it is to start elsewhere."""
        if not self._takes_start and self._found is None and self._begun is None:
            self._begun, _ = self._found_from(0)

    def graphs(self, start: int = 0) -> Iterator[tuple[int, Any]]:
        """Each with its number in the source, from `start` on. What is no graph comes as it is.

        A function that returns an iterator is called again each time.
        """
        found, skipped = self._found_from(start)
        for number, graph in _told(one_by_one(found, start - skipped), start, self.origin):
            self._seen = number + 1
            # What is no graph is refused by its number where it is put together with the others.
            if not isinstance(graph, (Data, HeteroData)):
                yield number, graph
                continue
            try:
                kept = self._passes(graph)
                graph = self._transform(graph, seed=number) if kept else None
            except ExperimentError as error:
                raise ExperimentError(f"{self.origin}: graph {number}: {error}") from error
            except Exception as error:
                raise OwnCodeError(f"{self.origin}: graph {number}: {error}") from error
            if kept:
                yield number, graph

    @property
    def can_start(self) -> bool:
        """Whether going on at a graph costs less than going through all before it."""
        if self._takes_start:
            return True
        self.begin()
        return self._found is not None

    @property
    def total(self) -> int | None:
        """How many graphs there are before they are filtered; None: it is not known."""
        return len(self._found) if _has_places(self._found) else None

    @property
    def why_empty(self) -> str:
        """Said of a source that has given no graph."""
        if not self._seen:
            return f"{self.origin}: it has no graphs"
        return f"data.pre_filter: {self._passes} lets none of the {counted(self._seen, 'graph')} of {self.origin} pass"

    @cached_property
    def _takes_start(self) -> bool:
        if not isinstance(self._data, PythonData) or START in self._data.args:
            return False
        function = import_dotted(self._data.function, self.setting)
        try:
            return START in inspect.signature(function).parameters and not isinstance(function, type)
        except (TypeError, ValueError):
            return False

    def _found_from(self, start: int) -> tuple[Any, int]:
        """The data set, list or iterator, and with which graph it begins."""
        if self._found is not None:
            return self._found, 0
        if self._begun is not None:
            found, self._begun = self._begun, None
            return found, 0
        data = self._data
        if isinstance(data, PygData):
            from .pyg import read_pyg_set

            found = read_pyg_set(data, self._anew)
        elif self._takes_start:
            found = call_function(data, more={START: start}, setting=self.setting)
        else:
            found = call_function(data, self._anew, setting=self.setting)
        if isinstance(found, (Data, HeteroData)) or not isinstance(found, (Iterable, torch.utils.data.Dataset)):
            raise ExperimentError(
                f"{self.origin}: expected a collection of graphs, a list or iterator of Data or HeteroData or a data "
                f"set of PyG; got a {type(found).__name__}"
            )
        if self._takes_start:
            return found, start
        if _has_places(found):
            self._found = found
        return found, 0


def _has_places(found: Any) -> bool:
    """Whether it can be asked for any graph by its place."""
    return hasattr(found, "__len__") and hasattr(found, "__getitem__")


def one_by_one(found: Any, start: int = 0) -> Iterator[Any]:
    """The graphs of a list, an iterator or a data set from place `start` on; of an `InMemoryDataset` those that its
    indices choose, without the copy of each that it would keep."""
    if isinstance(found, InMemoryDataset):
        for index in list(found.indices())[start:]:
            yield _separated(found, int(index))
    elif isinstance(found, OnDiskDataset) and found._indices is None:
        for first in range(start, len(found), _READ_AT_ONCE):
            yield from found.multi_get(range(first, min(first + _READ_AT_ONCE, len(found))))
    elif isinstance(found, Dataset) or _has_places(found):
        for index in range(start, len(found)):
            yield found[index]
    else:
        yield from islice(found, start, None)


def _separated(found: InMemoryDataset, index: int) -> Any:
    if found.slices is None:
        graph = found.get(index)
    else:
        whole: Any = found._data
        graph = separate(whole.__class__, whole, index, found.slices, decrement=False)
    return graph if found.transform is None else found.transform(graph)


def _told(graphs: Iterator[Any], start: int, origin: str) -> Iterator[tuple[int, Any]]:
    """With the number of each; how far a source of the user's own came is said if it fails."""
    number = start
    while True:
        try:
            graph = next(graphs)
        except StopIteration:
            return
        except ExperimentError:
            raise
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            raise OwnCodeError(f"{origin}: it failed when it was asked for graph {number}: {said}") from error
        yield number, graph
        number += 1
