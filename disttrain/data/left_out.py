"""What of the user's data is not in the graph, in words."""

from __future__ import annotations

from typing import Any

from ..config.counted import counted

_ROWS = {
    "where": "by `where`",
    "duplicates": "for the key of an earlier row",
    "missing_labels": "without a label",
    "missing_times": "without a time",
}


def left_out_lines(info: dict[str, Any]) -> list[str]:
    """A line for each thing that a source left out or counted, from `LoadedGraph.info`, whose keys are

    `rows_left_out`: place in the YAML -> why (`where`, `duplicates`, `missing_labels`, `missing_times`) -> rows;
    `dangling`: relation -> edges left out, since they name a key that no row has;
    `without_key`: relation -> rows that name nothing (NULL), which are no edge;
    `without_label`: node type -> nodes that have no label, which are in no split;
    `in_no_split`: value of the split's column that is the name of no split -> rows;
    `left_out`: attributes (`type.name`) that have no row per node or edge;
    `converted`: attributes that are kept in another form, each with how.
    """
    lines = [
        f"data.{place}: {counted(count, 'row')} left out {_ROWS.get(why, why)}"
        for place, reasons in info.get("rows_left_out", {}).items()
        for why, count in reasons.items()
    ]
    lines += [
        f'"{relation}": {counted(count, "edge")} left out for a key that no row has'
        for relation, count in info.get("dangling", {}).items()
    ]
    lines += [
        f'"{relation}": {counted(count, "row")} without a key (NULL), hence no edge'
        for relation, count in info.get("without_key", {}).items()
    ]
    lines += [
        f'"{node_type}": {counted(count, "node")} without a label, in no split'
        for node_type, count in info.get("without_label", {}).items()
    ]
    lines += [
        f"data.split: {counted(count, 'row')} of {value!r}, in no split"
        for value, count in info.get("in_no_split", {}).items()
    ]
    lines += [f"{what}" for what in info.get("converted", [])]
    if info.get("left_out"):
        lines.append(f"attributes without a row per node or edge are left out: {', '.join(info['left_out'])}")
    return lines
