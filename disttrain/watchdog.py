"""What a process was doing when somebody's patience ran out: stacks of all its threads and of its worker processes.

A few words go to stderr, all of it into a file in the run directory. A rank that can still speak writes them itself
(`dump`). Of one that cannot, its guard does: Python's `faulthandler` answers a signal at once, also while the
interpreter is held up by a call of C, and writes into memory that others read from the kernel's table of open files.
Nothing is left of that memory, nor is there a file, unless it was needed.

With nothing but the standard library: the guard loads this file by itself.
"""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterable
from types import FrameType

_MEMORY = "disttrain-stacks"
_ASK = getattr(signal, "SIGRTMIN", signal.SIGUSR2) + 7
"""The signal that is answered by the stacks; of those that no library is known to use."""
_SECONDS_TO_ANSWER = 3.0
_LOOKS_TO_BE_SURE = 5
_MOST_FRAMES = 60
_MOST_SHOWN = 6
_MOST_THREADS_SHOWN = 6
_MOST_PROCESSES = 16
"""That are asked for their stacks."""
_MOST_BYTES = 1 << 20
_OURS = re.compile(r"notes|vigil|beat|memory monitor|look for STOP|end with the rank")
"""Threads that only watch: their stacks tell nothing."""

_PLUMBING = ("/watchdog.py", "/failure.py", "/disttrain/world.py", "/contextlib.py")
"""Through which a thread has come here."""
_BEGINNINGS = "/threading.py"

_listening = -1
_directory = ""
_place = ""
_dumping = threading.Lock()
_dumped: list[str] = []


def listen() -> int:
    """From now on, this process answers when it is asked for its stacks, and leaves them when it crashes.

    Returns:
        The memory that they will be in, a descriptor.
    """
    global _listening
    stop_listening()
    _listening = os.memfd_create(_MEMORY)
    if (
        "faulthandler" not in sys._xoptions and "PYTHONFAULTHANDLER" not in os.environ
    ):  # who asks for that, reads stderr
        faulthandler.enable(_listening)
    faulthandler.register(_ASK, _listening)
    return _listening


def stop_listening() -> None:
    """As a forked process has to, before it listens itself: it has the memory of the one that it comes from."""
    global _listening
    if _listening >= 0:
        faulthandler.unregister(_ASK)
        faulthandler.disable()
        os.close(_listening)
        _listening = -1


def write_to(directory: str, place: str) -> None:
    """Args:
    directory: of the run; what is written goes to `watchdog/` in it.
    place: this rank and host.
    """
    global _directory, _place
    _directory, _place = os.path.abspath(directory), place


def begin(directory: str, began: float) -> None:
    """Put what an earlier job has left into `watchdog/earlier`, in place of what was there.

    Args:
        began: when this job began, in seconds since 1970.
    """
    folder = os.path.join(directory, "watchdog")
    try:
        found = [e.name for e in os.scandir(folder) if e.is_file() and e.stat().st_mtime < began]
        if not found:
            return
        earlier = os.path.join(folder, "earlier")
        os.makedirs(earlier, exist_ok=True)
        for entry in os.scandir(earlier):
            os.unlink(entry.path)
        for name in found:
            os.replace(os.path.join(folder, name), os.path.join(earlier, name))
    except OSError:  # there is none; or another machine is at it
        pass


def dump(message: str, where: str, error: BaseException | None = None) -> str:
    """Write down what this process and its worker processes are doing; once, whoever calls it first: the others get
    the same lines.

    Args:
        message: what has happened.
        where: what this rank was doing.
        error: what has thrown the main thread out of what it did, just now.

    Returns:
        A few lines to put behind the message, with the place of the file.
    """
    with _dumping:
        if not _dumped:
            _dumped.append(_dump(message, where, error))
        return _dumped[0]


def _dump(message: str, where: str, error: BaseException | None) -> str:
    frames = sys._current_frames()
    threads = [(t.name, frames.get(t.ident or 0)) for t in threading.enumerate() if t is not threading.main_thread()]
    main = threading.main_thread()
    stacks = [(main.name, _of_frame(frames.get(main.ident or 0)) if error is None else _of_error(error))]
    stacks += [(name, _of_frame(frame)) for name, frame in threads]
    parts = ["\n".join([f"thread {name}", *(line.rstrip() for line in stack.format())]) for name, stack in stacks]
    shown = [
        _shown(name, [(f.name, f.filename, f.lineno or 0) for f in reversed(stack)])
        for name, stack in stacks
        if not _OURS.match(name)
    ]
    for process in descendants(os.getpid())[:_MOST_PROCESSES]:
        if text := stacks_of(process):
            parts.append(f"process {process} ({_command(process)})\n{text}")
            shown += shown_of(text, f"process {process}")
    return write(_directory, _place, message, where, parts, shown)


def write(directory: str, place: str, message: str, where: str, parts: Iterable[str], shown: list[str]) -> str:
    """Append to the rank's file in `watchdog/`.

    Args:
        directory: of the run; empty: not known yet, so there is no file.
        shown: lines that say the most of it.

    Returns:
        These lines, and where the file is.
    """
    if len(shown) > _MOST_THREADS_SHOWN:
        shown = [*shown[:_MOST_THREADS_SHOWN], f"and {len(shown) - _MOST_THREADS_SHOWN} more threads"]
    lines = [f"  {line}" for line in shown]
    if directory:
        when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        head = f"{when}, {place}, in {where}:\n{message}\n"
        name = re.sub(r"[^\w.-]+", "-", place) + ".txt"
        path = os.path.join(directory, "watchdog", name)
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "a", encoding="utf-8") as file:
                if file.tell() < _MOST_BYTES:
                    file.write("\n\n".join([head, *parts])[:_MOST_BYTES] + "\n\n")
            lines.append(f"  all stacks: {path}")
        except OSError as error:
            lines.append(f"  the stacks could not be written to {path}: {error.strerror}")
    return "".join(f"\n{line}" for line in lines)


def stacks_of(process: int) -> str:
    """What another process answers when it is asked for the stacks of its threads; "" if it does not listen.

    It is not asked when it is stopped: it would answer when nobody listens any more.
    """
    memory = _memory_of(process)
    if not memory or _state(process) in "Tt" or not _answers(process):
        return ""
    try:
        with open(memory, "rb") as file:
            begin = size = file.seek(0, os.SEEK_END)
            same = 0
            os.kill(process, _ASK)
            deadline = time.monotonic() + _SECONDS_TO_ANSWER
            while time.monotonic() < deadline:
                time.sleep(0.02)  # no longer than needed: the signal ends a sleep of C, and with it perhaps the hanging
                before, size = size, file.seek(0, os.SEEK_END)
                same = same + 1 if size == before > begin else 0
                if same == _LOOKS_TO_BE_SURE:  # it is through
                    break
            file.seek(begin)
            return file.read(_MOST_BYTES).decode(errors="replace").strip()
    except OSError:
        return ""


def descendants(process: int) -> list[int]:
    """Processes that it has started, and that those have."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as file:
                    parents[int(name)] = int(file.read().rpartition(")")[2].split()[1])
            except (OSError, IndexError, ValueError):
                continue
    found, look = [], [process]
    while look:
        parent = look.pop()
        children = sorted(child for child, its in parents.items() if its == parent)
        found += children
        look += children
    return found


def shown_of(text: str, who: str) -> list[str]:
    """The thread of `faulthandler`'s text that the signal reached, which is the main one where it can be, in a line."""
    for block in re.split(r"\n\n+", text):
        if block.startswith(("Current thread", "Fatal Python error")) or "\nCurrent thread" in block:
            calls = re.findall(r'^  File "(.*)", line (\d+) in (.*)$', block, re.MULTILINE)
            return [_shown(who, [(function, file, int(line)) for file, line, function in calls])]
    return []


def _shown(who: str, calls: list[tuple[str, str, int]]) -> str:
    """Innermost first."""
    at = next((n for n, (_, file, _) in enumerate(calls) if not file.endswith(_PLUMBING)), 0)
    while len(calls) > at + 1 and calls[-1][1].endswith(_BEGINNINGS):
        calls = calls[:-1]
    told = [
        f"{function} ({'/'.join(file.split('/')[-2:])}:{line})" for function, file, line in calls[at : at + _MOST_SHOWN]
    ]
    return f"{who}: {' < '.join(told)}"


def _of_frame(frame: FrameType | None) -> traceback.StackSummary:
    if frame is None:  # it has just ended
        return traceback.StackSummary()
    stack = traceback.StackSummary.extract(traceback.walk_stack(frame), limit=_MOST_FRAMES)
    stack.reverse()
    return stack


def _of_error(error: BaseException) -> traceback.StackSummary:
    return traceback.StackSummary.from_list(traceback.extract_tb(error.__traceback__)[-_MOST_FRAMES:])


def _memory_of(process: int) -> str:
    """The path by which its memory for stacks can be opened."""
    try:
        for number in os.listdir(f"/proc/{process}/fd"):
            path = f"/proc/{process}/fd/{number}"
            if os.readlink(path).startswith(f"/memfd:{_MEMORY}"):
                return path
    except OSError:
        pass
    return ""


def _answers(process: int) -> bool:
    """Whether it has a handler for the signal, which ends it otherwise: its guard has a rank's memory too."""
    try:
        with open(f"/proc/{process}/status") as file:
            caught = next(line for line in file if line.startswith("SigCgt:"))
    except (OSError, StopIteration):
        return False
    return bool(int(caught.split()[1], 16) >> (_ASK - 1) & 1)


def _state(process: int) -> str:
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def _command(process: int) -> str:
    try:
        with open(f"/proc/{process}/cmdline", "rb") as file:
            return file.read(200).replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""
