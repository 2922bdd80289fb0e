"""What `disttrain inspect` says of a collection, for people."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from ..data.split import MASKS
from ..report.size import size
from ..report.titled import titled

_SHOWN = ("min", "p10", "p50", "mean", "p90", "p99", "max")
_CALLED = {"min": "least", "p10": "10 %", "p50": "median", "p90": "90 %", "p99": "99 %", "max": "most"}


def collection_tables(facts: dict[str, Any]) -> list[Table]:
    return [_sizes(facts), _attributes(facts), _forms(facts), _storages(facts)]


def _sizes(facts: dict[str, Any]) -> Table:
    table = titled("sizes of the graphs", "", "in all", *(_CALLED.get(key, key) for key in _SHOWN), "none")
    types = facts["sizes"]["types"]
    for name in ("nodes", "edges"):
        spread = facts["sizes"][name]
        total = sum(each["total"] for key, each in types.items() if ("," in key) == (name == "edges"))
        table.add_row(name, f"{total:,}", *_row(spread))
    if len(types) > 2:
        table.add_section()
        for name, spread in types.items():
            table.add_row(name, f"{spread['total']:,}", *_row(spread))
    return table


def _row(spread: dict[str, Any]) -> list[str]:
    shown = [f"{spread[key]:,.1f}" if key == "mean" else f"{spread[key]:,}" for key in _SHOWN]
    return [*shown, f"{spread['zero']:.1%}"]


def _attributes(facts: dict[str, Any]) -> Table:
    table = titled("attributes", "of", "name", "type", "range", "missing")
    for owner, nodes in facts["nodes"].items():
        for name, found in nodes["attributes"].items():
            if name in MASKS:
                continue
            low, high = found["low"], found["high"]
            shape = f" {found['shape']}" if found["shape"] else ""
            limits = "" if low is None or high is None else f"{low:.4g} to {high:.4g}"
            table.add_row(
                owner, name, f"{found['dtype']}{shape}", limits, f"{found['missing']:,}" if found["missing"] else ""
            )
    return table


def _forms(facts: dict[str, Any]) -> Table:
    of_list, collated = facts["bytes"]["list"], facts["bytes"]["collated"]
    table = titled("bytes of all graphs", "", "size", "of the list")
    whole = of_list["bytes"]
    note = "" if of_list["graphs"] == facts["collection"]["graphs"] else f", measured on {of_list['graphs']:,} of them"
    table.add_row(f"a list of Data{note}", "not known" if whole is None else size(whole), "")
    table.add_row("put together (collated)", size(collated), f"{collated / whole:.0%}" if whole else "")
    return table


def _storages(facts: dict[str, Any]) -> Table:
    table = titled(
        "data.storage, tried on one rank", "", "load", "first batch", "graphs/s", "of each process", "of the machine"
    )
    for name, found in facts["storages"].items():
        if "refused" in found:
            table.add_row(f"{name}: {found['refused'].splitlines()[0]}")
            continue
        own = found["process_bytes"]
        table.add_row(
            name,
            f"{found['load_seconds'] * 1000:,.0f} ms",
            f"{found['first_batch_seconds'] * 1000:,.0f} ms",
            f"{found['graphs_per_second']:,.0f}",
            size(own) if own is not None else "",
            size(found["machine_bytes"]) if found.get("machine_bytes") is not None else "",
        )
    return table
