"""A graph that was saved with `torch.save`."""

from __future__ import annotations

import importlib
import os
import pickle
import re
import zipfile
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
from torch_geometric.data.storage import BaseStorage, EdgeStorage, GlobalStorage, NodeStorage

from ..config import ExperimentError, FileData

# what a saved graph consists of besides tensors, numbers and text: containers that restore their __dict__, no more
_CONTAINERS = [Data, HeteroData, BaseStorage, NodeStorage, EdgeStorage, GlobalStorage, DataTensorAttr, DataEdgeAttr]


# arrays of numbers in NumPy's own form; objects in them would need classes that are not allowed
_ARRAYS = [np.ndarray, np.dtype, *(getattr(np.dtypes, name) for name in np.dtypes.__all__)]


def read_file(data: FileData) -> Any:
    """Load a `HeteroData` or `Data`, without unpickling anything else unless `trust` is set.

    PyTorch's restricted unpickler is allowed PyG's containers and NumPy's arrays, so files of graphs that hold tensors,
    arrays, numbers and text need no trust. Tensors are mapped, not read, so they take memory when they are used.
    What PyG's `InMemoryDataset` processed (`processed/data.pt`) is understood where it is one graph.

    Raises:
        ExperimentError: if there is no such file, it needs `trust: true`, or it holds no graph.
    """
    if not os.path.isfile(data.path):
        raise ExperimentError(f"data.path: there is no file {data.path} (looked from {os.getcwd()})")
    try:
        # leaving the context forgets what it allowed, also what PyG had allowed before
        allowed = set(torch.serialization.get_safe_globals())
        more = [kind for kind in (*_CONTAINERS, *_ARRAYS) if kind not in allowed]
        with torch.serialization.safe_globals([*more, *_array_makers()]):
            graph = torch.load(
                data.path, map_location="cpu", weights_only=not data.trust, mmap=_can_be_mapped(data.path)
            )
    except pickle.UnpicklingError as error:
        found = re.search(r"Unsupported \w+: (?:GLOBAL )?(\S+)", str(error))
        if data.trust or not found:
            raise ExperimentError(f"data.path: {data.path} is not a file of torch.save") from error
        raise ExperimentError(
            f"data.path: {data.path} holds objects of {found.group(1)}, which are not restored from a file of unknown "
            "origin. Save tensors, numbers and text only, or, if you made the file yourself, set data.trust: true"
        ) from None
    except ImportError as error:
        raise ExperimentError(f"data.path: {data.path} needs a package that is not installed: {error}") from None
    except MemoryError:
        raise
    except Exception as error:  # of what is not a pickle, the unpickler says so by whatever comes first
        raise ExperimentError(
            f"data.path: {data.path} is not a file of torch.save, or a damaged one: {type(error).__name__}: {error}"
        ) from None
    graph = _one_processed(graph)
    if not isinstance(graph, (Data, HeteroData)):
        raise ExperimentError(f"data.path: expected a HeteroData or Data in {data.path}, got {type(graph).__name__}")
    return graph


def _can_be_mapped(path: str) -> bool:
    """Whether it is of the format that torch.save writes since 1.6, a zip."""
    return zipfile.is_zipfile(path)


def _array_makers() -> list[Any]:
    """NumPy's functions that restore arrays and numbers, under the names that files of NumPy 1 and 2 have."""
    multiarray: Any = importlib.import_module(f"numpy.{'_core' if hasattr(np, '_core') else 'core'}.multiarray")
    makers = [multiarray._reconstruct, multiarray.scalar]
    return [(maker, f"numpy.{folder}.multiarray.{maker.__name__}") for maker in makers for folder in ("core", "_core")]


def _one_processed(graph: Any) -> Any:
    """What `InMemoryDataset.save` writes of one graph: attributes, no slices, and their class."""
    if isinstance(graph, (list, tuple)) and len(graph) in (2, 3) and graph[1] is None:
        attributes, kind = graph[0], graph[2] if len(graph) == 3 else None
        if isinstance(attributes, dict):
            return (kind if kind in (Data, HeteroData) else Data).from_dict(attributes)
        return attributes
    return graph[0] if isinstance(graph, (list, tuple)) and len(graph) == 1 else graph
