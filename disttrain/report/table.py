"""The table at the end of a run, made from its summary."""

from __future__ import annotations

import math
from typing import Any

from rich.console import Console
from rich.table import Table

from ..config.counted import counted


def show_summary(summary: dict[str, Any], console: Console) -> None:
    """Print metrics, throughput and where the time went."""
    metrics = Table(
        title=f"{summary['name']}: best epoch {summary['best_epoch']} of {summary['epochs']}", title_justify="left"
    )
    metrics.add_column("split")
    names = list(dict.fromkeys([*summary["val"], *summary["test"]]))
    for name in names:
        metrics.add_column(name, justify="right")
    about_graphs = summary["task"].startswith("graph_")
    what = "graphs" if about_graphs else "nodes"
    metrics.add_column(f"{what} scored", justify="right")
    for split in ("val", "test"):
        if summary[split]:
            values = [shown_metric(summary[split][name]) if name in summary[split] else "" for name in names]
            scored = summary["num_evaluated"][split]
            entries = summary.get("num_entries", {}).get(split, scored)
            metrics.add_row(split, *values, f"{scored:,}" + (f" ({entries:,} labels)" if entries != scored else ""))
    if names:
        console.print(metrics)

    time = Table(title="where the time went", title_justify="left")
    for column in ("phase", "seconds"):
        time.add_column(column, justify="left" if column == "phase" else "right")
    for phase, seconds in summary["seconds"].items():
        if about_graphs and phase == "partition":
            phase = "collection"
        time.add_row(phase, f"{seconds:.1f}")
    time.add_section()
    for phase, seconds in summary["step_seconds"].items():
        time.add_row(f"per step: {phase}", f"{seconds * 1000:.2f} ms")
    console.print(time)
    ranks, machines = counted(summary["world_size"], "rank"), counted(summary["nodes"], "machine")
    rate = summary.get("cache_hit_rate")
    cached = "graphs" if about_graphs else "remote rows"
    peak = f"{max(summary['peak_rss_bytes']) / 2**30:.2f} GiB"
    shares = [share for share in summary.get("peak_pss_bytes", []) if share is not None]
    if shares:
        peak += f" (with its processes, its share of what several map: {max(shares) / 2**30:.2f} GiB)"
    if gpu := max(summary["peak_gpu_bytes"]):
        peak += f", on its GPU {gpu / 2**30:.2f} GiB"
    # Of graphs nothing is exchanged but gradients, which are not counted.
    exchanged = "" if about_graphs else f"; {summary['bytes_exchanged'] / 2**20:,.1f} MiB exchanged"
    console.print(
        f"{summary['seeds_per_second']:,.0f} {'graphs' if about_graphs else 'seeds'}/s in training on {ranks}, "
        f"{machines}; peak memory of a rank {peak}{exchanged}"
        + ("" if rate is None else f", {rate:.0%} of the {cached} came from the cache")
    )


def shown_metric(value: float | None) -> str:
    """Of a summary that was read again, a metric without a value is None."""
    return "-" if value is None or math.isnan(value) else f"{value:.4f}"
