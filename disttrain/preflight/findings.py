"""From the facts of all ranks to what is wrong with them: each finding names the machines, and what to change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from typing import NamedTuple

from ..config.counted import counted
from ..place import shape_refusal
from ..refusal import different_experiments
from ..report.size import size
from . import reaching
from .facts import Facts
from .machines import Machines, joined, listed
from .peers import Try

CLOCK_SECONDS = 5.0
"""Clocks further apart are warned of."""
NCCL_BYTES = 10 << 20
"""Of /dev/shm, for each of several ranks of a machine: NCCL's smallest set of buffers between two GPUs."""
_LEAST_MEMORY = 256 << 20
"""For each rank: torch alone takes about that."""
_LEAST_DISK = 64 << 20
_FILES_APIECE = 8
"""Connections to another rank: of the two groups for control and gradients, and of loader workers."""
_FILES_BESIDE = 128

DECIDE = ("disttrain", "torch", "torch_geometric")
"""Packages of which all ranks must have the same version: what they send each other, or compute, could differ."""


class Finding(NamedTuple):
    text: str
    refuses: bool = True
    """Or else it warns."""


def findings(ranks: Sequence[Facts], tries: Sequence[tuple[int, Try]]) -> list[Finding]:
    """What is wrong, the cause before its consequences; nothing if all is well.

    Args:
        ranks: of all ranks, in their order.
        tries: between machines, each with the one that has tried.
    """
    if refused := _refused(ranks):
        return refused
    if shape := shape_refusal([(rank.host, rank.machine, rank.local_size) for rank in ranks]):
        return [Finding(shape)]
    machines = Machines([rank for rank in ranks if rank.local_rank == 0])
    # Ranks that were given different experiments may not even agree on whether to look any further.
    different = [Finding(text) for text in [different_experiments([(r.host, r.settings) for r in ranks])] if text]
    if not all(rank.wanted for rank in ranks):
        return different
    found = chain(
        reaching.addresses(machines),
        reaching.reached(machines, tries),
        (finding for look in _LOOKS for finding in look(ranks, machines)),
        _clocks(machines, tries),
    )
    made = [finding if isinstance(finding, Finding) else Finding(finding) for finding in found]
    return [*made, *different]


def told(found: Sequence[Finding]) -> tuple[str, list[str]]:
    """One message for all that is refused (empty: nothing is), and the warnings."""
    refusals, warnings = ([f.text for f in found if f.refuses is refuses] for refuses in (True, False))
    if len(refusals) > 1:
        body = "\n".join("- " + text.replace("\n", "\n  ") for text in refusals)
        return f"{len(refusals)} things are to be mended before this can start:\n{body}", warnings
    return "".join(refusals), warnings


def _refused(ranks: Sequence[Facts]) -> list[Finding]:
    texts = {rank.name: rank.refused for rank in ranks if rank.refused}
    if not texts:
        return []
    if len(texts) == len(ranks) and len(set(texts.values())) == 1:
        return [Finding(ranks[0].refused)]
    return [Finding("\n".join(f"{name}: {text}" for name, text in texts.items()))]


def _devices(ranks: Sequence[Facts], machines: Machines) -> Iterable[Finding]:
    without = [rank for rank in ranks if rank.device == "cpu"]
    if 0 < len(without) < len(ranks):
        names = ", ".join(rank.name for rank in without)
        yield Finding(
            f"{names} found no GPU, the other ranks did: mend the driver there (nvidia-smi), or give the container its "
            "GPUs, or set train.device=cpu for all"
        )
    if any(rank.device == "cuda" for rank in ranks):
        for machine, facts in machines.items():
            if facts.nccl_problem:
                yield Finding(
                    f"{machines.name(machine)}: {facts.nccl_problem}; it has {listed(facts.interfaces)}. Set it to one "
                    "that is there, or leave it unset"
                )


def _shared_gpus(ranks: Sequence[Facts], machines: Machines) -> Iterable[Finding]:
    sharing: dict[str, list[Facts]] = {}
    for rank in ranks:
        if rank.device_id:
            sharing.setdefault(rank.device_id, []).append(rank)
    for identity, those in sharing.items():
        if len(those) > 1:
            yield Finding(
                f"{joined([rank.name for rank in those])} would share one GPU ({those[0].device_name}, {identity}), "
                "which NCCL refuses: start one torchrun agent a machine with as many ranks as it has GPUs "
                "(--nproc-per-node), or give each agent GPUs of its own (CUDA_VISIBLE_DEVICES), or set train.device=cpu"
            )


def _versions(ranks: Sequence[Facts], machines: Machines) -> Iterable[Finding]:
    on_gpus = any(rank.device == "cuda" for rank in ranks)
    for package in dict.fromkeys(package for facts in machines.of.values() for package in facts.versions):
        decides = package in DECIDE or (package == "nccl" and on_gpus)
        # A build of torch (+cpu, +cu130) is no other version.
        exact = machines.by(partial(_version, package))
        coarse = machines.by(partial(_release, package))
        if len(coarse) > 1 and decides:
            yield Finding(
                f"{package} differs: {_each(machines, coarse)}. Install the same version on all machines: what ranks "
                "compute, or send each other, would differ"
            )
        elif len(coarse) > 1 or (len(exact) > 1 and package == "torch"):
            shown = coarse if len(coarse) > 1 else exact
            yield Finding(f"{package} differs: {_each(machines, shown)}; results may differ a little", refuses=False)
    same_version = len(machines.by(lambda facts: facts.versions.get("disttrain", ""))) == 1
    if same_version and len(sources := machines.by(lambda facts: facts.source)) > 1:
        yield Finding(
            f"disttrain's own files differ: {_each(machines, sources)} (checksums). Give all machines the same "
            "checkout or installation"
        )


def _version(package: str, facts: Facts) -> str:
    return facts.versions.get(package, "not installed")


def _release(package: str, facts: Facts) -> str:
    """As far as it matters: 3.11 of Python 3.11.2, torch without its build."""
    text = _version(package, facts)
    return ".".join(text.split(".")[:2]) if package == "python" else text.partition("+")[0]


def _each(machines: Machines, groups: dict[str, list[int]]) -> str:
    return ", ".join(f"{value} on {machines.names(those)}" for value, those in groups.items())


def _partitions(ranks: Sequence[Facts], machines: Machines) -> Iterable[Finding]:
    there = {machine: facts.partitions for machine, facts in machines.items() if facts.partitions is not None}
    if len({partitions.digest for partitions in there.values()}) <= 1:
        return
    if len({partitions.data for partitions in there.values()}) > 1:
        what = "made from different data"
        each = ", ".join(f"{machines.name(machine)}: {found.data[:12]}" for machine, found in there.items())
    else:
        what = "cut differently"
        each = ", ".join(
            f"{machines.name(machine)}: {counted(found.parts, 'partition')} ({found.digest[:8]})"
            for machine, found in there.items()
        )
    directory = next(iter(there.values())).directory
    yield Finding(
        f"partition.dir ({directory}) holds other partitions here and there, {what} ({each}): remove it where it is "
        "wrong, and that machine is sent its share; or give every machine the same (a shared disk, or copies)"
    )


def _shared_memory(ranks: Sequence[Facts], machines: Machines) -> Iterable[Finding]:
    """Only NCCL lays something there: what loader workers send is in memory without a name."""
    for machine, facts in machines.items():
        free, needed = facts.shared_memory_free, NCCL_BYTES * facts.local_size
        if facts.device == "cpu" or facts.local_size == 1 or not facts.nccl_shared_memory:
            continue
        if free is not None and free < needed:
            yield Finding(
                f"{machines.name(machine)} has {size(free)} left in /dev/shm, and NCCL lays at least {size(needed)} "
                f"there for {facts.local_size} ranks: give the container more (docker run --shm-size=1g, or "
                "--ipc=host), remove what earlier jobs left there, or set NCCL_SHM_DISABLE=1"
            )


def _room(ranks: Sequence[Facts], machines: Machines) -> Iterable[Finding]:
    for machine, facts in machines.items():
        needed = _LEAST_MEMORY * facts.local_size
        if facts.memory_free < needed:
            yield Finding(
                f"{machines.name(machine)} has {size(facts.memory_free)} of memory left for "
                f"{counted(facts.local_size, 'rank')}: start fewer (--nproc-per-node), or end what else runs there",
                refuses=False,
            )
        for what, disk in facts.disks.items():
            # Only the first machine writes to the run directory.
            if disk.free < _LEAST_DISK and (what != "run" or machine == 0):
                yield Finding(
                    f"{machines.name(machine)} has {size(disk.free)} left on the disk of {_DISKS[what]} ({disk.path})",
                    refuses=False,
                )


_DISKS = {"run": "the run directory", "partitions": "the partitions", "scratch": "evaluate.scratch"}


def _files(ranks: Sequence[Facts], machines: Machines) -> Iterable[Finding]:
    needed = _FILES_APIECE * len(ranks) + _FILES_BESIDE
    few = [machine for machine, facts in machines.items() if 0 <= facts.open_files < needed]
    if few:
        yield Finding(
            f"a process on {machines.names(few)} may have {machines.of[few[0]].open_files} files open, and connections "
            f"to {counted(len(ranks), 'rank')} take about {needed:,}: raise the limit (ulimit -n)",
            refuses=False,
        )


_LOOKS: tuple[Callable[[Sequence[Facts], Machines], Iterable[Finding]], ...] = (
    _devices, _shared_gpus, _versions, _partitions, _shared_memory, _room, _files,
)  # fmt: skip


class Ahead(NamedTuple):
    """How far a machine's clock is ahead of that of machine 0."""

    seconds: float
    within: float


def clocks(tries: Iterable[tuple[int, Try]]) -> dict[int, Ahead]:
    """For each machine that has tried machine 0, or has been tried by it."""
    found: dict[int, Ahead] = {}
    for machine, tried in tries:
        if tried.failed:
            continue
        if machine == 0:
            found[tried.machine] = Ahead(tried.clock, tried.seconds / 2)
        elif tried.machine == 0:
            found.setdefault(machine, Ahead(-tried.clock, tried.seconds / 2))
    return found


def _clocks(machines: Machines, tries: Sequence[tuple[int, Try]]) -> Iterable[Finding]:
    apart = {
        machine: ahead.seconds
        for machine, ahead in sorted(clocks(tries).items())
        if abs(ahead.seconds) - ahead.within > CLOCK_SECONDS
    }
    if apart:
        each = ", ".join(
            f"that of {machines.name(machine)} is {abs(ahead):,.0f} s {'ahead' if ahead > 0 else 'behind'}"
            for machine, ahead in apart.items()
        )
        yield Finding(
            f"clocks are apart: {each} of {machines.name(0)}'s. Nothing is decided by them, but logs are hard to "
            "compare, and files on a shared disk look newer or older than they are: let ntp or chrony set them",
            refuses=False,
        )
