"""Arrays of one machine that are too large for memory and of no use afterwards: on the disk, without a name."""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import tempfile
from pathlib import Path

import numpy as np

from ..report.files import explaining
from ..world import World

_ALIGNED = mmap.ALLOCATIONGRANULARITY


class Scratch:
    """Arrays that all ranks of a machine see, in one file that has lost its name before anything is written to it.

    The disk has room for all of it before it is used: a full one is refused, and not a SIGBUS in the middle. The room
    is given back when the arrays are dropped by all ranks, also if these are killed.
    """

    def __init__(self, world: World, directory: Path, shapes: dict[str, tuple[tuple[int, ...], np.dtype]]) -> None:
        """Every rank calls it.

        Args:
            shapes: name -> shape and dtype; those of the first rank of the machine count.

        Raises:
            ExperimentError: on every rank: the folder of some machine is not there, or has no room.
        """
        sizes = {name: math.prod(shape) * dtype.itemsize for name, (shape, dtype) in shapes.items()}
        begins, total = {}, 0
        for name, size in sizes.items():
            begins[name], total = total, total + -(-size // _ALIGNED) * _ALIGNED
        what = "making room for the vectors between layers"
        advice = "Free some space, or name another folder with evaluate.scratch"

        def make() -> str | None:
            if not world.leads_machine:
                return None
            with explaining(directory, "a file for the vectors between layers", advice):
                handle, path = tempfile.mkstemp(prefix="disttrain-layers-", dir=directory)
                os.close(handle)
            return path

        made = world.gather(world.together(make, what), what)
        path = made[world.machine * world.local_size]
        assert path is not None
        try:
            self._handle = world.together(lambda: os.open(path, os.O_RDWR), what)
        finally:
            if world.leads_machine:
                with contextlib.suppress(OSError):
                    os.unlink(path)
        try:

            def reserve() -> None:
                if world.leads_machine and total:
                    with explaining(directory, f"the vectors between layers ({total / 2**20:,.0f} MiB)", advice):
                        _reserve(self._handle, total)

            world.together(reserve, what)
            self.arrays = {
                name: np.frombuffer(mmap.mmap(self._handle, sizes[name], offset=begins[name]), dtype).reshape(shape)
                if sizes[name]
                else np.empty(shape, dtype)  # it is written to as well: nothing, by a machine that owns none
                for name, (shape, dtype) in shapes.items()
            }
        finally:
            os.close(self._handle)  # the maps keep the file

    def __getitem__(self, name: str) -> np.ndarray:
        return self.arrays[name]


def _reserve(handle: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(handle, 0, size)
    else:
        os.ftruncate(handle, size)
