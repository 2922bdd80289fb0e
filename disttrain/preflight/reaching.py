"""Whether machines can reach each other at the addresses that gloo uses, and if not, why not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .machines import Machines, joined, listed
from .network import is_loopback
from .peers import Try

_MOST_PAIRS = 8
CHOOSE = (
    "Set GLOO_SOCKET_IFNAME (and NCCL_SOCKET_IFNAME) on every machine to the interface by which it reaches the others "
    "(`disttrain submit` does it from launch.interface)"
)


def addresses(machines: Machines) -> Iterator[str]:
    """Refusals of the addresses themselves."""
    without = {machine: facts for machine, facts in machines.items() if not facts.address}
    if without:
        each = "; ".join(
            f"{machines.name(machine)} has {listed(facts.interfaces)}, and {facts.address_from}"
            for machine, facts in without.items()
        )
        yield f"no address to talk from: {each}. {CHOOSE}"
    if not machines.apart:
        return
    looped = {machine: facts for machine, facts in machines.items() if is_loopback(facts.address)}
    if looped:
        each = "; ".join(
            f"{machines.name(machine)} would be {facts.address} ({facts.address_from}; it has "
            f"{listed(facts.interfaces)})"
            for machine, facts in looped.items()
        )
        yield (
            f"a loopback address, at which no other machine is reached, was chosen: {each}. {CHOOSE}, or let each "
            "machine's own name stand for its real address (/etc/hosts)"
        )
    for address, those in machines.by(lambda facts: facts.address).items():
        if address and not is_loopback(address) and len({machines.of[machine].network for machine in those}) > 1:
            reasons = dict.fromkeys(machines.of[machine].address_from for machine in those)
            yield (
                f"{machines.names(those)} all have the address {address} ({'; '.join(reasons)}): it belongs to a "
                f"network within each machine, as docker0 does. {CHOOSE}"
            )


def reached(machines: Machines, tries: Sequence[tuple[int, Try]]) -> Iterator[str]:
    """Refusals of pairs of machines that do not reach each other, where their addresses are not at fault."""
    doubtful = _doubtful(machines)
    failed = {
        (machine, tried.machine): tried
        for machine, tried in tries
        if tried.failed and tried.machine not in doubtful and machine not in doubtful
    }
    for kind, advice in _ADVICE.items():
        pairs = {pair: tried for pair, tried in failed.items() if tried.failed == kind}
        if not pairs:
            continue
        lines = [
            f"{machines.name(a)} {_DOES_NOT[kind]} {machines.name(b)} at {_at(machines, b)}{_detail(tried)}"
            for (a, b), tried in pairs.items()
        ]
        more = f" (and {len(lines) - _MOST_PAIRS} more pairs)" if len(lines) > _MOST_PAIRS else ""
        yield "; ".join(lines[:_MOST_PAIRS]) + more + _what_works(machines, failed) + f". {advice}"


def _doubtful(machines: Machines) -> set[int]:
    """Machines of whose addresses has been said that they are wrong."""
    if not machines.apart:
        return {machine for machine, facts in machines.items() if not facts.address}
    found = {machine for machine, facts in machines.items() if not facts.address or is_loopback(facts.address)}
    for those in machines.by(lambda facts: facts.address).values():
        if len({machines.of[machine].network for machine in those}) > 1:
            found.update(those)
    return found


_DOES_NOT = {
    "connect": "cannot connect to",
    "stranger": "reached something else than",
    "small": "gets no answer from",
    "large": "exchanges small messages only with",
}
_ADVICE = {
    "connect": (
        "Let the firewalls of these machines pass TCP on all ports between them (gloo and NCCL take any that is free), "
        "mend the route, or choose another interface (GLOO_SOCKET_IFNAME, launch.interface)"
    ),
    "stranger": (
        "That address belongs to another machine, or is translated on the way: choose the interface by which machines "
        "reach each other directly (GLOO_SOCKET_IFNAME, launch.interface)"
    ),
    "small": "Look at firewalls and proxies between them, or choose another interface (GLOO_SOCKET_IFNAME)",
    "large": (
        "Large packets are lost on the way: the MTU of an interface is larger than the path allows (`ip link set dev "
        "eth0 mtu 1400` on both sides, for instance), or a firewall drops ICMP 'fragmentation needed'"
    ),
}


def _at(machines: Machines, machine: int) -> str:
    address = machines.of[machine].address
    return f"[{address}]" if ":" in address else address


def _detail(tried: Try) -> str:
    return f" ({tried.detail})" if tried.detail else ""


def _what_works(machines: Machines, failed: dict[tuple[int, int], Try]) -> str:
    """Pairs of which one direction works: a firewall on one side, mostly."""
    one_way = [(a, b) for a, b in failed if (b, a) not in failed]
    if not one_way or len(one_way) > _MOST_PAIRS:
        return ""
    works = [f"{machines.name(b)} does reach {machines.name(a)}" for a, b in one_way]
    return f"; {joined(works)}"
