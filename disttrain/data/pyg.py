"""Data sets of `torch_geometric.datasets`, by the name of their class."""

from __future__ import annotations

import inspect
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import torch
import torch_geometric.datasets
from torch_geometric.data import Dataset, OnDiskDataset
from torch_geometric.data.dataset import _repr
from torch_geometric.io import fs

from ..config import ExperimentError, PygData
from .arguments import check_arguments
from .indexed import by_relation, with_labels
from .nearest import nearest
from .sockets import bounded_sockets

# what the experiment says in its own words
_OURS = {
    "root": "data.root",
    "transform": "data.transforms",
    "pre_transform": "data.pre_transforms",
    "pre_filter": "data.pre_filter",
}

_LAID_OUT: dict[str, tuple[str, tuple[str, ...]]] = {
    "HGBDataset": ("hgb", ("acm", "dblp", "imdb")),
    "DBLP": ("dblp", ()),
    "IMDB": ("imdb", ()),
    "Planetoid": ("planetoid", ("Cora",)),
    "TUDataset": ("tu", ("MUTAG", "PROTEINS", "ENZYMES")),
}
"""Class -> the folder in which `examples/lay_out_data.py` lays it out, and which of its sets, if it has several."""


class _Probe(Exception):
    """Raised in place of downloading, to learn which raw files a data set needs."""

    def __init__(self, raw_paths: list[str]) -> None:
        self.raw_paths = raw_paths


def read_pyg(data: PygData) -> Any:
    """Construct the data set (which downloads and processes it where needed) and return its one `Data` or `HeteroData`.

    Typed edges become relations, labels and splits by index become `y` and masks (see `indexed.py`).

    Raises:
        ExperimentError: if the class or an argument does not exist, the download fails, or it holds several graphs.
    """
    dataset = _construct(_dataset_class(data), data)
    if len(dataset) != 1:
        raise ExperimentError(
            f"data.dataset: {data.dataset} is a collection of {len(dataset)} graphs, and task.kind is about the nodes "
            "of one graph; choose a data set that is one graph, or task.kind graph_classification or graph_regression"
        )
    return with_labels(by_relation(dataset[0]))


def read_pyg_set(data: PygData, anew: bool = False) -> Dataset:
    """Construct a data set that is a collection of graphs.

    Args:
        anew: process it again, whatever PyG finds in its folder.

    Raises:
        ExperimentError: as `read_pyg`; or it is one graph.
    """
    dataset = _construct(processing(_dataset_class(data), anew), data)
    if len(dataset) == 1:
        raise ExperimentError(
            f"data.dataset: {data.dataset} is one graph, and task.kind is about the graphs of a collection; choose "
            "task.kind node_classification or node_regression, or a data set of several graphs"
        )
    return dataset


def processing(dataset_class: type[Dataset], anew: bool) -> type[Dataset]:
    """The class, which processes again what was stored after other filters or transforms than its own (PyG only warns).

    Args:
        anew: process again whatever lies there.
    """

    def process(dataset: Dataset) -> None:
        dataset.force_reload = dataset.force_reload or anew or _is_of_others(dataset)
        if dataset.force_reload and isinstance(dataset, OnDiskDataset):
            # It would append to what is there.
            for path in dataset.processed_paths:
                shutil.rmtree(path) if os.path.isdir(path) else Path(path).unlink(missing_ok=True)
        dataset_class._process(dataset)

    return type(dataset_class.__name__, (dataset_class,), {"_process": process, "__module__": dataset_class.__module__})


def _is_of_others(dataset: Dataset) -> bool:
    for name in ("pre_transform", "pre_filter"):
        path = os.path.join(dataset.processed_dir, f"{name}.pt")
        if not os.path.exists(path):
            continue
        try:
            same = torch.load(path, weights_only=True) == _repr(getattr(dataset, name))
        except (OSError, EOFError, RuntimeError, pickle.UnpicklingError):
            same = False
        if not same:
            print(f"[collection] {dataset.processed_dir} was made with another {name}; processing anew", flush=True)
            return True
    return False


def is_there(data: PygData) -> bool:
    """Whether the raw files lie in `root`; nothing is downloaded or written to find out.

    Raises:
        ExperimentError: if the class or an argument does not exist.
    """
    paths = _raw_paths(_dataset_class(data), data)
    return bool(paths) and all(fs.exists(path) for path in paths)


def raw_files(data: PygData) -> list[str]:
    """The raw files that decide the graph, downloaded where they are not there; empty for synthetic data sets."""
    dataset_class = _dataset_class(data)
    paths = _raw_paths(dataset_class, data)
    if paths and not all(fs.exists(path) for path in paths):
        _construct(dataset_class, data)
    return [file for path in paths for file in _files_below(path)]


def files_beside(data: PygData) -> list[str]:
    """`raw_files`, and what lies in the same folders below `root`: classes do not name all that they read (TUDataset
    names two of its files)."""
    files = raw_files(data)
    root = os.path.abspath(data.root)
    folders = {os.path.dirname(os.path.abspath(file)) for file in files}
    below = {file for folder in folders if folder.startswith(root + os.sep) for file in _files_below(folder)}
    return [*files, *sorted(below - {os.path.abspath(file) for file in files})]


def _files_below(path: str) -> list[str]:
    if not os.path.isdir(path):
        return [path] if os.path.exists(path) else []
    return sorted(os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names)


def _dataset_class(data: PygData) -> type[Dataset]:
    valid = torch_geometric.datasets.__all__
    if data.dataset not in valid:
        raise ExperimentError(
            f'data.dataset: torch_geometric.datasets has no "{data.dataset}"{nearest(data.dataset, valid)}'
        )
    dataset_class = getattr(torch_geometric.datasets, data.dataset)
    for name, place in _OURS.items():
        if name in data.args:
            raise ExperimentError(f'data.args: "{name}" is not an argument here; write it as {place}')
    check_arguments(dataset_class, data.args, "data.args", given=_OURS)
    return dataset_class


def _keywords(dataset_class: type[Dataset], data: PygData) -> dict[str, Any]:
    takes_root = "root" in inspect.signature(dataset_class).parameters
    return {**data.args, **({"root": data.root} if takes_root else {})}


def _construct(dataset_class: type[Dataset], data: PygData) -> Dataset:
    try:
        with bounded_sockets():
            return dataset_class(**_keywords(dataset_class, data))
    except OSError as error:
        missing = [path for path in _raw_paths(dataset_class, data) if not fs.exists(path)]
        if not missing:
            raise
        raise ExperimentError(
            f"data.dataset: {data.dataset} could not be downloaded ({error}); lay its raw files out yourself: "
            f"{', '.join(missing)}{_by_script(data)}"
        ) from error
    except (AssertionError, ValueError, KeyError) as error:
        import traceback

        frame = traceback.extract_tb(error.__traceback__)[-1]
        if frame.name != "__init__":
            raise
        # PyG checks the values of its arguments by assertions
        raise ExperimentError(
            f"data.args: {data.dataset} refuses {data.args or 'no arguments'}: {error or frame.line}"
        ) from error


def _by_script(data: PygData) -> str:
    """For data sets that `examples/lay_out_data.py` knows: how it lays them out."""
    below, names = _LAID_OUT.get(data.dataset, ("", ()))
    name = str(data.args.get("name", ""))
    if not below or (names and (name.lower() if below == "hgb" else name) not in names):
        return ""
    root = Path(data.root)
    fits = root.name == below
    target = root.parent if fits else Path("data")
    elsewhere = "" if fits else f", with data.root={target / below}"
    return (
        ". For what you have downloaded otherwise, in the repository of disttrain, `python examples/lay_out_data.py "
        f"FOLDER_OF_IT {target}` does that{elsewhere}"
    )


def is_outdated(data: PygData) -> bool:
    """Whether files that a data set has processed are older than raw files that it names or that lie beside these: PyG
    would take them all the same."""
    processed = [path for path in _raw_paths(_dataset_class(data), data, processed=True) if os.path.exists(path)]
    newest = max((os.path.getmtime(path) for path in files_beside(data)), default=0.0)
    return any(os.path.getmtime(path) < newest for path in processed)


def _raw_paths(dataset_class: type[Dataset], data: PygData, processed: bool = False) -> list[str]:
    """Args:
    processed: not the raw ones, but those that it makes of them.
    """

    def stop(dataset: Dataset) -> None:
        raise _Probe(list(dataset.processed_paths if processed else dataset.raw_paths))

    def nothing(dataset: Dataset) -> None:
        raise _Probe([])

    probe = type(dataset_class.__name__, (dataset_class,), {"_download": stop, "_process": nothing})
    try:
        probe(**_keywords(dataset_class, data))
    except _Probe as found:
        return found.raw_paths
    except (AssertionError, ValueError, KeyError):
        return []  # its own refusal is worded where it is constructed
    return []
