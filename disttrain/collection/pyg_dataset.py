"""A collection as a folder that PyG's own `OnDiskDataset` opens."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np
from torch_geometric.data import OnDiskDataset

from ..config import ExperimentError
from ..graph.landing import landing
from .collated import Collated
from .leaves import leaves
from .objects import graphs_of

_BYTES_OF_PICKLE = 2500
"""About as much does torch write around each graph."""
_AT_ONCE = 256


def write_dataset(collated: Collated, directory: Path, say: Callable[[str], None] = lambda text: None) -> None:
    """Write the graphs, as objects that torch pickles: `OnDiskDataset(directory)` then has them, in the same order.

    The folder appears when it is whole. Memory is that of some hundred graphs.

    Args:
        say: is told how far it is, every so often.

    Raises:
        ExperimentError: the folder is there and not empty, cannot be written to, or the disk is full.
    """
    values = sum(leaf.values.nbytes for leaf in leaves(collated).values())
    num_bytes = values + _BYTES_OF_PICKLE * len(collated)
    with landing(directory, num_bytes, called="folder", contents="the graphs", setting="--to") as partial:
        try:
            dataset = OnDiskDataset(str(partial), log=False)
            for start in range(0, len(collated), _AT_ONCE):
                ids = np.arange(start, min(start + _AT_ONCE, len(collated)))
                # Clones, since torch saves all of the memory that a view is of.
                dataset.extend([graph.clone() for graph in graphs_of(collated, ids)])
                if start // _AT_ONCE % 40 == 39:
                    say(f"{ids[-1] + 1:,} of {len(collated):,} graphs")
            dataset.close()
        except sqlite3.Error as error:
            raise ExperimentError(
                f"{directory} cannot be written: {error}; make room, or name another, --to"
            ) from error
