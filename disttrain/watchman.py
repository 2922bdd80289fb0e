"""The guard itself: the program that runs beside each rank.

- it ends a rank that shows no sign of life for as long as others wait for it (stopped, or stuck outside of Python);
- it tells a rank whose torchrun agent has died to stop, as the agent would have done, and ends it if it does not;
- it removes the temporary files of a rank that has ended, whatever its end;
- it says that a rank was killed, and where it was, when the rank could not say so;
- of a rank that it ends, and of one that has crashed, it says what all threads were doing (`watchdog.py`);
- it ends the torchrun agent of a rank that has ended, when that agent hangs: torch's client of the store on the first
  machine waits for an answer for as long as TCP does, a quarter of an hour or for ever, and does not hear SIGTERM.

It runs as a script, with nothing but the standard library (8 MB): no other module of this package can be imported here
(`watchdog.py`, which needs no more, is loaded from its file).
"""

from __future__ import annotations

import mmap
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

BEAT_SECONDS = 1.0
ROOM = 512
"""Bytes for where the rank is. The next one is not 0 once the guard was told to end."""
LESS_MEMORY = (
    "less memory is needed with a lower sampling.batch_size, sampling.fanout, sampling.prefetch or model.hidden, and "
    "with fewer ranks on a machine"
)
LOST_FILE = (
    "a file that is mapped into memory was cut short while it was in use, or its disk cannot be read: `disttrain "
    "verify` of the directory of the data tells which; start again when it is mended"
)
_SECONDS_TO_END = 300.0
_SECONDS_TO_STOP = 30.0
"""For a rank whose agent has died, before it has said how long others wait for it."""
_AGENT_SECONDS = 70.0
"""An agent that is well is never silent for so long: its own waits for the store end after 60 s."""
_AGENT_SECONDS_AFTER_SUCCESS = 360.0
"""Nor so long, when it waits for the agents of other machines, which it does for 300 s."""
_AGENT_SECONDS_TO_STOP = 10.0


class _Guard:
    """One rank's guard.

    Args:
        turn: of this rank on its machine: the first one's guard looks after the agent, the others if it does not.
        board: memory in which the rank writes where it is.
        stacks: memory in which it leaves its stacks, see `watchdog.listen`.
    """

    def __init__(self, rank: int, agent: int, turn: int, board: int, stacks: int, place: str) -> None:
        self.rank, self.agent, self.place = rank, _Agent(agent), place
        self.board, self.limit, self.turn = mmap.mmap(board, mmap.PAGESIZE), 0.0, turn
        self.stacks, self.directory = stacks, ""
        self.owned: list[str] = []
        """Temporary files and folders that go with the rank."""
        self.timeout = 0.0
        """How long others wait for the rank, and the rank for them; it may be silent for `limit` seconds."""
        self.silent, self.alone = 0.0, 0.0
        """Seconds that this process has seen pass; a pause of the whole machine does not count."""
        self.told_to_end = self.said_bye = self.done = False
        self.killed_before = _killed_for_memory()
        signal.signal(signal.SIGTERM, self._hear)
        signal.signal(signal.SIGINT, self._hear)

    def _hear(self, number: int, frame: object) -> None:
        self.told_to_end = True
        self.board[ROOM] = 1
        try:
            os.setsid()  # so that the SIGKILL that torchrun may send to the rank's group later leaves the guard
        except OSError:
            pass

    def watch(self) -> None:
        self._watch_rank()
        for path in self.owned:
            remove(path)
        # Whatever else has started ranks, a user's shell or program, is left alone.
        if is_torchrun(self.agent.process):
            self._see_agent_off()
        if self.agent.gone():
            _remove_empty_log_folders()

    def _watch_rank(self) -> None:
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
            self.agent.look()
            if self.agent.process and self.agent.gone() and _state(self.rank)[0] not in ("", "Z", "X"):
                self._left_alone()
        self._bury()

    def _read(self) -> bool:
        """Take what the rank says; False when its line is closed."""
        said = os.read(0, 1 << 16)
        for line in said.decode(errors="replace").split("\n"):
            word, _, rest = line.partition(" ")
            if word == "start":
                self.limit = float(rest)
            elif word == "limit":
                self.limit = self.timeout = float(rest)
            elif word == "own":
                self.owned.append(rest)
            elif word == "run":
                self.directory = rest
            elif word == "bye":
                self.said_bye, self.done = True, rest == "done"
                self.limit = max(self.limit, _SECONDS_TO_END)
        return bool(said)

    @property
    def where(self) -> str:
        return self.board[:ROOM].rstrip(b"\0").decode(errors="replace") or "starting"

    def _left_alone(self) -> None:
        if not self.alone:
            gone = f"process {self.agent.process} is gone"
            self._say(f"lost its torchrun agent ({gone}) in {self.where}: it is told to stop")
            self._signal(signal.SIGTERM)
        self.alone += BEAT_SECONDS
        if self.alone > (self.limit if self.timeout or self.said_bye else _SECONDS_TO_STOP):
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
            why = f"; {LOST_FILE}" if number == signal.SIGBUS else ""
            self._say(f"crashed in {self.where}: {signal.Signals(number).name}{why}", self._left_stacks)

    def _see_agent_off(self) -> None:
        """The rank is gone: end when its agent does, or starts another rank. End it if it hangs."""
        since = time.clock_gettime(time.CLOCK_BOOTTIME)
        patience = _AGENT_SECONDS_AFTER_SUCCESS if self.done else max(self.timeout, _AGENT_SECONDS)
        patience += 2 * _AGENT_SECONDS_TO_STOP * (self.turn > 0)
        agent, told = f"its torchrun agent (process {self.agent.process})", False
        while not self.agent.gone(BEAT_SECONDS) and not self.agent.has_started_ranks_since(since):
            self.agent.look()
            if self.done and self.agent.stopped:  # by who may let it go on
                continue
            if self.agent.silent <= patience:
                continue
            if told:
                self._say(f"has ended, and {agent} does not: it is killed")
                self.agent.signal(signal.SIGKILL)
                return
            why = "it was stopped, as by SIGSTOP" if self.agent.stopped else "the store that it asks does not answer"
            self._say(f"has ended, and {agent} shows no sign of life for {patience:g} s ({why}): it is told to end")
            self.agent.signal(signal.SIGTERM)
            told, patience, self.agent.silent = True, _AGENT_SECONDS_TO_STOP, 0.0

    def _why_killed(self) -> str:
        if _killed_for_memory() > self.killed_before:
            why = "the kernel's out-of-memory killer was at work on this machine"
        else:
            why = "if nobody did that by hand, the machine had probably no memory left (`dmesg` tells)"
        return f"{why}: {LESS_MEMORY}"

    def _kill(self, why: str) -> None:
        self._say(f"{why}: it is killed, so that the job can end", self._asked_stacks)
        self._signal(signal.SIGKILL)

    def _asked_stacks(self, watchdog: Any) -> list[tuple[str, str]]:
        processes = [self.rank, *watchdog.descendants(self.rank)]
        found = [(f"process {process}", watchdog.stacks_of(process)) for process in processes[:8]]
        return [(who, text) for who, text in found if text]

    def _left_stacks(self, watchdog: Any) -> list[tuple[str, str]]:
        size = os.fstat(self.stacks).st_size
        text = os.pread(self.stacks, min(size, 1 << 20), 0).decode(errors="replace").strip()
        return [(f"process {self.rank}", text)] if text else []

    def _signal(self, number: int) -> None:
        try:
            os.kill(self.rank, number)
        except ProcessLookupError:
            pass

    def _say(self, text: str, stacks: Callable[[Any], list[tuple[str, str]]] | None = None) -> None:
        """With a few lines of the stacks, which go into the run directory."""
        text = f"{self.place} {text}"
        try:
            if stacks is not None:
                watchdog = _load("watchdog")
                found = stacks(watchdog)
                parts = [f"{who}\n{stack}" for who, stack in found]
                shown = [line for who, stack in found for line in watchdog.shown_of(stack, who)]
                text += watchdog.write(self.directory, self.place, text, self.where, parts, shown)
            # One write, so that the lines of several processes do not mix.
            os.write(2, f"disttrain: {text}\n".encode())
        except OSError:
            pass


class _Agent:
    """The torchrun agent of a rank, seen from outside.

    While a rank runs, its agent looks after it ten times a second and asks its store; so its main thread wakes up all
    the time, unless it hangs.

    Args:
        process: 0: there is none.
    """

    def __init__(self, process: int) -> None:
        self.process, self.silent = process, 0.0
        """Seconds without a sign of life that this process has seen pass."""
        self.stopped = False
        self._began, self._wakes = _began(process), 0
        self._recently: list[bool] = []
        self._known_lively = False

    def gone(self, within: float = 0.0) -> bool:
        """Whether it has ended; waits for that for so many seconds."""
        while not (gone := _state(self.process)[0] in ("", "Z", "X") or _began(self.process) != self._began):
            if within <= 0:
                break
            time.sleep(0.2)
            within -= 0.2
        return gone

    def look(self) -> None:
        """To be called each `BEAT_SECONDS`."""
        wakes, state = _wakes(self.process), _state(self.process)[0]
        self.stopped = state != "" and state in "Tt"
        self._recently = [*self._recently[-4:], wakes != self._wakes]
        self._wakes = wakes
        if sum(self._recently) > 2:  # a wait that runs out wakes a hanging one once
            self.silent, self._known_lively = 0.0, True
        elif self._known_lively:  # there are kernels that do not count
            self.silent += BEAT_SECONDS

    def has_started_ranks_since(self, moment: float) -> bool:
        """After so many seconds of `CLOCK_BOOTTIME`: it is well, and they have guards of their own."""
        try:
            with open(f"/proc/{self.process}/task/{self.process}/children") as file:
                children = file.read().split()
        except OSError:
            return False
        return any(_began(int(child)) > moment for child in children)

    def signal(self, number: int) -> None:
        if not self.gone():
            try:
                os.kill(self.process, number)
            except OSError:  # gone this moment, or of another user
                pass


def remove(path: str) -> None:
    """A file, or a folder with all that is in it, if it is there."""
    try:
        if os.path.isdir(path):
            import shutil  # when it is needed: most guards never do

            shutil.rmtree(path, ignore_errors=True)
        else:
            os.unlink(path)
    except OSError:
        pass


def _load(name: str) -> Any:
    """A module that lies beside this one, by itself."""
    import importlib.util  # when it is needed: most guards never do

    spec = importlib.util.spec_from_file_location(name, os.path.join(os.path.dirname(__file__), f"{name}.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _remove_empty_log_folders() -> None:
    """Those that torchrun has made among the temporary ones, for logs that nobody asked for; it leaves them."""
    path = os.path.dirname(os.environ.get("TORCHELASTIC_ERROR_FILE", ""))
    while path and not os.path.basename(path).startswith("torchelastic_"):
        path = os.path.dirname(path) if os.path.dirname(path) != path else ""
    if not path:
        return
    for folder, _, _ in os.walk(path, topdown=False):
        try:
            os.rmdir(folder)
        except OSError:  # not empty, or gone
            pass


def find_agent() -> int:
    """The torchrun that has started this process, perhaps by way of a script."""
    process = os.getppid()
    while process > 1:
        if is_torchrun(process):
            return process
        process = _state(process)[1]
    return os.getppid()


def is_torchrun(process: int) -> bool:
    """Whether a process is an agent of torchrun, by its command."""
    try:
        with open(f"/proc/{process}/cmdline", "rb") as file:
            words = file.read().split(b"\0")[:8]
    except OSError:
        return False
    return any(os.path.basename(word) == b"torchrun" or word == b"torch.distributed.run" for word in words)


def _wakes(process: int) -> int:
    """How often the main thread of a process has been given a processor."""
    try:
        with open(f"/proc/{process}/status") as file:
            return sum(int(line.split()[1]) for line in file if "ctxt_switches:" in line)
    except OSError:
        return 0


def _began(process: int) -> float:
    """When a process started, in seconds of `CLOCK_BOOTTIME`; 0 of one that is gone."""
    try:
        with open(f"/proc/{process}/stat") as file:
            return int(file.read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    except OSError:
        return 0.0


def age(process: int) -> float:
    """Seconds since a process started."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - _began(process)


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
    _Guard(*map(int, sys.argv[1:6]), place=sys.argv[6]).watch()
