"""Predictions of the graphs of a collection: each once, under its number and the user's own names, on any ranks."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from disttrain.config import Experiment, ExperimentError
from disttrain.config.file import write_experiment
from disttrain.train.job import run
from disttrain.world import World

from ..collections_of_graphs import named, rings
from .test_predict import Answer, answers, ask, request

SPLIT = {"by": "ratio", "train": 0.5, "val": 0.2, "test": 0.2}


def experiment(place: Path, kind: str = "classes", **data: Any) -> Experiment:
    numbers = kind == "numbers"
    args = {"numbers": True} if numbers else {"several": kind == "several"}
    return Experiment.model_validate(
        {
            "name": kind,
            "run_dir": str(place / "runs" / kind),
            "data": {
                "source": "python",
                "function": f"tests.collections_of_graphs:{'rings' if numbers else 'named'}",
                "args": args,
                "store": str(place / "store"),
                "split": SPLIT,
                **data,
            },
            "task": {"kind": "graph_regression" if numbers else "graph_classification"},
            "model": {"kind": "gin", "hidden": 6, "layers": 2, "norm": "batch"},
            "sampling": {"batch_size": 4},
            "train": {"epochs": 2, "lr": 0.01, "threads": 1, "device": "cpu"},
        }
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run of each kind."""
    place = tmp_path_factory.mktemp("graphs")
    with World.start(device="cpu", threads=1) as world:
        for kind in ("classes", "several", "numbers"):
            run(experiment(place, kind), world)
    return place


@pytest.fixture(scope="module")
def one(place: Path) -> Answer:
    return ask(place, "one", run_name="classes", key="name,idx")


def test_all_graphs_come_once_under_number_and_name(place: Path, one: Answer) -> None:
    summary, rows = one
    by_number = sorted(rows, key=lambda row: row["id"])
    assert [row["id"] for row in by_number] == list(range(40))
    assert summary["keys"] == ["name", "idx", "id"]
    trained = json.loads((place / "runs" / "classes" / "summary.json").read_text())
    for number, row in enumerate(by_number):
        assert (row["name"], row["idx"]) == (f"ring {number}", 1000 - number)
        assert row["label"] == (None if number % 7 == 0 else number % 2)
        assert number % 7 or row["split"] is None
        assert row["prediction"] == np.argmax(row["probabilities"]) == np.argmax(row["logits"])
        assert len(row["embedding"]) == 12, "of both layers"
    for split in ("val", "test"):
        there = [row for row in rows if row["split"] == split]
        assert len(there) == trained["num_evaluated"][split] == summary["splits"][split]["rows"]
        assert summary["metrics"][split] == trained[split]
        right = np.mean([row["label"] == row["prediction"] for row in there])
        assert np.float32(right) == np.float32(trained[split]["accuracy"])


@pytest.mark.parametrize(("size", "machines"), [(2, 1), (3, 3)])
def test_the_numbers_do_not_depend_on_ranks(place: Path, one: Answer, size: int, machines: int) -> None:
    summary, rows = ask(place, f"out-{size}", run_name="classes", key="name,idx", size=size, machines=machines)
    expected, straight = one
    assert len(summary["files"]) == size
    assert rows == straight
    for key in ("rows", "splits", "checksum", "keys", "columns"):
        assert summary[key] == expected[key]


def test_fewer_graphs_than_ranks_and_lists_of_ids(place: Path, one: Answer) -> None:
    straight = {row["name"]: row for row in one[1]}
    (place / "ids.txt").write_text("ring 7\nring 39\n")
    summary, rows = ask(place, "named", run_name="classes", key="name", ids=str(place / "ids.txt"), size=3)
    assert [row["name"] for row in rows] == ["ring 39", "ring 7"]
    assert summary["asked_for"] == {"ids": 2}
    for row in rows:
        np.testing.assert_allclose(row["logits"], straight[row["name"]]["logits"], rtol=1e-6)
    (place / "ids.txt").write_text("39\n0\n")
    _, rows = ask(place, "numbered", run_name="classes", ids=str(place / "ids.txt"))
    assert [row["id"] for row in rows] == [0, 39] and "name" not in rows[0]
    pq.write_table(pa.table({"mark": ["m3"]}), place / "marks.parquet")
    _, rows = ask(place, "marked", run_name="classes", key="mark", ids=str(place / "marks.parquet"))
    assert sorted(row["id"] for row in rows) == list(range(3, 40, 5)), "all graphs that are called so"
    _, rows = ask(place, "unlabelled", run_name="classes", split="unlabelled", embeddings=False, logits=False)
    assert [row["id"] for row in rows] == list(range(0, 40, 7))


def test_several_labels_and_numbers(place: Path) -> None:
    summary, rows = ask(place, "several", run_name="several")
    trained = json.loads((place / "runs" / "several" / "summary.json").read_text())
    assert summary["metrics"]["test"] == trained["test"]
    assert [row["label"] is None for row in rows] == [number % 7 == 0 for number in range(40)]
    for graph, row in zip(named(several=True), rows, strict=True):
        assert row["label"] is None or row["label"] == np.flatnonzero(np.asarray(graph.y)[0]).tolist()
        assert row["prediction"] == np.flatnonzero(np.array(row["logits"]) > 0).tolist()
    summary, rows = ask(place, "numbers", run_name="numbers", size=2)
    trained = json.loads((place / "runs" / "numbers" / "summary.json").read_text())
    assert summary["metrics"]["test"] == pytest.approx(trained["test"], rel=1e-6)
    test = [row for row in rows if row["split"] == "test"]
    error = np.mean([abs(row["label"] - row["prediction"]) for row in test])
    assert error == pytest.approx(trained["test"]["mae"], rel=1e-5)
    assert [row["label"] for row in rows[1:7]] == pytest.approx([float(graph.y) for graph in rings(numbers=True)[1:7]])  # pyright: ignore


def test_other_graphs_need_no_label_and_are_in_no_split(place: Path, one: Answer) -> None:
    """Those of the training among them come out as they did."""
    summary, rows = ask(place, "new", "data.args={count: 5, labels: false}", run_name="classes")
    assert summary["data"]["as_in_training"] is False
    assert {row["split"] for row in rows} == {row["label"] for row in rows} == {None}
    assert summary["metrics"] == {}
    known = sorted(one[1], key=lambda row: row["id"])[:5]
    for row, straight in zip(rows, known, strict=True):
        np.testing.assert_allclose(row["logits"], straight["logits"], rtol=1e-5)
    summary, rows = ask(place, "more", "data.args={count: 60}", run_name="classes", size=2)
    assert summary["metrics"].keys() == {"none"}, "the labels that there are are held against the predictions"
    labelled = [row for row in rows if row["label"] is not None]
    right = [row["label"] == row["prediction"] for row in labelled]
    assert summary["metrics"]["none"]["accuracy"] == pytest.approx(np.mean(right))


def refusal(place: Path, *overrides: str, run_name: str = "classes", **given: Any) -> str:
    with pytest.raises(ExperimentError) as caught:
        answers(request(place, "no", run_name, **given), *overrides, size=1)
    assert os.listdir(place / "no") == [".lock"]
    return str(caught.value)


def test_a_run_on_the_first_graphs_predicts_those_of_another_function(place: Path) -> None:
    """`data.first` is of the collection that it was trained on; the message says how it is taken off."""
    others = "data.args={count: 6, labels: false}", "data.first=5"
    assert "never had so many graphs; it had 6. data.first=null takes all that it has" in refusal(place, *others)
    _, rows = ask(place, "taken-off", *others, "data.first=null", run_name="classes")
    assert len(rows) == 6


def test_what_is_refused_leaves_nothing(place: Path) -> None:
    assert '--key nam: the graphs have no such attribute with a number or text for each; did you mean "name"?' in (
        refusal(place, key="nam")
    )
    (place / "ids.txt").write_text("40\n")
    text = refusal(place, ids=str(place / "ids.txt"))
    assert (
        "1 id without a graph; ids are the numbers of graphs, 0 to 39 (--key names an attribute instead): '40'" in text
    )
    assert "1 id without a graph, whose --key is name (VARCHAR): '40'" in (
        refusal(place, ids=str(place / "ids.txt"), key="name")
    )
    assert "highest class is 5, in training it was 1" in (
        refusal(place, "data.function=tests.collections_of_graphs:five_classes", "data.args={}")
    )
    assert "they have graph, a, b, a,to,b; there were graph, node, node,edge,node" in (
        refusal(place, "data.function=tests.collections_of_graphs:pairs", "data.args={}")
    )


def test_layerwise_is_for_the_nodes_of_one_graph(place: Path) -> None:
    from disttrain import cli

    with pytest.raises(ExperimentError, match="layerwise is about the nodes of one graph"):
        cli.run(["predict", str(place / "runs" / "classes"), "--method", "layerwise"])


def test_a_key_is_of_graphs(tmp_path: Path) -> None:
    from disttrain.predict.job import predict

    nodes = Experiment.model_validate(
        {
            "data": {"source": "generated", "nodes": {"v": {"num_nodes": 10}}},
            "task": {"kind": "node_classification"},
            "model": {"kind": "hetero_conv"},
        }
    )
    (tmp_path / "runs").mkdir()
    write_experiment(nodes, tmp_path / "runs" / "experiment.yaml")
    with World.start(device="cpu", threads=1) as world, pytest.raises(ExperimentError, match="--key names attributes"):
        predict(nodes, request(tmp_path, "no", key="name"), world)
