"""A rank's place among the others, before any process group is there; and what may look at it then."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

    from .notes import Notes


@dataclass(frozen=True)
class Place:
    """What a rank knows once it has reached the store."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    machine: int
    device: torch.device
    refused: str
    """Why it has not the device that it should have; empty if it has."""
    timeout: float
    notes: Notes

    @property
    def is_lead(self) -> bool:
        return self.rank == 0

    @property
    def leads_machine(self) -> bool:
        return self.local_rank == 0

    def __str__(self) -> str:
        return f"rank {self.rank} on {socket.gethostname()}"


class Preflight(Protocol):
    """What `World.start` asks before it makes process groups, in which a wrong set-up would fail or hang."""

    def reach(self, address: str, port: int, timeout: float, *, holds: bool, aloud: bool) -> None:
        """Wait until the store that rank 0 or its agent holds can be connected to.

        Args:
            holds: this rank is going to hold it.
            aloud: this rank speaks for its machine.
        """
        ...

    def look(self, here: Place) -> None:
        """Compare the ranks; every rank calls it, and it raises on all of them or on none."""
        ...


def shape_refusal(shapes: Sequence[tuple[str, int, int]]) -> str:
    """Why ranks cannot be a world; empty if they can.

    Args:
        shapes: of each rank in order, its host, the machine it says it is on, and how many ranks that runs.
    """
    if len({local_size for _, _, local_size in shapes}) > 1:
        listed = ", ".join(sorted({f"{host}: {local_size}" for host, _, local_size in shapes}))
        return f"every machine must run the same number of ranks (--nproc-per-node), got {listed}"
    if [machine for _, machine, _ in shapes] != [rank // shapes[0][2] for rank in range(len(shapes))]:
        return (
            "ranks must be numbered machine by machine, as torchrun does; got the machines "
            f"{[machine for _, machine, _ in shapes]} for ranks 0 to {len(shapes) - 1}"
        )
    return ""
