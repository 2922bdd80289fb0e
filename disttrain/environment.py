"""What torchrun says of this process, for those who must answer before torch is imported (1.5 s). See `world.py`."""

from __future__ import annotations

import os
import socket


def let_threads_sleep() -> None:
    """Before torch is imported: its idle compute threads sleep instead of spinning.

    Spinning ones take the cores from the loader's threads, which can make a small graph's epoch ten times as long.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def hush_torch() -> None:
    """Before torch is imported: its warnings about lost connections, with traces of C++, would drown what we say.

    `TORCH_CPP_LOG_LEVEL=WARNING` brings them back.
    """
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def started_by_torchrun() -> bool:
    """Whether there may be other ranks to talk to."""
    return "RANK" in os.environ


def place() -> str:
    """This rank and host, as messages name them."""
    return f"rank {os.environ.get('RANK', '0')} on {socket.gethostname()}"


def turn() -> int:
    """Which of the ranks on its machine this one is, 0-based."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def has_peers() -> bool:
    """Whether this process is one of several ranks."""
    return os.environ.get("WORLD_SIZE", "1") != "1"


def may_restart() -> bool:
    """Whether torchrun starts ranks again when some have failed, or machines were lost (`--max-restarts`)."""
    return os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0"


def job_name() -> str:
    """As torchrun has been told by `--rdzv-id`; "" without torchrun."""
    return os.environ.get("TORCHELASTIC_RUN_ID", "")
