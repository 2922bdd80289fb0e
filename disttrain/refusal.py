"""What ranks do when the user's input is refused: compare what each was given, and say it once."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from .config.file import differences

if TYPE_CHECKING:
    from .notes import Notes

_SECONDS_TO_LISTEN = 5.0


class Leave(Exception):
    """Why this process ends has been said: there is nothing left but to leave with this exit code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class PeerError(RuntimeError):
    """Another rank failed, or did not answer in time. The message says who waited for whom, and in what.

    Args:
        hang: somebody waited in vain.
        stacks: what this rank was doing, in a few lines, see `watchdog.dump`.
    """

    def __init__(self, text: str, hang: bool = False, stacks: str = "") -> None:
        super().__init__(text)
        self.hang, self.stacks = hang, stacks


class Speaker(Protocol):
    """A rank that can leave notes for the others: a `World`, or a `Place` in one that is still to come."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def is_lead(self) -> bool: ...
    @property
    def leads_machine(self) -> bool: ...
    @property
    def notes(self) -> Notes: ...


def different_experiments(given: Sequence[tuple[str, Mapping[str, Any] | None]]) -> str:
    """What to say where ranks have not all been given the same experiment; empty if they have.

    Args:
        given: of each rank in order, its host and its settings; None where it is read elsewhere.
    """
    first_rank = next((rank for rank, (_, settings) in enumerate(given) if settings is not None), 0)
    first_host, first = given[first_rank]
    ranks_of: dict[tuple[str, ...], list[str]] = {}
    for rank, (host, settings) in enumerate(given):
        if settings is None or settings is first or settings == first:
            continue
        found = differences(first, settings, (f"on rank {first_rank}", "there"))
        if found:
            ranks_of.setdefault(tuple(found), []).append(f"rank {rank} on {host}")
    if not ranks_of:
        return ""
    blocks = [
        f"{', '.join(ranks)} read another experiment than rank {first_rank} on {first_host}:\n"
        + "\n".join(f"  {difference}" for difference in found)
        for found, ranks in ranks_of.items()
    ]
    return "\n".join([*blocks, "give every machine the same YAML file and the same overrides"])


def say_once(text: str, world: Speaker) -> None:
    """Print a refusal that other ranks may be about to print too: rank 0 does, the others listen and keep silent.

    A rank that does not hear of it within a few seconds was refused alone, and says so itself.
    """
    key = f"said/{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"
    if world.is_lead:
        print(f"disttrain: {text}", file=sys.stderr, flush=True)
        try:
            world.notes.set(key, "")
            # torchrun ends all ranks when the first one leaves, and rank 0 holds the notes. Those that do not answer
            # were not refused, or have gone.
            world.notes.listen([f"{key}/{rank}" for rank in range(1, world.size)], _SECONDS_TO_LISTEN)
        except RuntimeError:
            pass
        return
    try:
        heard = world.notes.listen([key], _SECONDS_TO_LISTEN)
    except RuntimeError:
        heard = False
    if not heard:
        print(f"disttrain: {world}: {text}", file=sys.stderr, flush=True)
        return
    if world.leads_machine:
        print(f"disttrain: {world} was refused too; rank 0 says why", file=sys.stderr, flush=True)
    try:
        world.notes.set(f"{key}/{world.rank}", "")
    except RuntimeError:
        pass
