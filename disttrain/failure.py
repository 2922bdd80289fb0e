"""What ranks tell each other when one of them has failed, so that all end soon, and all know why."""

from __future__ import annotations

import re
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from . import guard
from .config import ExperimentError
from .notes import StoreLost
from .refusal import Leave, PeerError

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
    reason = error.__cause__ if isinstance(error, Leave) else error
    if reason is None:  # all ranks leave together, and have said why
        return
    if isinstance(reason, PeerError):
        text = str(reason)
    elif isinstance(reason, ExperimentError):
        text = f"{world} was refused, and says why"
    else:
        text = f"{world} failed in {guard.place()}: {said(reason)}"
    try:
        world.notes.say_over(text, _GRACE_SECONDS)
        if world.is_lead:  # which takes the notes along: the others look each second
            time.sleep(_SECONDS_TO_BE_HEARD)
    except StoreLost:
        pass


def hear_no_more() -> None:
    """This rank is on its way out: torchrun, which ends all ranks when one has failed, is not to cut off its last word.

    If it should take too long, torchrun ends it by SIGKILL, or its guard does.
    """
    with suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def explain(world: World, error: Exception, what: str) -> PeerError:
    """Find out why a collective failed.

    A rank that failed has said so before its connections closed. Otherwise, ranks that are stuck in the same place say
    so; those that stay silent are the ones waited for.
    """
    if isinstance(error, PeerError):
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
        return PeerError(f"{world} could not go on in {what}: {over}")
    whom = f"rank{'s' if len(silent) > 1 else ''} {', '.join(map(str, silent))}" if silent else "the other ranks"
    return PeerError(f"{world} waited for {whom} in {what}, at most {world.timeout:g} s: {first_line(error)}")


def without_store(world: World, what: str, lost: StoreLost, error: Exception | None = None) -> PeerError:
    """The notes could not be read."""
    first = f"{first_line(error)}; " if error is not None else ""
    return PeerError(
        f"{world} could not go on in {what}: the store that rank 0 or its torchrun agent holds does not answer, so "
        f"rank 0, its machine or the network to it is gone ({first}{first_line(lost)})"
    )


def leave_with_the_others(world: World) -> None:
    """End this process when the job is over and its main thread does not find out by itself. For a thread."""
    while not world.notes.trouble():
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    time.sleep(_SECONDS_TO_LEAVE)
    if trouble := world.notes.trouble():
        guard.leave(1, f"disttrain: {world} ends, in {guard.place()}: {trouble}")


def said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def first_line(error: BaseException) -> str:
    """Of what torch says: without the place in its source, and without its advice."""
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return re.sub(r"^\[\S+:\d+\] ", "", line).partition(" This is typically ")[0]
