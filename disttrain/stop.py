"""Requests to stop: by a signal, or by a file `STOP` in the run directory.

While a run trains, a request is remembered, and all ranks come to hear of it at the end of a step (`Gradient` carries
it along), write a checkpoint and leave. Before and after that there is nothing to save that is not saved already: a
request is an exception in the main thread, wherever it is, and the other ranks hear of it by a note.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, ClassVar

from . import guard
from .refusal import Leave, PeerError

if TYPE_CHECKING:
    from .config import Experiment
    from .world import World

NAME = "STOP"
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_SECONDS_BETWEEN_LOOKS = 1.0
_SECONDS_BETWEEN_AGREEMENTS = 1.0
_MOST_TIMES = 4
"""As many rounds as before lie between two agreements at most: rounds may become slower."""
_COARSE_SECONDS = 2.0
"""As file systems may round the time of a file."""
_INTERRUPTED = 128 + signal.SIGINT
_SAME_SECONDS = 10.0
"""Batch systems send SIGTERM to torchrun and to its ranks, and torchrun sends it to the ranks too: within so long, it
is the same request."""


class Stopped(Leave):
    """The run ends before it is over because somebody asked for that, and the same command goes on with it.

    Args:
        code: exit code, see `exit_code`.
        agreed: whether all ranks leave together; else the others are to hear of it.
        said: whether the user has been told.
        by_signal: which tells one machine, where the file tells the whole job.
    """

    def __init__(self, text: str, code: int, *, agreed: bool, by_signal: bool = False, said: bool = False) -> None:
        super().__init__(code)
        self.text, self.agreed, self.by_signal, self.said = text, agreed, by_signal, said

    def __str__(self) -> str:
        return self.text


def stopped_by(error: BaseException | None) -> Stopped | None:
    """The request that is behind an error: itself, or what other code has caught and wrapped in one of its own."""
    seen: list[BaseException] = []
    waiting = [error]
    while waiting:
        at = waiting.pop(0)
        if isinstance(at, Stopped):
            return at
        # A rank that has failed may have been told to stop before: that is no stop.
        if at is None or isinstance(at, PeerError) or any(at is other for other in seen):
            continue
        seen.append(at)
        waiting += [at.__cause__, at.__context__]
        failures = getattr(at, "failures", None)  # of torch.distributed.checkpoint: for each rank, error and stack
        if isinstance(failures, dict):
            of_ranks = [found[0] if isinstance(found, tuple) and found else found for found in failures.values()]
            waiting += [found for found in of_ranks if isinstance(found, BaseException)]
    return None


def exit_code(reason: str, otherwise: int) -> int:
    """130 after Ctrl-C: a loop in a shell around the command is to end as well."""
    return _INTERRUPTED if reason == "SIGINT" else otherwise


class StopRequest:
    """While the block runs, SIGTERM, SIGINT and SIGHUP are requests to stop. The innermost block hears them.

    A second signal of the same kind (SIGTERM: after ten seconds) does what it did outside of the block, and so does one
    that nobody has looked at when the block ends. SIGHUP is left alone where it is ignored, as under `nohup`. Where
    signals cannot be handled (not the main thread), nothing is changed.

    Args:
        at_once: a request raises `Stopped` in the main thread; else it is remembered in `reason`.
        code: exit code for that; but see `exit_code`.
    """

    _innermost: ClassVar[StopRequest | None] = None
    checkpoints: ClassVar[Path | None] = None
    """Where the run has one from which the same command goes on; None: it has none."""
    again: ClassVar[str] = "the same command"
    """What goes on from there."""

    def __init__(self, at_once: bool = False, code: int = 0) -> None:
        self._at_once, self._code = at_once, code
        self.reason = ""
        """The name of the signal, or the path of the file; empty: nobody has asked."""
        self.by_signal = False
        self._told: Stopped | None = None
        self._before: dict[int, Any] = {}
        self._outer: StopRequest | None = None
        self._terminated_at: float | None = None
        self._later, self._waits, self._leaving = False, False, False

    def __enter__(self) -> StopRequest:
        for number in _SIGNALS:
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue
            try:
                self._before[number] = signal.signal(number, self._hear)
            except ValueError:  # not the main thread
                break
        self._outer, StopRequest._innermost = StopRequest._innermost, self
        if self._outer is not None and not self.reason:  # what was raised there, some `except Exception` has swallowed
            self.reason, self.by_signal = self._outer.reason, self._outer.by_signal
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        StopRequest._innermost = self._outer
        for number in list(self._before):
            self._restore(number)
        if error is not None and self._outer is not None:
            self._outer._terminated_at = self._terminated_at
            self._outer._leaving = self._leaving or stopped_by(error) is not None
        if error is None and self.reason:  # it came too late to be heard here
            if self.by_signal:
                signal.raise_signal(signal.Signals[self.reason])
            else:
                StopRequest.ask(self.reason)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        now, before = time.monotonic(), self._terminated_at
        if number == signal.SIGTERM and before is None:
            self._terminated_at = now
        elif number == signal.SIGTERM and before is not None and now - before < _SAME_SECONDS:
            return
        else:
            self._restore(number)
            if number == signal.SIGTERM:
                signal.raise_signal(number)
                return
        if not self.reason:
            self.reason, self.by_signal = signal.Signals(number).name, True
        if not self._at_once or self._leaving:  # of what has stopped already, the others know, and the user
            return
        if self._later:
            self._waits = True
        else:
            raise self._stopped()

    def _stopped(self) -> Stopped:
        on = "the same command goes on, or begins again"
        if self.checkpoints is not None:
            on = f"{self.again} goes on from the checkpoint in {self.checkpoints}"
        return self._told or Stopped(
            f"stopped by {self.reason} in {guard.place()}; {on}",
            exit_code(self.reason, self._code),
            agreed=False,
            by_signal=self.by_signal,
        )

    @staticmethod
    @contextmanager
    def heard_after() -> Iterator[None]:
        """A request that comes while the block runs is raised at its end: for code of others that catches whatever is
        raised within it, and makes an error of its own of it. What fails by itself fails."""
        request = StopRequest._innermost
        in_main = threading.current_thread() is threading.main_thread()
        if request is None or not request._at_once or request._later or not in_main:
            yield
            return
        request._later = True
        try:
            yield
        finally:
            request._later = False
        if request._waits:
            request._waits = False
            raise request._stopped()

    def _restore(self, number: int) -> None:
        before = self._before.pop(number, None)
        if before is not None and signal.getsignal(number) == self._hear:  # else who leaves hears no more
            signal.signal(number, before)

    @staticmethod
    def ask(why: str | Stopped) -> None:
        """Ask this process to stop, from any thread.

        Args:
            why: the path of the file; or what another rank, which has stopped, has said.
        """
        request = StopRequest._innermost
        if request is None or request._leaving:
            return
        if isinstance(why, Stopped):
            request._told = request._told or why
        else:
            request.reason = request.reason or why
        if request._at_once and signal.SIGTERM in request._before:
            os.kill(os.getpid(), signal.SIGTERM)  # which reaches the main thread wherever it is

    @staticmethod
    def asked() -> bool:
        """Whether somebody has asked this process to stop, as far as Python has heard of it."""
        request = StopRequest._innermost
        return request is not None and (request.reason != "" or request._told is not None)


class StopFile:
    """While the block runs, a thread looks each second for the file `STOP` in a run directory, and asks to stop.

    The first rank of each machine does so: where the directory is not on a shared disk, any machine's will do, and
    where it is, the machine on which the file is made sees it at once. The disk may hang without the run noticing.

    One that is older than the job when the block begins was meant for another; it is removed, with a line that says so.
    Later ones count, whatever their time. The file has done its work when the block ends: it is removed. Where the
    directory is not there yet, it is made for the file, and removed if nothing else has come into it by the end.

    Args:
        began: when the job began, in seconds since 1970.
    """

    def __init__(self, directory: Path, began: float) -> None:
        self._path, self._began = directory / NAME, began - _COARSE_SECONDS
        self._ignored: float | None = None
        self._folders: list[Path] = []
        """That were made here, the innermost first."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="look for STOP", daemon=True)

    def __enter__(self) -> StopFile:
        folder = self._path.parent
        with suppress(OSError):  # where it cannot be made, the run says so
            self._folders = [at for at in (folder, *folder.parents) if not at.exists()]
            folder.mkdir(parents=True, exist_ok=True)
        made = self._made()
        if made is not None and made < self._began:
            removed = self._remove()
            self._ignored = None if removed else made
            then = "it is removed, and the run begins" if removed else "it counts for nothing"
            print(f"disttrain: {self._path} is older than this job: {then}", file=sys.stderr, flush=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if error is None or stopped_by(error) is not None:
            self._remove()
        with suppress(OSError):
            for made in self._folders:
                made.rmdir()

    def _look(self) -> None:
        while not self._over.wait(_SECONDS_BETWEEN_LOOKS):
            made = self._made()
            if made is not None and made != self._ignored:
                StopRequest.ask(str(self._path))
                return

    def _made(self) -> float | None:
        """When the file was made; None: there is none."""
        try:
            # Listing the folder, NFS asks its server again where it would believe for a while that there is no file.
            with os.scandir(self._path.parent) as entries:
                return next((entry.stat().st_mtime for entry in entries if entry.name == NAME), None)
        except OSError:
            return None

    def _remove(self) -> bool:
        try:
            self._path.unlink()
        except OSError:
            return False
        return True


class StopHere(Exception):
    """All ranks have agreed to stop here."""


class Agreement:
    """In a loop of as many rounds on every rank, the ranks ask each other each second or so whether to stop.

    How many rounds that is follows from what a round takes in the mean over ranks, which all of them know alike. Cost:
    an all-reduce of two numbers each time.
    """

    def __init__(self, world: World, request: StopRequest, what: str) -> None:
        self._world, self._request, self._what = world, request, what
        self._rounds, self._due = 0, 1
        self._asked_at = time.monotonic()

    def look(self) -> None:
        """At the end of each round.

        Raises:
            StopHere: on every rank in the same round.
        """
        self._rounds += 1
        if self._rounds < self._due:
            return
        mine = [float(bool(self._request.reason)), time.monotonic() - self._asked_at]
        stops, seconds = self._world.sum_of(mine, self._what)
        if stops:
            raise StopHere
        each = max(seconds / self._world.size / self._rounds, 1e-6)
        self._due = max(1, min(_MOST_TIMES * self._rounds, int(_SECONDS_BETWEEN_AGREEMENTS / each)))
        self._rounds, self._asked_at = 0, time.monotonic()


@contextmanager
def stop_file(experiment: Experiment, world: World, fresh: bool = False) -> Iterator[None]:
    """`StopFile` of a run, on the first rank of each machine.

    Args:
        fresh: the run does not go on from what is there.
    """
    there = Path(experiment.directory) / "checkpoints"
    StopRequest.again = "the same command without --fresh" if fresh else "the same command"
    with suppress(OSError):
        StopRequest.checkpoints = there if not fresh and any(there.glob("step-*/manifest.json")) else None
    with StopFile(Path(experiment.directory), guard.job_began()) if world.leads_machine else nullcontext():
        yield


def agree_to_stop(world: World, request: StopRequest, where: str) -> Stopped:
    """What all ranks raise that have agreed to stop, and have written a checkpoint. Every rank calls it.

    Where a signal has told only some machines to stop, those of the others end with 1: their torchrun is to go on
    without these machines if it may, and to end at once if not. With 0, it would wait for them for five minutes.
    """
    asked = world.gather((world.machine, world.host, request.reason, request.by_signal), "stopping")
    reason = next(reason for _, _, reason, _ in asked if reason)
    told = {machine: host for machine, host, why, _ in asked if why}
    some = len(told) < world.num_machines and all(by_signal for _, _, why, by_signal in asked if why)
    text = f"stopped by {reason} {where}"
    if some:
        text += f"; of the machines, only {', '.join(told.values())} {'were' if len(told) > 1 else 'was'} told to"
    code = exit_code(reason, 0) if not some or world.machine in told else 1
    return Stopped(text, code, agreed=True, said=True)
