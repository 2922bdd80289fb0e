"""Where graphs come from: PyG data sets, saved files, the user's own functions, tables, and generators."""

from __future__ import annotations

import hashlib
from functools import cached_property
from pathlib import Path

from ..config import (
    DataSource,
    ExperimentError,
    FileData,
    GeneratedData,
    NodeRegression,
    OgbData,
    PygData,
    PythonData,
    TablesData,
    Task,
)
from .left_out import left_out_lines
from .loaded import LoadedGraph, conform, target_node_type
from .scratch import Scratch

__all__ = ["LoadedGraph", "Source", "fingerprint", "is_there", "left_out_lines", "load", "target_node_type"]


class Source:
    """One experiment's data: what decides it, and the graph itself. What can only be had by loading is loaded once."""

    def __init__(self, data: DataSource, task: Task, scratch: str | Path | None = None) -> None:
        """`scratch`: where arrays lie that are too large for memory, `$TMPDIR` if None; see `Scratch`."""
        self._data, self._task, self.scratch = data, task, scratch
        self._loaded: LoadedGraph | None = None

    @cached_property
    def fingerprint(self) -> str:
        """Hex digest of all that decides the loaded graph: the section's settings, and the bytes of its files,
        also of those that hold transforms of the user's own.

        What has no files (a function of the user's own, PyG's synthetic sets) is loaded, and its tensors are hashed.
        The task takes part by its node type and label, which decide the masks. PyG data sets that are not there yet are
        downloaded. Cost: reading the files once.

        Raises:
            ExperimentError: if a file is missing.
        """
        from .digest import add_code, add_files, add_settings, add_tensors
        from .folds import split_files

        data, digest = self._data, hashlib.blake2b(digest_size=16)
        add_settings(digest, data, self._task)
        add_code(digest, data)
        add_files(digest, split_files(data.split))
        if isinstance(data, TablesData):
            from .tables import table_files

            add_files(digest, table_files(data))
        elif isinstance(data, FileData):
            add_files(digest, [data.path])
        elif isinstance(data, OgbData):
            from .ogb import raw_files

            add_files(digest, raw_files(data))
        elif isinstance(data, PygData):
            from .pyg import files_beside

            files = files_beside(data)
            if files:
                add_files(digest, files)
            else:
                add_tensors(digest, self._kept().data)
        elif isinstance(data, PythonData):
            add_tensors(digest, self._kept().data)
        else:
            assert isinstance(data, GeneratedData)  # its settings say everything
        return digest.hexdigest()

    def _kept(self) -> LoadedGraph:
        if self._loaded is None:
            self._loaded = load(self._data, self._task, self.scratch)
        return self._loaded

    def load(self) -> LoadedGraph:
        """The graph, see `load`; it is not kept here any longer."""
        loaded, self._loaded = self._kept(), None
        return loaded


def fingerprint(data: DataSource, task: Task) -> str:
    """See `Source.fingerprint`."""
    return Source(data, task).fingerprint


def is_there(data: PygData | OgbData) -> bool:
    """Whether a data set lies in its root; nothing is downloaded or written to find out."""
    if isinstance(data, OgbData):
        from .ogb import is_there
    else:
        from .pyg import is_there
    return is_there(data)  # type: ignore[arg-type]


def load(data: DataSource, task: Task, scratch: str | Path | None = None) -> LoadedGraph:
    """Read the graph and divide the task's nodes into train, validation and test.

    The node type of the task has boolean `train_mask`, `val_mask` and `test_mask` afterwards: disjoint, labelled nodes
    only (a label that is NaN is none; nor is a negative class). Works in one process, and downloads where the source
    does. Tensors may lie on memory-mapped files.

    Args:
        scratch: where such files are made, `$TMPDIR` if None. They take no room any more when the tensors are gone.

    Raises:
        ExperimentError: where the source, the label or the split cannot be what the experiment says.
    """
    from .split import has_label, split_nodes
    from .transforms import transform_once

    if isinstance(data, TablesData):
        from .tables import read_tables

        loaded = read_tables(data, task, scratch)
        if not data.transforms and not data.pre_transforms:
            return loaded
        transformed = conform(transform_once(loaded.data, data), "data.transforms", scratch)
        for node_type, keys in loaded.keys.items():
            if node_type not in transformed.data.node_types or transformed.data[node_type].num_nodes != len(keys):
                raise ExperimentError(
                    f'data.transforms: they change which nodes of "{node_type}" there are, but each has a key of its '
                    "own; leave rows out by `where` instead"
                )
        return LoadedGraph(transformed.data, loaded.keys, {**loaded.info, **transformed.info})

    if isinstance(data, PygData):
        from .pyg import read_pyg

        graph, origin = read_pyg(data), f"data.dataset {data.dataset}"
    elif isinstance(data, OgbData):
        from .ogb import read_ogb

        with Scratch(scratch) as files:
            graph, origin = read_ogb(data, files), f"data.dataset {data.dataset}"
    elif isinstance(data, FileData):
        from .file import read_file

        graph, origin = read_file(data), f"data.path {data.path}"
    elif isinstance(data, PythonData):
        from .python import call_function

        graph, origin = call_function(data), f"data.function {data.function}"
    else:
        from .generated import generate

        graph, origin = generate(data), "data (generated)"
    loaded = conform(transform_once(graph, data), origin, scratch)
    target, numbers = target_node_type(loaded.data, task), isinstance(task, NodeRegression)
    if others := split_nodes(loaded.data, target, task.label, data.split, numbers=numbers):
        loaded.info["in_no_split"] = others
    if absent := int((~has_label(loaded.data[target][task.label].numpy(), numbers)).sum()):
        loaded.info["without_label"] = {target: absent}
    return loaded
