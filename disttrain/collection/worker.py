"""A process that makes mini-batches for a rank; `processes.py` is the rank's side of it.

It reads the collection from the files or the memory that the rank has, so it has no copy of its own, and ends with the
rank, whatever becomes of that.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from ctypes import CDLL
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
import torch

from .. import watchdog
from ..config import ExperimentError
from . import standing
from .parcel import Parcel, pack

_SECONDS_BETWEEN_LOOKS = 1.0
_DEATH_SIGNAL = 1
"""`prctl` (linux/prctl.h): the signal that this process gets when its parent ends."""


class Failure(NamedTuple):
    """What became of a batch that could not be made."""

    refused: bool
    """By an `ExperimentError`; else the traceback is there."""
    text: str
    graph: int
    """The one that was at hand; -1: none by itself."""
    trace: str = ""


def work(line: Connection, board: Any, rank: int, graphs: Any) -> None:
    """Make what is asked for, to the end.

    Args:
        line: to the rank. It says ("graphs", parcel), ("steps", number, parcel), ("make", number, step),
            ("forget", number) and ("end",), and gets (number, step, `Failure` or None), with a parcel where it is None.
        board: int64 [2], shared with the rank: see `standing`.
        rank: its process.
        graphs: the collection where this process was forked from the rank; else it comes by the line.
    """
    # The rank decides when to stop: torchrun and terminals send these to all processes.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _end_with(rank)
    watchdog.listen()
    torch.set_num_threads(1)
    standing.use(np.frombuffer(board, np.int64))
    steps: dict[int, Any] = {}
    with suppress(EOFError, OSError):  # the rank is gone, or wants no more
        while True:
            said = line.recv()
            if said[0] == "end":
                break
            if said[0] == "graphs":
                graphs = Parcel.receive(line).opened()
            elif said[0] == "steps":
                steps[said[1]] = Parcel.receive(line).opened()
            elif said[0] == "forget":
                steps.pop(said[1], None)
            elif said[1] in steps:
                _make(line, graphs, steps[said[1]], said[1], said[2])
    # What torch and numba would do at the end is the kernel's work anyway.
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(0)


def _make(line: Connection, graphs: Any, steps: Any, number: int, step: int) -> None:
    standing.at_step(step)
    try:
        parcel = pack(steps.make(graphs, step))
    except ExperimentError as error:
        line.send((number, step, Failure(True, str(error), standing.graph())))
        return
    except BaseException as error:  # whatever it is, the rank has to hear of it
        text = f"{type(error).__name__}: {error}"
        line.send((number, step, Failure(False, text, standing.graph(), traceback.format_exc())))
        return
    try:
        line.send((number, step, None))
        parcel.send(line)
    finally:
        parcel.close()
    standing.rest()


def _end_with(rank: int) -> None:
    """End this process when the rank ends, also from the middle of what it does."""
    threading.Thread(target=_await_end, args=[rank], name="end with the rank", daemon=True).start()
    if os.getppid() == rank:
        with suppress(OSError, AttributeError):  # at once, and also while the interpreter is held up
            CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


def _await_end(rank: int) -> None:
    try:
        death = os.pidfd_open(rank)
    except ProcessLookupError:
        os._exit(1)
    except (OSError, AttributeError):  # an old kernel
        while _is_there(rank):
            time.sleep(_SECONDS_BETWEEN_LOOKS)
    else:
        select.select([death], [], [])
    os._exit(1)


def _is_there(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
