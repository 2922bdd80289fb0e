"""A small process beside each rank that torchrun started: it does what the rank itself cannot do any more.

See `watchman.py` for what that is. The functions here are for the rank.
"""

from __future__ import annotations

import atexit
import mmap
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.util import Finalize

from . import watchdog, watchman
from .watchman import BEAT_SECONDS, ROOM

_SECONDS_TO_START = 300.0
"""A rank may be silent for so long before it knows its timeout: libraries load from slow disks."""

_AFTER_OTHERS = -1000
"""That of multiprocessing's own folder is -100; the lowest comes last."""

_line: int | None = None
_board: mmap.mmap | None = None
"""Where this rank is, for its guard to read when it cannot say so any more."""
_where = "starting"
_agent = 0
_beats = True
_owned: list[str] = []


def start(place: str, turn: int, awaited: bool = False) -> None:
    """Begin to be guarded. Costs the start of an interpreter without torch, beside this one.

    Args:
        place: this rank and host, as messages name them.
        turn: which of the ranks on its machine it is.
        awaited: other ranks are going to wait for it.
    """
    global _line, _board, _agent
    reading, writing = os.pipe()
    page = os.memfd_create("where")
    os.truncate(page, mmap.PAGESIZE)
    # A shell that starts ranks is no agent, and may end before them.
    _agent = watchman.find_agent() if "TORCHELASTIC_RUN_ID" in os.environ else 0
    stacks = watchdog.listen()
    numbers = map(str, (os.getpid(), _agent, turn, page, stacks))
    command = [sys.executable, "-I", "-S", watchman.__file__, *numbers, place]
    # In the rank's session: what torchrun sends to the rank to end it, the guard hears too.
    subprocess.Popen(command, stdin=reading, stdout=subprocess.DEVNULL, pass_fds=[page, stacks])
    os.close(reading)
    os.set_blocking(writing, False)
    _line, _board = writing, mmap.mmap(page, mmap.PAGESIZE)
    os.close(page)
    threading.Thread(target=_beat, name="beat for the guard", daemon=True).start()
    if awaited:
        _tell(f"start {_SECONDS_TO_START}")


def stand(where: str) -> None:
    """What this rank does from now on, for messages. Cost: about a microsecond."""
    global _where
    _where = where
    if _board is not None:
        _board[:ROOM] = where.encode()[:ROOM].ljust(ROOM, b"\0")


@contextmanager
def standing(where: str) -> Iterator[None]:
    """`stand` while the block runs. After an error in it, that is still the place."""
    before = _where
    stand(where)
    yield
    stand(before)


def job_began() -> float:
    """When the job began that this rank belongs to, in seconds since 1970: what has started it may start it again."""
    return time.time() - watchman.age(_agent or os.getpid())


def told_to_end() -> bool:
    """Whether the guard has heard the signal by which torchrun ends ranks: all processes of their session get it."""
    return _board is not None and _board[ROOM] != 0


def place() -> str:
    """Where this rank stands."""
    return _where


def keep(directory: str, place: str) -> None:
    """Where the stacks of this rank go, should they be wanted: the directory of the run."""
    watchdog.write_to(directory, place)
    _tell(f"run {os.path.abspath(directory)}")


def expect_beats(seconds: float) -> None:
    """From now on, so long a silence means that others have given this rank up."""
    _tell(f"limit {seconds}")


def own(path: str) -> None:
    """A temporary file or folder that is to go with this process; with a rank that has a guard, however it ends."""
    if not _owned:  # what multiprocessing removes by itself, such as its temporary folder, it has to find
        Finalize(None, _remove_owned, args=(os.getpid(),), exitpriority=_AFTER_OTHERS)
    _owned.append(path)
    _tell(f"own {path}")


def _remove_owned(process: int) -> None:
    if os.getpid() == process:  # not one that was forked from it
        for path in _owned:
            watchman.remove(path)


def farewell(done: bool = False) -> None:
    """This rank ends by itself, and has said why if there is a reason.

    Args:
        done: all its work, and well.
    """
    global _beats
    _beats = False
    _tell("bye done" if done else "bye")


def leave(code: int, text: str = "") -> None:
    """End this process now, from whatever thread, after a last word.

    Loader threads and process groups whose peers are gone would keep the interpreter from ending.
    """
    farewell()
    _remove_owned(os.getpid())
    for stream in (sys.stdout, sys.stderr):
        try:
            if text and stream is sys.stderr:
                stream.write(f"{text}\n")  # one write, so that the lines of several ranks do not mix
            stream.flush()
        except OSError:
            pass
    os._exit(code)


def end_well(code: int) -> None:
    """End this process when all its work is done: what asked to be called at exit is called, then it leaves.

    Without the interpreter's teardown, in which gloo's threads abort now and then, a rank that did all its work would
    have failed. What the teardown would do is the kernel's work anyway.
    """
    stand("ending")
    farewell(done=code == 0)
    # Both may be the user's, and hang. As no more is heard from this rank, its guard ends it then.
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    leave(code)


def _beat() -> None:
    while _beats:
        _tell("alive")
        time.sleep(BEAT_SECONDS)


def _tell(line: str) -> None:
    if _line is not None:
        try:
            os.write(_line, f"{line}\n".encode())
        except OSError:  # the guard is gone, or does not listen
            pass
