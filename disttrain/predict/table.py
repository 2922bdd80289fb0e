"""The table at the end of `disttrain predict`, made from its summary."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ..config.counted import counted
from ..graph.schema import GRAPH
from ..report.table import shown_metric


def show_predictions(summary: dict[str, Any], directory: Path) -> None:
    """Print how many nodes or graphs of each split were predicted, and how well."""
    console = Console(file=sys.stdout, soft_wrap=True, highlight=False)
    checkpoint, run = summary["checkpoint"], summary["run"]
    names = list(dict.fromkeys(name for values in summary["metrics"].values() for name in values))
    table = Table(title=f"{run['name']}, step {checkpoint['step']}: {summary['node_type']}", title_justify="left")
    table.add_column("split")
    for column in ("graphs" if summary["node_type"] == GRAPH else "nodes", "labelled", *names):
        table.add_column(column, justify="right")
    for split, count in summary["splits"].items():
        values = summary["metrics"].get(split, {})
        shown = [shown_metric(values[name]) if name in values else "" for name in names]
        table.add_row(split, f"{count['rows']:,}", f"{count['labelled']:,}", *shown)
    console.print(table)
    if not summary["data"]["as_in_training"]:
        console.print("these are other data than the run was trained with", markup=False)
    console.print(
        f"{counted(summary['rows'], 'row')} in {counted(len(summary['files']), 'file')} in {directory}", markup=False
    )
