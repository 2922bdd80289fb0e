"""How much memory there is for this process, and what to do when it has run out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from .watchman import LESS_MEMORY

_NO_LIMIT = 1 << 60


class _Files(NamedTuple):
    """What a version of control groups calls its figures."""

    limit: str
    used: str
    cached: str
    """Of `memory.stat`: pages of files; of them, those of shared memory cannot be given up."""
    shared: str


_V1 = _Files("memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache", "total_shmem")
_V2 = _Files("memory.max", "memory.current", "file", "shmem")


def available_memory() -> int:
    """Bytes that this process may still take: what the machine has free, or its control groups (a container's, Slurm's)
    still allow.

    Pages of files count as free, as the kernel gives them up.
    """
    import psutil  # not before it is needed: the command line answers at once

    return max(min([psutil.virtual_memory().available, *(_left(*group) for group in _groups())]), 0)


def total_memory() -> int:
    """Bytes that the machine has, or that the control groups of this process allow."""
    import psutil

    return min([psutil.virtual_memory().total, *(_limit(*group) for group in _groups())])


def _groups() -> Iterator[tuple[Path, _Files]]:
    """The control groups of this process, and those above, whose limits hold too."""
    for line in _lines(Path("/proc/self/cgroup")):
        _, controllers, path = line.split(":", 2)
        if not controllers:
            root, files = Path("/sys/fs/cgroup"), _V2
        elif "memory" in controllers.split(","):
            root, files = Path("/sys/fs/cgroup/memory"), _V1
        else:
            continue
        # Within a container the path may be that of the host: then the root's.
        group = root / path.strip("/")
        for folder in (group, *group.parents):
            if folder.is_relative_to(root):
                yield folder, files


def _limit(folder: Path, files: _Files) -> int:
    most = _lines(folder / files.limit)
    return _NO_LIMIT if not most or most[0] == "max" else min(int(most[0]), _NO_LIMIT)


def _left(folder: Path, files: _Files) -> int:
    most, taken = _limit(folder, files), _lines(folder / files.used)
    if most == _NO_LIMIT or not taken:
        return _NO_LIMIT
    figures = dict(line.split(" ", 1) for line in _lines(folder / "memory.stat") if " " in line)
    return most - int(taken[0]) + int(figures.get(files.cached, 0)) - int(figures.get(files.shared, 0))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def memory_advice(error: BaseException) -> str | None:
    """A sentence for errors that say that memory has run out, on the machine or the GPU; None for others.

    Known by name and text: torch need not be imported.
    """
    text = str(error)
    if type(error).__name__ == "OutOfMemoryError" or "CUDA out of memory" in text:
        return f"the GPU had no memory left: {LESS_MEMORY}; train.precision=bf16 halves what the layers keep"
    if isinstance(error, MemoryError) or "can't allocate memory" in text or "Cannot allocate memory" in text:
        return f"the machine had no memory left: {LESS_MEMORY}"
    return None
