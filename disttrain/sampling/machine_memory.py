"""Memory that the ranks of a machine share: a file without a name, gone with the last of them, however it ends."""

from __future__ import annotations

import mmap
import os
import tempfile

import numpy as np

from ..config import ExperimentError
from ..memory import available_memory
from ..world import World


def machine_memory(world: World, num_bytes: int, what: str, *, reserve: bool = False) -> np.ndarray:
    """uint8 [num_bytes], zeros, the same memory on all ranks of a machine. Every rank calls it.

    It begins at a page; what nobody has written takes no memory unless `reserve` is set.

    Args:
        num_bytes: what the machine's first rank says counts.
        what: it is for, in messages.
        reserve: take all of it now, so that there being too little is an error here rather than a crash later.

    Raises:
        ExperimentError: on every rank: a machine does not have so much.
    """
    own: list[int] = []

    def make() -> tuple[str, int] | None:
        if not world.leads_machine:
            return None
        available = available_memory() if reserve else num_bytes
        if num_bytes > available:
            raise ExperimentError(
                f"{num_bytes / 2**20:,.0f} MiB of memory for {what} were asked for, and "
                f"{available / 2**20:,.0f} MiB are available; ask for less"
            )
        file, path = _open()
        own.append(file)
        try:
            os.ftruncate(file, num_bytes)
            if reserve and num_bytes and hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file, 0, num_bytes)
        except OSError as error:
            raise ExperimentError(
                f"{num_bytes / 2**20:,.0f} MiB of memory for {what} were not to be had: {error.strerror}"
            ) from error
        return path, num_bytes

    def mapped() -> np.ndarray:
        try:
            file = own[0] if own else os.open(path, os.O_RDWR)
            try:
                return np.frombuffer(mmap.mmap(file, max(size, 1)), np.uint8, size)
            finally:
                if not own:
                    os.close(file)
        except OSError as error:
            raise ExperimentError(
                f"memory for {what} that another rank here has made cannot be mapped: {error}"
            ) from error

    path, size = "", 0
    try:
        made = world.gather(world.together(make, f"making room for {what}"), f"making room for {what}")
        here = made[world.machine * world.local_size]
        assert here is not None
        path, size = here
        return world.together(mapped, f"mapping memory for {what}")
    finally:
        for file in own:
            os.close(file)
        if own and not path.startswith("/proc/"):
            os.unlink(path)


def _open() -> tuple[int, str]:
    """An open file that lies in memory, and where other processes of this machine can open it.

    Where the system has none without a name (anything but Linux), it is a file among the temporary ones, for as long
    as it takes all to open it.
    """
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("disttrain")
        return file, f"/proc/{os.getpid()}/fd/{file}"
    return tempfile.mkstemp(prefix="disttrain-")
