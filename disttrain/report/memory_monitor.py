"""How much memory a rank takes, with its worker processes: looked at now and then, by a thread."""

from __future__ import annotations

import os
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import psutil
import torch

_SECONDS_BETWEEN_LOOKS = 1.0
_SECONDS_TO_END = 10.0
_MOST_SHARE = 0.01
"""Of a core's time may go into looking: after a look that took s seconds there is none for s / share seconds.

A look takes some 10 ms: for PSS the kernel walks over all pages of the processes."""


@dataclass(frozen=True)
class Memory:
    """Bytes, of one rank and the processes that it has started, or of several such together."""

    rss: float
    """Resident: what several processes map counts for each of them."""
    pss: float | None
    """A page that n processes map counts 1/n in each: these add up to what is really taken. None but on Linux."""
    gpu: float
    """The most that tensors have taken there so far."""

    def shown(self) -> str:
        """A few words for the line of progress."""
        gib = [f"{bytes_ / 2**30:.1f}" for bytes_ in (self.rss, self.pss or 0.0, self.gpu)]
        text = f"RSS {gib[0]}" if self.pss is None else f"PSS {gib[1]}, RSS {gib[0]}"
        return f"{text}{f', GPU {gib[2]}' if self.gpu else ''} GiB"

    def figures(self) -> dict[str, int]:
        """JSON; without what is not known."""
        known = {"rss": self.rss, "pss": self.pss, "gpu": self.gpu or None}
        return {name: int(value) for name, value in known.items() if value is not None}


class MemoryMonitor:
    """While the block runs, a thread looks each second, or less often where that would cost more than 1 % of a core."""

    def __init__(self, device: torch.device, seconds: float = _SECONDS_BETWEEN_LOOKS) -> None:
        self._device, self._seconds = device, seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory monitor", daemon=True)
        self._seen = look(os.getpid())
        self.peak_pss = self._seen[1]
        """The most that was seen; None where there is no PSS. Shorter than the time between two looks, a peak may be
        missed; `peak_rss_bytes` of the summary is the kernel's own, and misses none."""

    def __enter__(self) -> MemoryMonitor:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join(_SECONDS_TO_END)  # it may be in the middle of a look

    def latest(self) -> Memory:
        """As it was seen last; costs nothing."""
        return Memory(*self._seen, self.peak_gpu)

    @property
    def peak_gpu(self) -> int:
        return torch.cuda.max_memory_allocated(self._device) if self._device.type == "cuda" else 0

    def look(self) -> None:
        """Now, beside the thread's own turns."""
        self._seen = look(os.getpid())
        if self._seen[1] is not None:
            self.peak_pss = max(self.peak_pss or 0, self._seen[1])

    def _watch(self) -> None:
        wait = self._seconds
        while not self._over.wait(wait):
            start = time.thread_time()
            self.look()
            wait = max(self._seconds, (time.thread_time() - start) / _MOST_SHARE)


def look(pid: int) -> tuple[int, int | None]:
    """RSS and PSS of a process and all that it has started, in bytes; PSS None where the system does not say it."""
    rss, pss = 0, 0
    known = sys.platform == "linux"
    try:
        processes = [psutil.Process(pid)]
        processes += processes[0].children(recursive=True)
    except psutil.Error:
        processes = []
    for process in processes:
        try:
            rss += process.memory_info().rss
            if known:
                pss += pss_of(process.pid)
        except (psutil.NoSuchProcess, psutil.ZombieProcess, ProcessLookupError, FileNotFoundError):
            continue  # it has just ended
        except (psutil.Error, OSError):
            known = False
    return rss, pss if known else None


def pss_of(pid: int) -> int:
    """Bytes.

    Raises:
        OSError: the process is gone, or the kernel does not say.
    """
    for line in Path(f"/proc/{pid}/smaps_rollup").read_bytes().splitlines():
        if line.startswith(b"Pss:"):
            return int(line.split()[1]) * 1024
    raise ProcessLookupError(pid)  # what has ended, but was not waited for, has no pages
