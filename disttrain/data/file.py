"""A graph that was saved with `torch.save`."""

from __future__ import annotations

import os
import pickle
import re

import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
from torch_geometric.data.storage import BaseStorage, EdgeStorage, GlobalStorage, NodeStorage

from ..config import ExperimentError, FileData

# what a saved graph consists of besides tensors, numbers and text: containers that restore their __dict__, no more
_CONTAINERS = [Data, HeteroData, BaseStorage, NodeStorage, EdgeStorage, GlobalStorage, DataTensorAttr, DataEdgeAttr]


def read_file(data: FileData) -> Data | HeteroData:
    """Load a `HeteroData` or `Data`, without unpickling anything else unless `trust` is set.

    PyTorch's restricted unpickler is allowed PyG's containers, so files of graphs that hold tensors, numbers and text
    need no trust.

    Raises:
        ExperimentError: if there is no such file, it needs `trust: true`, or it holds no graph.
    """
    if not os.path.isfile(data.path):
        raise ExperimentError(f"data.path: there is no file {data.path} (looked from {os.getcwd()})")
    try:
        # leaving the context forgets what it allowed, also what PyG had allowed before
        allowed = set(torch.serialization.get_safe_globals())
        with torch.serialization.safe_globals([kind for kind in _CONTAINERS if kind not in allowed]):
            graph = torch.load(data.path, map_location="cpu", weights_only=not data.trust)
    except pickle.UnpicklingError as error:
        found = re.search(r"Unsupported \w+: (?:GLOBAL )?(\S+)", str(error))
        if data.trust or not found:
            raise ExperimentError(f"data.path: {data.path} is not a file of torch.save") from error
        raise ExperimentError(
            f"data.path: {data.path} holds objects of {found.group(1)}, which are not restored from a file of unknown "
            "origin. Save tensors, numbers and text only, or, if you made the file yourself, set data.trust: true"
        ) from None
    except (RuntimeError, EOFError) as error:
        raise ExperimentError(f"data.path: {data.path} is not a file of torch.save: {error}") from None
    if not isinstance(graph, (Data, HeteroData)):
        raise ExperimentError(f"data.path: expected a HeteroData or Data in {data.path}, got {type(graph).__name__}")
    return graph
