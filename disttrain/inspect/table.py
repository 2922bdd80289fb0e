"""The report of `disttrain inspect`, for people."""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console
from rich.table import Table

from ..config.counted import counted
from ..graph.schema import GRAPH
from ..report.size import size
from ..report.titled import titled
from .collection_tables import collection_tables

_WIDE = 140
"""Columns, where the output goes to a file."""

_MOST_CLASSES = 20


def show_facts(facts: dict[str, Any]) -> None:
    """Print tables of nodes, relations, labels and memory, or of a collection's graphs and storages, and the advice."""
    console = Console(file=sys.stdout, soft_wrap=True, highlight=False)
    if not console.is_terminal:
        console.width = _WIDE
    if "collection" in facts:
        tables = [*collection_tables(facts), _labels(facts), _batches(facts)]
        console.print(
            f"{counted(facts['collection']['graphs'], 'graph')} in {facts['collection']['directory']}", markup=False
        )
    else:
        tables = [_nodes(facts), _relations(facts), _labels(facts), _batches(facts), _memory(facts)]
        _show_partitions(facts["partitions"], console)
    for table in tables:
        console.print(table)
    for line in facts["left_out"]:
        console.print(line, markup=False)
    if facts["advice"]:
        console.print("\nadvice:")
        for line in facts["advice"]:
            console.print(f"  - {line}", markup=False)


def _show_partitions(there: dict[str, Any], console: Console) -> None:
    if there["directory"]:
        crossing = f"{there['edge_cut']:.1%} of the edges between them" if there["parts"] > 1 else "all edges in it"
        console.print(
            f"{there['directory']}: {counted(there['parts'], 'partition')} by {there['method']}, {crossing}",
            markup=False,
        )


def _nodes(facts: dict[str, Any]) -> Table:
    table = titled("nodes", "type", "nodes", "no neighbour", "attributes", "x: means to", "deviations", "missing")
    for name, nodes in facts["nodes"].items():
        features = nodes["features"]
        attributes = ", ".join(f"{key}{_shape(value)}" for key, value in nodes["attributes"].items())
        scale = ("", "", "")
        if features is not None:
            low, high = features["smallest_std"], features["largest_std"]
            scale = (f"{features['largest_mean']:.3g}", f"{low:.3g} to {high:.3g}", f"{features['missing']:,}")
        shown = name if nodes["takes_part"] else f"{name} (takes no part)"
        table.add_row(shown, f"{nodes['nodes']:,}", f"{nodes['without_neighbours']:.1%}", attributes, *scale)
    return table


def _shape(attribute: dict[str, Any]) -> str:
    return f" {attribute['shape']}" if attribute["shape"] else ""


def _relations(facts: dict[str, Any]) -> Table:
    table = titled(
        "relations: neighbours of a destination, and the share of all edges that each hop's fanout draws",
        "relation", "edges", "mean", "99 %", "most", "none", "self loops", "repeated", "drawn",
    )  # fmt: skip
    for name, relation in facts["relations"].items():
        degrees = relation["destination_degrees"]
        table.add_row(
            name if relation["takes_part"] else f"{name} (takes no part)",
            f"{relation['edges']:,}",
            f"{degrees['mean']:.3g}",
            f"{degrees['p99']:,}",
            f"{degrees['max']:,}",
            f"{degrees['zero']:.1%}",
            f"{relation['self_loops']:,}",
            f"{relation['repeated_edges']:,}",
            ", ".join(f"{share:.0%}" for share in relation["drawn_share"]),
        )
    return table


def _labels(facts: dict[str, Any]) -> Table:
    labels = facts["labels"]
    title = (
        f"labels, {labels['attribute']} of {facts['target']}: {labels['labelled']:,} of "
        f"{counted(labels['nodes'], _what(facts))} have one"
    )
    splits = labels["splits"]
    table = titled(title, "class" if "classes" in splits["train"] else "", *splits)
    table.add_row(f"{_what(facts)}s", *(f"{split['nodes']:,}" for split in splits.values()))
    if "classes" in splits["train"]:
        names = list(splits["train"]["classes"])
        for number, name in enumerate(names[:_MOST_CLASSES]):
            table.add_row(name, *(_share(split, name, number) for split in splits.values()))
        if len(names) > _MOST_CLASSES:
            table.add_row(f"and {len(names) - _MOST_CLASSES} more (--json has all)")
    else:
        for key in ("mean", "std", "low", "high"):
            table.add_row(key, *(f"{split[key]:.4g}" if key in split else "" for split in splits.values()))
        shares = [split.get("missing", []) for split in splits.values()]
        if any(map(any, shares)):
            for number in range(min(len(shares[0]), _MOST_CLASSES)):
                table.add_row(f"target {number} missing", *(f"{share[number]:.1%}" for share in shares))
            if len(shares[0]) > _MOST_CLASSES:
                table.add_row(f"and {len(shares[0]) - _MOST_CLASSES} more targets (--json has all)")
    return table


def _what(facts: dict[str, Any]) -> str:
    return "graph" if facts["target"] == GRAPH else "node"


def _share(split: dict[str, Any], name: str, number: int) -> str:
    """How many have a class or label, and where some lack it, how many."""
    count, missing = split["classes"][name], split.get("missing")
    lacking = f", {missing[number]:.1%} missing" if missing and any(missing) else ""
    return f"{count:,} ({count / max(1, split['nodes']):.1%}{lacking})"


def _batches(facts: dict[str, Any]) -> Table:
    table = titled("batches, drawn on one rank", "", "steps", "seeds", "nodes", "edges", "size")
    for name, batch in facts["batches"].items():
        nodes, edges = sum(batch["nodes"].values()), sum(batch["edges"].values())
        table.add_row(
            name, f"{batch['steps']:,}", f"{batch['seeds']:,.0f}", f"{nodes:,.0f}", f"{edges:,.0f}",
            size(batch["bytes"]),
        )  # fmt: skip
    return table


def _memory(facts: dict[str, Any]) -> Table:
    memory = facts["memory"]
    machines = counted(memory["machines"], "machine")
    table = titled(f"memory, estimated for {machines}; {counted(memory['parameters'], 'parameter')}", "", "size")
    for title, part in (("mapped, per machine", "mapped"), ("per rank", "rank")):
        for name, count in memory[part].items():
            table.add_row(f"{title}: {name}", size(count))
        table.add_section()
    if memory["cache"]:
        table.add_row("per machine: cache", size(memory["cache"]))
    table.add_row("on the disk, per machine: evaluate.method=layerwise", size(memory["layerwise_scratch"]))
    return table
