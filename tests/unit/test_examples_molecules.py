"""The examples of molecules: graphs that say what the tables say, and experiments that run on some of them."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from disttrain.config.file import read_experiment
from disttrain.train import job
from disttrain.world import World
from examples.molecules import EV, esol, esol_with_rings, qm9_gap

CONFIGS = Path(__file__).resolve().parents[2] / "configs"


@pytest.fixture
def table(real_data: Callable[[str], Path], tmp_path: Path) -> Callable[[str], str]:
    """The first 120 rows of a table, where a file of `configs/` looks."""

    def of(name: str) -> str:
        if name == "qm9":
            target = tmp_path / "qm9_every20th.csv.gz"
            with gzip.open(real_data("qm9-subset") / target.name, "rt") as file, gzip.open(target, "wt") as some:
                some.writelines(islice(file, 121))
        else:
            target = tmp_path / "delaney-processed.csv"
            with open(real_data("esol-delaney") / target.name) as file, open(target, "w") as some:
                some.writelines(islice(file, 121))
        return str(target)

    return of


def test_esol_is_what_its_table_says(table: Callable[[str], str]) -> None:
    pytest.importorskip("rdkit", reason="pip install disttrain[molecules]")
    path = table("esol")
    graphs: list[Any] = list(esol(path))
    hetero: list[Any] = list(esol_with_rings(path))
    with open(path) as file:
        rows = list(csv.DictReader(file))
    assert len(graphs) == len(hetero) == len(rows) == 120
    for row, graph, other in zip(rows, graphs, hetero):
        assert graph.y.item() == pytest.approx(float(row["measured log solubility in mols per litre"]))
        assert graph.x.dtype == graph.edge_attr.dtype == torch.int64
        rings = other["ring"].x
        assert len(rings) == int(row["Number of Rings"])
        assert rings[:, 0].sum() == other["atom", "in", "ring"].edge_index.size(1)


def test_qm9_is_what_its_table_says(table: Callable[[str], str]) -> None:
    graphs: Any = qm9_gap(table("qm9"))
    methane, *others = graphs
    assert len(others) == 119
    assert methane.x.flatten().tolist() == [1, 0, 0, 0, 0]
    assert methane.edge_index.size(1) == 20, "all are nearer than 3 Ångström"
    assert methane.y.item() == pytest.approx(0.5048 * EV)
    peaks = methane.edge_attr[0].argmax()
    assert abs(np.linspace(0.8, 3.0, 16)[peaks] - 1.09) < 0.1, "carbon to hydrogen"


@pytest.mark.parametrize("name", ["esol", "esol_gps", "esol_rings", "qm9_gap"])
def test_the_experiments_run(
    name: str, table: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name.startswith("esol"):
        pytest.importorskip("rdkit", reason="pip install disttrain[molecules]")
    monkeypatch.chdir(CONFIGS.parent)
    overrides = [
        f"data.args.path={table(name.split('_')[0])}", f"data.store={tmp_path}/store", f"run_dir={tmp_path}/run",
        "train.epochs=2", "sampling.batch_size=32", "train.threads=1",
    ]  # fmt: skip
    with World.start(device="cpu", timeout=30) as world:
        summary = job.run(read_experiment(CONFIGS / f"{name}.yaml", overrides), world)
    assert summary["num_evaluated"] == {"val": 12, "test": 12}
    assert np.isfinite([*summary["val"].values(), *summary["test"].values()]).all()
