"""What `disttrain doctor` prints."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from ..report.size import size
from ..report.titled import titled
from .facts import Facts
from .findings import clocks
from .report import Report

_WIDE = 140
"""Columns, where the output goes to a file."""


def show_report(report: Report) -> None:
    """Print a table of all ranks, one of the machines, and the versions."""
    console = Console(file=sys.stdout, soft_wrap=True, highlight=False)
    if not console.is_terminal:
        console.width = _WIDE
    console.print(_ranks(report))
    console.print(_machines(report))
    for machines, versions in _versions(report).items():
        console.print(f"{machines}: {versions}", markup=False)
    console.print(f"found out in {report.seconds:.1f} s", markup=False)


def print_json(report: Report) -> None:
    """Print the same for programs."""
    ahead = clocks(report.tries)
    found = {
        "ranks": [{**asdict(rank), "settings": None} for rank in report.ranks],
        "tries": [{"from": machine, **asdict(tried)} for machine, tried in report.tries],
        "clocks": {str(machine): clock.seconds for machine, clock in ahead.items()},
        "findings": [finding._asdict() for finding in report.found],
        "seconds": report.seconds,
    }
    print(json.dumps(found, indent=2))


def _ranks(report: Report) -> Table:
    table = titled("ranks", "rank", "host", "device", "GPU memory left", "experiment")
    for rank in report.ranks:
        device = f"{rank.device_name} {rank.device_id}".strip() or rank.device
        free = size(rank.device_free) if rank.device == "cuda" else ""
        table.add_row(str(rank.rank), rank.host, device, free, rank.experiment[:8] or "not read")
    return table


def _machines(report: Report) -> Table:
    disks = list(dict.fromkeys(name for rank in report.ranks for name in rank.disks))
    table = titled(
        "machines: what is left", "machine", "address", "memory", *(f"disk: {name}" for name in disks), "/dev/shm",
        "partitions", "clock",
    )  # fmt: skip
    ahead = clocks(report.tries)
    for facts in report.ranks:
        if facts.local_rank:
            continue
        shared = facts.shared_memory_free
        clock = ahead.get(facts.machine)
        table.add_row(
            facts.host,
            f"{facts.address or 'none'} ({facts.address_from})",
            size(facts.memory_free),
            *(size(facts.disks[name].free) if name in facts.disks else "" for name in disks),
            "" if shared is None else size(shared),
            facts.partitions.digest[:8] if facts.partitions else "",
            "" if clock is None else f"{clock.seconds:+.3f} s",
        )
    return table


def _versions(report: Report) -> dict[str, str]:
    """Hosts -> what they have."""
    groups: dict[str, list[Facts]] = {}
    for facts in report.ranks:
        if facts.local_rank == 0:
            text = ", ".join(f"{package} {version}" for package, version in facts.versions.items())
            groups.setdefault(f"{text} (files {facts.source})", []).append(facts)
    if len(groups) == 1:
        return {"all machines": next(iter(groups))}
    return {", ".join(facts.host for facts in those): text for text, those in groups.items()}
