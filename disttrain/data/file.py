"""A graph that was saved with `torch.save`."""

from __future__ import annotations

import os
import pickle

import torch
from torch_geometric.data import Data, HeteroData

from ..config import ExperimentError, FileData


def read_file(data: FileData) -> Data | HeteroData:
    """Load a `HeteroData` or `Data`, without unpickling anything else unless `trust` is set.

    PyG registers its own classes with PyTorch's restricted unpickler, so files of graphs that hold tensors, numbers
    and text need no trust.

    Raises:
        ExperimentError: if there is no such file, it needs `trust: true`, or it holds no graph.
    """
    if not os.path.isfile(data.path):
        raise ExperimentError(f"data.path: there is no file {data.path} (looked from {os.getcwd()})")
    try:
        graph = torch.load(data.path, map_location="cpu", weights_only=not data.trust)
    except pickle.UnpicklingError as error:
        if data.trust:
            raise ExperimentError(f"data.path: {data.path} cannot be read: {error}") from None
        reason = str(error).split("\n")[0]
        raise ExperimentError(
            f"data.path: {data.path} holds objects that are not loaded from a file of unknown origin ({reason}). "
            "If you made the file yourself, set data.trust: true"
        ) from None
    except (RuntimeError, EOFError) as error:
        raise ExperimentError(f"data.path: {data.path} is not a file of torch.save: {error}") from None
    if not isinstance(graph, (Data, HeteroData)):
        raise ExperimentError(f"data.path: expected a HeteroData or Data in {data.path}, got {type(graph).__name__}")
    return graph
