"""What of the user's data is not in the graph, in words."""

from __future__ import annotations

from typing import Any

_ROWS = {
    "where": "do not satisfy `where`",
    "duplicates": "repeat the key of an earlier row",
    "missing_labels": "have no label",
    "missing_times": "have no time",
}


def left_out_lines(info: dict[str, Any]) -> list[str]:
    """A line for each thing that a source left out or counted, from `LoadedGraph.info`, whose keys are

    `rows_left_out`: place in the YAML -> why (`where`, `duplicates`, `missing_labels`, `missing_times`) -> rows;
    `dangling`: relation -> edges left out, since they name a key that no row has;
    `without_key`: relation -> rows that name nothing (NULL), which are no edge;
    `without_label`: node type -> nodes that have no label, which are in no split;
    `left_out`: attributes (`type.name`) that have no row per node or edge;
    `converted`: attributes that are kept in another form, each with how.
    """
    lines = [
        f"data.{place}: {count:,} rows are left out: they {_ROWS.get(why, why)}"
        for place, reasons in info.get("rows_left_out", {}).items()
        for why, count in reasons.items()
    ]
    lines += [
        f'"{relation}": {count:,} edges are left out: they name a key that no row has'
        for relation, count in info.get("dangling", {}).items()
    ]
    lines += [
        f'"{relation}": {count:,} rows name nothing (NULL) and are no edge'
        for relation, count in info.get("without_key", {}).items()
    ]
    lines += [
        f'"{node_type}": {count:,} nodes have no label and are in no split'
        for node_type, count in info.get("without_label", {}).items()
    ]
    lines += [f"{what}" for what in info.get("converted", [])]
    if info.get("left_out"):
        lines.append(f"attributes without a row per node or edge are left out: {', '.join(info['left_out'])}")
    return lines
