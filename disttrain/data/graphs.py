"""Collections of graphs: a PyG data set of several graphs, or what a function of the user's own returns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch_geometric.data
from torch_geometric.data import Data, HeteroData, InMemoryDataset
from torch_geometric.data.separate import separate

from ..config import DataSource, ExperimentError, PygData, PythonData
from .python import call_function
from .transforms import apply_transforms


def read_graphs(data: DataSource, anew: bool = False) -> Iterator[Any]:
    """The graphs of a collection, one after the other; each has been through `data.transforms`.

    A data set is downloaded and processed where needed. None of the graphs is kept.

    Args:
        anew: a data set of PyG is processed again, whatever lies in its folder.

    Raises:
        ExperimentError: the source has no collection, or cannot be what the experiment says.
    """
    if isinstance(data, PygData):
        from .pyg import read_pyg_set

        found, origin = read_pyg_set(data, anew), f"data.dataset {data.dataset}"
    elif isinstance(data, PythonData):
        found, origin = call_function(data), f"data.function {data.function}"
    else:
        raise ExperimentError(f"data.source: {data.source} gives one graph; a collection comes from pyg or python")
    if isinstance(found, (Data, HeteroData)) or not isinstance(found, (Iterable, torch_geometric.data.Dataset)):
        raise ExperimentError(
            f"{origin}: expected a collection of graphs, a list or iterator of Data or HeteroData or a data set of "
            f"PyG; got a {type(found).__name__}"
        )
    return _transformed(one_by_one(found), data)


def _transformed(graphs: Iterator[Any], data: DataSource) -> Iterator[Any]:
    for graph in graphs:
        # What is no graph is refused by its number where it is put together with the others.
        yield apply_transforms(graph, data.transforms) if isinstance(graph, (Data, HeteroData)) else graph


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
