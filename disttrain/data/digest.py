"""What a graph is made from, as a hash."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Collection, Iterable

import torch
from torch import Tensor
from torch_geometric.data import HeteroData

from ..config import DataSource, ExperimentError, Task
from .dotted import import_dotted

# a change of how sources are read, that gives another graph from the same files, counts this up
_READER = 2

OF_RUNS = ("split", "transforms")
"""Settings of a collection that decide what runs make of it, not what is stored."""
NOT_DECIDING = (
    "root", "path", "trust", "memory_bytes", "storage", "store", "memory_limit", "in_memory", "ondisk_backend", "cache",
    "first", "reads",
)  # fmt: skip
"""Settings of a source that do not decide the graph: where its files lie, and how they are read."""


def add_settings(digest: hashlib.blake2b, data: DataSource, task: Task) -> None:
    """Hash the section, but for what does not decide the graph."""
    settings = data.model_dump(mode="json", exclude={*NOT_DECIDING, "pre_filter"})
    if not data.pre_transforms:
        del settings["pre_transforms"]  # as it was before there were any
    text = json.dumps([_READER, settings, task.kind, task.node_type, task.label], sort_keys=True)
    digest.update(text.encode())


def add_files(digest: hashlib.blake2b, files: Iterable[str]) -> None:
    """Hash names (without folders) and bytes, in the order given."""
    for path in files:
        try:
            with open(path, "rb") as file:
                digest.update(f"\n{os.path.basename(path)} {os.fstat(file.fileno()).st_size}\n".encode())
                while chunk := file.read(1 << 22):
                    digest.update(chunk)
        except FileNotFoundError:
            raise ExperimentError(f"data: there is no file {path}") from None
        except OSError as error:
            raise ExperimentError(
                f"data: {path} cannot be read: {error.strerror or error}; mend its permissions or the disk"
            ) from error


_STEPS = ("pre_filter", "pre_transforms", "transforms")


def own_transforms(data: DataSource, but: Collection[str] = ()) -> list[str]:
    """The filters and transforms of the user's own, by dotted path.

    Args:
        but: settings that do not count.
    """
    entries = [entry for setting in _STEPS if setting not in but for entry in getattr(data, setting)]
    return [name for entry in entries for name in ([entry] if isinstance(entry, str) else entry) if ":" in name]


def add_code(digest: hashlib.blake2b, data: DataSource, but: Collection[str] = ()) -> None:
    """Hash the files of the modules that `own_transforms` are in; not those that these import.

    Raises:
        ExperimentError: if there is no such transform.
    """
    for name in own_transforms(data, but):
        add_module(digest, name, f"data: {name}")


def add_module(digest: hashlib.blake2b, name: str, where: str) -> None:
    """Hash the file of the module that a dotted path names something in.

    Raises:
        ExperimentError: there is no such thing.
    """
    found = import_dotted(name, where)
    file = getattr(sys.modules.get(getattr(found, "__module__", "")), "__file__", None)
    if file is not None:
        add_files(digest, [file])


def add_tensors(digest: hashlib.blake2b, data: HeteroData) -> None:
    """Hash every tensor of a loaded graph: its place, dtype, shape and bytes."""
    for store in data.stores:
        for name, value in store.items():
            where = json.dumps([getattr(store, "_key", None), name])
            if not isinstance(value, Tensor):
                digest.update(f"\n{where} {value}\n".encode())
                continue
            digest.update(f"\n{where} {value.dtype} {tuple(value.shape)}\n".encode())
            digest.update(value.contiguous().reshape(-1).view(torch.uint8).numpy().data)
