"""The results of a sweep: which points it has, what each came to, as a table and as `results.csv` in its directory."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ..config import Experiment, ExperimentError
from ..config.file import SweepPoint
from ..config.sweep import short_names, value_text
from ..config.yaml import parse_path, path_text

SWEEP = "sweep.json"
LOCK = ".sweep.lock"
RESULTS = "results.csv"
FAILURES = "failed.json"

_ANY_WIDTH = 10_000
_LOWER_IS_BETTER = ("loss", "mae", "rmse", "mse", "mape")


def note_sweep(experiment: Experiment, points: Sequence[SweepPoint]) -> Path:
    """Write into the sweep's directory which points it has; returns the directory.

    Raises:
        ExperimentError: it cannot be written to.
    """
    assert experiment.sweep is not None
    directory = Path(experiment.directory)
    listed = [
        {"point": point.name, "settings": {path_text(path): value for path, value in point.settings.items()}}
        for point in points
    ]
    found = {"metric": experiment.sweep.metric, "points": listed}
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if read_sweep(directory) != found:
            _replace(directory / SWEEP, json.dumps(found, indent=1) + "\n")
    except OSError as error:
        raise ExperimentError(
            f"run_dir: the directory of the sweep, {directory}, cannot be written to: {error.strerror or error}; "
            "choose another one"
        ) from error
    return directory


def read_sweep(directory: Path) -> dict[str, Any] | None:
    """What `note_sweep` wrote; None: this is no directory of a sweep."""
    try:
        found = json.loads((directory / SWEEP).read_text(encoding="utf-8"))
        whole = all(isinstance(p["point"], str) and isinstance(p["settings"], dict) for p in found["points"])
        return found if whole and isinstance(found["points"], list) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def read_failures(directory: Path) -> list[str]:
    """Points that failed when they were last run here; their own directories may never have been made."""
    try:
        found = json.loads((directory / FAILURES).read_text(encoding="utf-8"))
        return [str(name) for name in found]
    except (OSError, ValueError, TypeError):
        return []


def write_failures(directory: Path, names: Sequence[str]) -> None:
    """As well as it goes: on a disk that is full by now, the other points say so themselves."""
    with suppress(OSError):
        _replace(directory / FAILURES, json.dumps(list(names)) + "\n")


def write_results(directory: Path, sweep: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Sort the points, best first, those without figures last, and write `results.csv`.

    Args:
        rows: `point`, `settings`, `state`, `val`, `test`, `best_epoch`, `best_metric`, `epoch`, `seconds` of each.
    """
    metric = sorted_by(sweep, rows)
    ranked = [dict(row) for row in sorted(rows, key=lambda row: _rank(row, metric))]
    paths = list(dict.fromkeys(path for row in ranked for path in row["settings"]))
    figures = [(split, name) for split in ("val", "test") for name in _metric_names(ranked, split)]
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(["point", *paths, "state", *(f"{split}_{name}" for split, name in figures), "best_epoch", "seconds"])
    for row in ranked:
        settings = [value_text(row["settings"][path]) if path in row["settings"] else "" for path in paths]
        values = [row[split].get(name) for split, name in figures]
        lines.writerow([row["point"], *settings, row["state"], *values, row["best_epoch"], row["seconds"]])
    with suppress(OSError):  # somebody else's sweep can be looked at too, and one on a full disk
        _replace(directory / RESULTS, text.getvalue())
    return ranked


def sorted_by(sweep: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str | None:
    return sweep.get("metric") or next((row["best_metric"] for row in rows if row.get("best_metric")), None)


def _rank(row: Mapping[str, Any], metric: str | None) -> tuple[bool, bool, float]:
    value = row["val"].get(metric)
    known = isinstance(value, (int, float)) and not math.isnan(value)
    order = float(value) if known else 0.0
    return row["state"] != "done", not known, order if metric in _LOWER_IS_BETTER else -order


def _metric_names(rows: Sequence[Mapping[str, Any]], split: str) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row[split]))


def results_table(directory: Path, sweep: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the table, of points that `write_results` has sorted."""
    console = Console(width=None if Console().is_terminal else 160)
    paths = list(dict.fromkeys(path for row in rows for path in row["settings"]))
    short = short_names([parse_path(path) for path in paths])
    metric = sorted_by(sweep, rows)
    done = sum(row["state"] == "done" for row in rows)
    title = f"{directory}: {done} of {len(rows)} points done" + (f", sorted by val {metric}" if metric and done else "")
    console.print(title, soft_wrap=True, highlight=False)
    figures = [(split, name) for split in ("val", "test") for name in _metric_names(rows, split)]
    table = _table(rows, paths, [short[parse_path(path)] for path in paths], figures)
    if console.measure(table, options=console.options.update(max_width=_ANY_WIDTH)).maximum > console.width:
        # The others are in the file.
        few = [(split, name) for split, name in figures if name == (metric or "loss")]
        table = _table(rows, paths, [short[parse_path(path)] for path in paths], few)
    console.print(table)
    for line in over_seeds(rows):
        console.print(line, soft_wrap=True)
    console.print(f"also in {directory / RESULTS}", soft_wrap=True, highlight=False)


def _table(
    rows: Sequence[Mapping[str, Any]], paths: Sequence[str], names: Sequence[str], figures: Sequence[tuple[str, str]]
) -> Table:
    """Args:
    names: of the settings, short ones.
    figures: (split, metric).
    """
    table = Table()
    for name in names:
        table.add_column(name)
    table.add_column("state")
    for split, name in figures:
        table.add_column(f"{split} {name}", justify="right")
    table.add_column("best epoch", justify="right")
    for row in rows:
        settings = [value_text(row["settings"][path]) if path in row["settings"] else "" for path in paths]
        best = "" if row["best_epoch"] is None else str(row["best_epoch"])
        under_way = row["epoch"] is not None and row["state"] not in ("done", "not started")
        state = f"{row['state']} (epoch {row['epoch']})" if under_way else row["state"]
        table.add_row(*settings, state, *(_figure(row[split].get(name)) for split, name in figures), best)
    return table


def over_seeds(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Where points differ in their seed only: mean and standard deviation of each metric."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if "seed" in row["settings"] and row["state"] == "done":
            others = {path: value for path, value in row["settings"].items() if path != "seed"}
            groups.setdefault(", ".join(f"{path}={value_text(value)}" for path, value in others.items()), []).append(
                row
            )
    lines = []
    for name, members in groups.items():
        if len(members) < 2:
            continue
        words = []
        for split in ("val", "test"):
            for metric in _metric_names(members, split):
                values = [row[split].get(metric) for row in members]
                numbers = [float(value) for value in values if isinstance(value, (int, float))]
                if len(numbers) == len(members):
                    words.append(f"{split} {metric} {statistics.mean(numbers):.4f} ± {statistics.stdev(numbers):.4f}")
        lines.append(f"{name}{': ' if name else ''}over {len(members)} seeds: {', '.join(words)}")
    return lines


def _figure(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, (int, float)) else ""


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
