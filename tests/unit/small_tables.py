"""Tables of a few rows, in files, and the graphs that they become."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest

from disttrain.config import ExperimentError, NodeClassification, TablesData
from disttrain.data import LoadedGraph, load

TASK = NodeClassification(kind="node_classification")
HALF = {"by": "ratio", "train": 0.5, "val": 0.25, "test": 0.25}


def tables(root: Path, nodes: dict[str, Any], edges: dict[str, Any] | None = None, **more: Any) -> TablesData:
    values = {"source": "tables", "root": str(root), "nodes": nodes, "edges": edges or {}, "split": HALF, **more}
    return TablesData.model_validate(values)


def refusal(data: TablesData) -> str:
    with pytest.raises(ExperimentError) as refused:
        load(data, TASK)
    return str(refused.value)


def write(root: Path, **files: str) -> None:
    for name, text in files.items():
        (root / f"{name}.csv").write_text(text, encoding="utf-8")


def parquet(path: Path, query: str) -> None:
    path.parent.mkdir(exist_ok=True)
    duckdb.sql(f"COPY ({query}) TO '{path}' (FORMAT parquet)")


PEOPLE = {"person": {"file": "people.csv", "key": "id", "label": "kind"}}
KNOWS = {"person,knows,person": {"file": "knows.csv", "src": "a", "dst": "b"}}


def edges_of(loaded: LoadedGraph, *edge_type: Any) -> list[tuple[int, int]]:
    return [(source, destination) for source, destination in loaded.data[edge_type].edge_index.t().tolist()]
