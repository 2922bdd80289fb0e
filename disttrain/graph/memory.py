"""How much memory this process may still take."""

from __future__ import annotations

from pathlib import Path

import psutil

_NO_LIMIT = 1 << 60


def available_memory() -> int:
    """Bytes: what the machine has free, or the control groups of this process (a container's, Slurm's) still allow.

    Pages of files count as free, as the kernel gives them up.
    """
    found = psutil.virtual_memory().available
    for line in _lines(Path("/proc/self/cgroup")):
        _, controllers, path = line.split(":", 2)
        if not controllers:
            root, limit, used, cached = Path("/sys/fs/cgroup"), "memory.max", "memory.current", "file"
        elif "memory" in controllers.split(","):
            root, limit, used = Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes"
            cached = "total_cache"
        else:
            continue
        # A limit of any group above holds too. Within a container the path may be that of the host: then the root's.
        group = root / path.strip("/")
        for folder in (group, *group.parents):
            if folder.is_relative_to(root):
                found = min(found, _left(folder, limit, used, cached))
    return max(found, 0)


def _left(folder: Path, limit: str, used: str, cached: str) -> int:
    most, taken = _lines(folder / limit), _lines(folder / used)
    if not most or not taken or most[0] == "max" or int(most[0]) >= _NO_LIMIT:
        return _NO_LIMIT
    statistics = dict(line.split(" ", 1) for line in _lines(folder / "memory.stat") if " " in line)
    return int(most[0]) - int(taken[0]) + int(statistics.get(cached, 0))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
