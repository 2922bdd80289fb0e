"""What ranks tell each other when one of them has failed, so that all end soon, and all know why."""

from __future__ import annotations

import re
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from . import guard, watchdog
from .config import ExperimentError
from .notes import Over, StoreLost
from .refusal import Leave, PeerError
from .stop import Stopped, StopRequest

if TYPE_CHECKING:
    from .world import World

_GRACE_SECONDS = 3.0
_SECONDS_TO_LEAVE = 5.0
"""For a rank that has heard that the job is over, to find out by itself and to say where it was."""
_SECONDS_BETWEEN_LOOKS = 1.0
_SECONDS_TO_BE_HEARD = 1.5


def say_over(world: World, error: BaseException) -> None:
    """Leave a note for the other ranks that this one has failed, and where, unless one of them has before."""
    if world.size == 1 or isinstance(error, GeneratorExit):
        return
    over = _over(world, error)
    if over is None:  # all ranks leave together, and have said why
        return
    try:
        world.notes.say_over(over, _GRACE_SECONDS)
        if world.is_lead:  # which takes the notes along: the others look each second
            time.sleep(_SECONDS_TO_BE_HEARD)
    except StoreLost:
        pass


def _over(world: World, error: BaseException) -> Over | None:
    if isinstance(error, Stopped):
        machine = world.machine if error.by_signal and world.num_machines > 1 else -1
        return None if error.agreed else Over(str(error), "stopped", error.code, machine)
    reason = error.__cause__ if isinstance(error, Leave) else error
    if reason is None:
        return None
    if isinstance(reason, PeerError):
        return Over(str(reason), "hang" if reason.hang else "failed")
    if isinstance(reason, ExperimentError):
        return Over(f"{world} was refused, and says why")
    return Over(f"{world} failed in {guard.place()}: {said(reason)}")


def ended(world: World, over: Over, where: str) -> Leave | PeerError:
    """What a rank raises that has heard that the job is over.

    Args:
        where: what this rank did, as "rank 0 on host could not go on in training".
    """
    if over.kind == "hang":
        return hung(f"{where}: {over.text}")
    if over.kind == "failed":
        return PeerError(f"{where}: {over.text}")
    # See `agree_to_stop` for the exit code.
    others = over.machine not in (-1, world.machine)
    text = f"{over.text}; of the machines, only number {over.machine} was told to" if others else over.text
    return Stopped(text, 1 if others else over.code, agreed=True)


def failed_meanwhile(world: World, stopped: Stopped) -> PeerError | None:
    """Whether this rank was told to stop only because another one has failed: torchrun ends all of them then."""
    if stopped.agreed or world.size == 1:
        return None
    try:
        over = world.notes.read_over(_GRACE_SECONDS)
    except StoreLost as lost:
        return without_store(world, guard.place(), lost)
    if over is None or over.kind == "stopped":
        return None
    text = f"{world} ends, in {guard.place()}: {over.text}"
    return hung(text, stopped) if over.kind == "hang" else PeerError(text)


def hung(text: str, error: BaseException | None = None) -> PeerError:
    """What a rank raises that has waited in vain, or has heard that another one has. Its stacks are written down now.

    Args:
        error: what has thrown the main thread out of what it did.
    """
    return PeerError(text, hang=True, stacks=watchdog.dump(text, guard.place(), error))


def hear_no_more() -> None:
    """This rank is on its way out: torchrun, which ends all ranks when one has failed, is not to cut off its last word.

    If it should take too long, torchrun ends it by SIGKILL, or its guard does.
    """
    with suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def explain(world: World, error: Exception, what: str) -> Leave | PeerError:
    """Find out why a collective failed.

    A rank that failed has said so before its connections closed. Otherwise, ranks that are stuck in the same place say
    so; those that stay silent are the ones waited for.
    """
    if isinstance(error, (PeerError, Stopped)):
        return error
    try:
        world.notes.set(f"stuck/{world.rank}", what, _GRACE_SECONDS)
        silent = [rank for rank in range(world.size) if rank != world.rank]
        deadline = time.monotonic() + _GRACE_SECONDS
        while (over := world.notes.read_over(_GRACE_SECONDS)) is None and silent and time.monotonic() < deadline:
            time.sleep(0.05)
            silent = [rank for rank in silent if not world.notes.check([f"stuck/{rank}"], _GRACE_SECONDS)]
    except StoreLost as lost:
        return without_store(world, what, lost, error)
    if over is not None:
        return ended(world, over, f"{world} could not go on in {what}")
    whom = f"rank{'s' if len(silent) > 1 else ''} {', '.join(map(str, silent))}" if silent else "the other ranks"
    text = f"{world} waited for {whom} in {what}, at most {world.timeout:g} s: {first_line(error)}"
    return hung(text) if ran_out(error) else PeerError(text)


def ran_out(error: Exception) -> bool:
    """Whether a wait ended because it had lasted long enough; else a connection is gone."""
    return re.search(r"time[d-]?\s?out", str(error), re.IGNORECASE) is not None


def without_store(world: World, what: str, lost: StoreLost, error: Exception | None = None) -> PeerError:
    """The notes could not be read."""
    first = f"{first_line(error)}; " if error is not None else ""
    text = (
        f"{world} could not go on in {what}: the store that rank 0 or its torchrun agent holds does not answer, so "
        f"rank 0, its machine or the network to it is gone ({first}{first_line(lost)})"
    )
    return hung(text) if lost.silent or (error is not None and ran_out(error)) else PeerError(text)


def leave_with_the_others(world: World) -> None:
    """End this process when the job is over and its main thread does not find out by itself. For a thread."""
    while not world.notes.trouble():
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    over = world.notes.over
    stopped = ended(world, over, "") if over is not None and over.kind == "stopped" else None
    if isinstance(stopped, Stopped):
        StopRequest.ask(stopped)
    time.sleep(_SECONDS_TO_LEAVE)
    if isinstance(stopped, Stopped):
        guard.leave(stopped.code, f"disttrain: {stopped}" if world.is_lead and not stopped.said else "")
    if trouble := world.notes.trouble():
        text = f"{world} ends, in {guard.place()}: {trouble}"
        # Where another rank has failed, this one is only in the middle of something.
        stacks = "" if over is not None and over.kind == "failed" else watchdog.dump(text, guard.place())
        guard.leave(1, f"disttrain: {text}{stacks}")


def said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def first_line(error: BaseException) -> str:
    """Of what torch says: without the place in its source, and without its advice."""
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return re.sub(r"^\[\S+:\d+\] ", "", line).partition(" This is typically ")[0]
