"""Collections of graphs: a PyG data set of several graphs, or what a function of the user's own returns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch_geometric.data
from torch_geometric.data import Data, HeteroData, InMemoryDataset
from torch_geometric.data.separate import separate

from ..config import DataSource, ExperimentError, PygData, PythonData
from .python import call_function
from .transforms import Filters, Transforms


def read_graphs(data: DataSource, anew: bool = False) -> Iterator[Any]:
    """The graphs of a collection that pass `data.pre_filter`, one after the other; each has been through
    `data.pre_transforms`.

    A data set is downloaded and processed where needed. None of the graphs is kept.

    Args:
        anew: a data set is processed again, whatever lies in its folder.

    Raises:
        ExperimentError: the source has no collection, or cannot be what the experiment says.
    """
    if isinstance(data, PygData):
        from .pyg import read_pyg_set

        found, origin = read_pyg_set(data, anew), f"data.dataset {data.dataset}"
    elif isinstance(data, PythonData):
        found, origin = call_function(data, anew), f"data.function {data.function}"
    else:
        raise ExperimentError(f"data.source: {data.source} gives one graph; a collection comes from pyg or python")
    if isinstance(found, (Data, HeteroData)) or not isinstance(found, (Iterable, torch_geometric.data.Dataset)):
        raise ExperimentError(
            f"{origin}: expected a collection of graphs, a list or iterator of Data or HeteroData or a data set of "
            f"PyG; got a {type(found).__name__}"
        )
    return _prepared(one_by_one(found), data)


def _prepared(graphs: Iterator[Any], data: DataSource) -> Iterator[Any]:
    passes, transform = Filters(data.pre_filter), Transforms(data.pre_transforms, "data.pre_transforms")
    for number, graph in enumerate(graphs):
        # What is no graph is refused by its number where it is put together with the others.
        if not isinstance(graph, (Data, HeteroData)):
            yield graph
        elif passes(graph):
            yield transform(graph, seed=number)


def one_by_one(found: Any) -> Iterator[Any]:
    """The graphs of a list, an iterator or a data set; of an `InMemoryDataset` those that its indices choose, without
    the copy of each that it would keep."""
    if not isinstance(found, InMemoryDataset):
        yield from found
        return
    for index in found.indices():
        if found.slices is None:
            graph = found.get(index)
        else:
            whole: Any = found._data
            graph = separate(whole.__class__, whole, int(index), found.slices, decrement=False)
        yield graph if found.transform is None else found.transform(graph)
