"""A small process beside each rank that torchrun started: it does what the rank itself cannot do any more.

- it ends a rank that shows no sign of life for as long as others wait for it (stopped, or stuck outside of Python);
- it tells a rank whose torchrun agent has died to stop, as the agent would have done, and ends it if it does not;
- it says that a rank was killed, and where it was, when the rank could not say so.

The functions are for the rank. The guard runs this file as a script, with nothing but the standard library (8 MB).
"""

from __future__ import annotations

import atexit
import mmap
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

BEAT_SECONDS = 1.0
_ROOM = 512
LESS_MEMORY = (
    "less memory is needed with a lower sampling.batch_size, sampling.fanout, sampling.prefetch or model.hidden, and "
    "with fewer ranks on a machine"
)
_SECONDS_TO_END = 300.0
_SECONDS_TO_STOP = 30.0
"""For a rank whose agent has died, before it has said how long others wait for it."""

_line: int | None = None
_board: mmap.mmap | None = None
"""Where this rank is, for its guard to read when it cannot say so any more."""
_where = "starting"


def start(place: str) -> None:
    """Begin to be guarded. Costs the start of an interpreter without torch, beside this one.

    Args:
        place: this rank and host, as messages name them.
    """
    global _line, _board
    reading, writing = os.pipe()
    page = os.memfd_create("where")
    os.truncate(page, mmap.PAGESIZE)
    # In the rank's session: what torchrun sends to the rank to end it, the guard hears too.
    agent = os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else 0  # a shell that starts ranks may end before them
    command = [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(agent), place, str(page)]
    subprocess.Popen(command, stdin=reading, stdout=subprocess.DEVNULL, pass_fds=[page])
    os.close(reading)
    os.set_blocking(writing, False)
    _line, _board = writing, mmap.mmap(page, mmap.PAGESIZE)
    os.close(page)
    threading.Thread(target=_beat, name="beat for the guard", daemon=True).start()


def stand(where: str) -> None:
    """What this rank does from now on, for messages. Cost: about a microsecond."""
    global _where
    _where = where
    if _board is not None:
        _board[:_ROOM] = where.encode()[:_ROOM].ljust(_ROOM, b"\0")


@contextmanager
def standing(where: str) -> Iterator[None]:
    """`stand` while the block runs. After an error in it, that is still the place."""
    before = _where
    stand(where)
    yield
    stand(before)


def place() -> str:
    """Where this rank stands."""
    return _where


def expect_beats(seconds: float) -> None:
    """From now on, so long a silence means that others have given this rank up."""
    _tell(f"limit {seconds}")


def farewell() -> None:
    """This rank ends by itself, and has said why if there is a reason."""
    _tell("bye")


def leave(code: int, text: str = "") -> None:
    """End this process now, from whatever thread, after a last word.

    Loader threads and process groups whose peers are gone would keep the interpreter from ending.
    """
    farewell()
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
    farewell()
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    leave(code)


def _beat() -> None:
    while True:
        _tell("alive")
        time.sleep(BEAT_SECONDS)


def _tell(line: str) -> None:
    if _line is not None:
        try:
            os.write(_line, f"{line}\n".encode())
        except OSError:  # the guard is gone, or does not listen
            pass


class _Guard:
    """The guard's side."""

    def __init__(self, rank: int, agent: int, place: str, board: int) -> None:
        self.rank, self.agent, self.place = rank, agent, place
        self.board, self.limit = mmap.mmap(board, mmap.PAGESIZE), 0.0
        self.silent, self.alone = 0.0, 0.0
        """Seconds that this process has seen pass; a pause of the whole machine does not count."""
        self.told_to_end = self.said_bye = False
        self.killed_before = _killed_for_memory()
        signal.signal(signal.SIGTERM, self._hear)
        signal.signal(signal.SIGINT, self._hear)

    def _hear(self, number: int, frame: object) -> None:
        self.told_to_end = True

    def watch(self) -> None:
        try:
            death = os.pidfd_open(self.rank)
        except (OSError, AttributeError):  # an old kernel: the end of the line has to do
            death = 0
        while True:
            ready, _, _ = select.select([0, death], [], [], BEAT_SECONDS)
            if 0 in ready:
                if not self._read():
                    break
                self.silent = 0.0
            elif death in ready:
                break
            else:
                self.silent += BEAT_SECONDS
                if self.limit and self.silent > self.limit:
                    stopped = " (it was stopped, as by SIGSTOP)" if _state(self.rank)[0] in "Tt" else ""
                    self._kill(f"showed no sign of life for {self.limit:g} s{stopped} in {self.where}")
                    return
            state, parent = _state(self.rank)
            if self.agent and state not in ("", "Z", "X") and parent != self.agent:
                self._left_alone()
        self._bury()

    def _read(self) -> bool:
        """Take what the rank says; False when its line is closed."""
        said = os.read(0, 1 << 16)
        for line in said.decode(errors="replace").splitlines():
            word, _, rest = line.partition(" ")
            if word == "limit":
                self.limit = float(rest)
            elif word == "bye":
                self.said_bye = True
                self.limit = max(self.limit, _SECONDS_TO_END)
        return bool(said)

    @property
    def where(self) -> str:
        return self.board[:_ROOM].rstrip(b"\0").decode(errors="replace") or "starting"

    def _left_alone(self) -> None:
        if not self.alone:
            self._say(f"lost its torchrun agent (process {self.agent} is gone) in {self.where}: it is told to stop")
            self._signal(signal.SIGTERM)
        self.alone += BEAT_SECONDS
        if self.alone > (self.limit or _SECONDS_TO_STOP):
            self._kill(f"did not stop for {self.alone:g} s in {self.where}")

    def _bury(self) -> None:
        """The rank is gone. Say why, unless it has, or its agent wanted it so."""
        code = _exit_code(self.rank)
        number, status = (code & 0x7F, code >> 8) if code is not None else (None, None)
        if self.said_bye or self.told_to_end or self.alone or number in (signal.SIGTERM, signal.SIGINT):
            return
        if number == 0:
            self._say(f"left with exit code {status}, without a word, in {self.where}")
        elif number in (None, signal.SIGKILL):
            self._say(f"was killed in {self.where}; {self._why_killed()}")
        else:
            self._say(f"crashed in {self.where}: {signal.Signals(number).name}")

    def _why_killed(self) -> str:
        if _killed_for_memory() > self.killed_before:
            why = "the kernel's out-of-memory killer was at work on this machine"
        else:
            why = "if nobody did that by hand, the machine had probably no memory left (`dmesg` tells)"
        return f"{why}: {LESS_MEMORY}"

    def _kill(self, why: str) -> None:
        self._say(f"{why}: it is killed, so that the job can end")
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        try:
            os.kill(self.rank, number)
        except ProcessLookupError:
            pass

    def _say(self, text: str) -> None:
        # One write, so that the lines of several processes do not mix.
        try:
            os.write(2, f"disttrain: {self.place} {text}\n".encode())
        except OSError:
            pass


def _state(process: int) -> tuple[str, int]:
    """State letter and parent of a process; ("", 0) of one that is gone."""
    try:
        with open(f"/proc/{process}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return "", 0
    return fields[0], int(fields[1])


def _exit_code(process: int) -> int | None:
    """As `waitpid` gives it, of a process that nobody has waited for yet; None if somebody has."""
    for _ in range(200):
        try:
            with open(f"/proc/{process}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            return None
        if fields[0] in "ZX":
            return int(fields[49]) if len(fields) > 49 else None
        time.sleep(0.005)
    return None


def _killed_for_memory() -> int:
    """How many processes the kernel has killed for want of memory since the machine started."""
    try:
        with open("/proc/vmstat") as file:
            return next((int(line.split()[1]) for line in file if line.startswith("oom_kill ")), 0)
    except OSError:
        return 0


if __name__ == "__main__":
    _Guard(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])).watch()
