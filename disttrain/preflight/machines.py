"""The machines of a job, as messages name them."""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterable, Sequence

from .facts import Facts
from .network import Interfaces, outward

_MOST_SHOWN = 4


class Machines:
    """Facts of each machine: those of its first rank.

    Args:
        firsts: in the order of machines.
    """

    def __init__(self, firsts: Sequence[Facts]) -> None:
        self.of = {facts.machine: facts for facts in firsts}

    def items(self) -> ItemsView[int, Facts]:
        return self.of.items()

    def __len__(self) -> int:
        return len(self.of)

    @property
    def apart(self) -> bool:
        """Whether they are more than several agents on one machine."""
        return len({facts.network for facts in self.of.values()}) > 1

    def name(self, machine: int) -> str:
        """Its host, and its number where others go by the same name."""
        host = self.of[machine].host
        namesakes = sum(facts.host == host for facts in self.of.values())
        return f"{host} (machine {machine})" if namesakes > 1 else host

    def names(self, those: Iterable[int]) -> str:
        """Some of them, and how many more."""
        those = list(those)
        if len(those) > _MOST_SHOWN + 1:
            return f"{', '.join(map(self.name, those[:_MOST_SHOWN]))} and {len(those) - _MOST_SHOWN} more"
        return joined([self.name(machine) for machine in those])

    def by(self, key: Callable[[Facts], str]) -> dict[str, list[int]]:
        """The machines for each value of something."""
        groups: dict[str, list[int]] = {}
        for machine, facts in self.items():
            groups.setdefault(key(facts), []).append(machine)
        return groups


def joined(names: Sequence[str]) -> str:
    """`a, b and c`."""
    return " and ".join([*[", ".join(names[:-1])][: len(names) > 1], *names[-1:]])


def listed(there: Interfaces) -> str:
    """Interfaces by which others might be reached, with their addresses."""
    found = [f"{name} ({addresses[0]})" for name, addresses in outward(there).items()]
    return ", ".join(found[:_MOST_SHOWN]) or "none but the loopback"
