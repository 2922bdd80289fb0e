"""What is said of labels before a run trains: how many there are, which classes are missing, which splits are empty."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from disttrain.config import Experiment, ExperimentError
from disttrain.data.split import refuse_signs
from disttrain.train.collections import prepare_collection
from disttrain.train.job import build
from disttrain.train.label_counts import empty_splits, lacking_classes, tell_labels
from disttrain.train.missing_values import tell_missing
from disttrain.world import World

SIGNS = [np.array([1, -1, 1]), np.array([[-1.0], [1.0], [np.nan]]), np.array([[1, -1], [-1, 1]], np.int8)]


@pytest.mark.parametrize("labels", SIGNS, ids=str)
def test_minus_one_and_one_are_no_two_classes(labels: np.ndarray) -> None:
    with pytest.raises(ExperimentError, match=r"nothing but -1 and 1.*make the -1 a 0.*\(y \+ 1\) // 2"):
        refuse_signs(labels, "task.label", numbers=False)
    refuse_signs(labels, "task.label", numbers=True)
    for others in (np.append(labels.reshape(-1), 0), np.abs(labels), -np.abs(labels), labels.astype(bool)):
        refuse_signs(others, "task.label", numbers=False)


def test_classes_that_cannot_be_learnt_are_named() -> None:
    every, training = np.array([3, 2, 1]), np.array([2, 1, 1])
    assert lacking_classes(every, training, range(3), False, "graphs") == ""
    text = lacking_classes(np.array([0, 2, 1]), np.array([0, 1, 0]), range(3), False, "graphs")
    assert text.startswith("has 3 classes, and no graph has 0; no graph of the training split has 2: ")
    assert text.endswith("numbered from 0 on, without gaps")
    spread = np.zeros(200_001, np.int64)
    spread[[0, 100_000, 200_000]] = 20
    text = lacking_classes(spread, spread, range(len(spread)), False, "graphs")
    assert "has 200,001 classes, and no graph has 1, 2, 3, 4, 5 and 199,993 more: " in text
    text = lacking_classes(np.array([4, 0]), np.array([3, 0]), ["toxic", "soluble"], True, "nodes")
    assert text.startswith("has 2 labels, and no node has soluble: ") and "gaps" not in text


def test_empty_splits() -> None:
    assert empty_splits(3, 2, "graphs") == ""
    assert empty_splits(0, 2, "graphs") == (
        "data.split leaves no validation graphs: nothing is validated, and the weights are those of the last epoch"
    )
    assert empty_splits(4, 0, "nodes") == "data.split leaves no test nodes: nothing is tested"
    both = empty_splits(0, 0, "nodes")
    assert both.startswith("data.split leaves no validation and no test nodes: ") and both.endswith("nothing is tested")


def told(tmp_path: Path, capsys: Any, caplog: Any, task: str = "classification", **data: Any) -> tuple[str, list[str]]:
    """What a run says, and what it warns of."""
    experiment = Experiment.model_validate(
        {
            "data": {
                "source": "python", "function": "tests.collections_of_graphs:rings", "store": str(tmp_path),
                "split": {"by": "ratio", "train": 0.5, "val": 0.25, "test": 0.25}, "storage": "mmap", **data,
            },
            "task": {"kind": f"graph_{task}"},
            "model": {"kind": "gin"},
        }
    )  # fmt: skip
    with World.start(device="cpu", timeout=30) as world, caplog.at_level(logging.WARNING):
        graphs: Any = prepare_collection(experiment, world)
        settled, model = build(experiment, graphs, world)
        capsys.readouterr()
        tell_labels(experiment, world, graphs, settled)
        tell_missing(experiment, graphs.schema, model)
    return capsys.readouterr().out.strip(), [record.getMessage() for record in caplog.records]


def test_a_run_says_how_many_graphs_have_a_label(tmp_path: Path, capsys: Any, caplog: Any) -> None:
    said, warned = told(tmp_path, capsys, caplog)
    # Of 30 graphs, numbers 0, 7, 14, 21 and 28 have none.
    assert said == (
        "[collection] 25 of 30 graphs have a label (5 have none, and are in no split): 2 classes; "
        "train 13, val 6, test 6"
    )
    assert warned == []
    said, _ = told(tmp_path, capsys, caplog, "regression", args={"numbers": True})
    assert said.endswith("(5 have none, and are in no split): 1 number; train 13, val 6, test 6")


def test_it_warns_of_missing_classes_features_and_splits(tmp_path: Path, capsys: Any, caplog: Any) -> None:
    said, warned = told(
        tmp_path, capsys, caplog, pre_transforms=["tests.collections_of_graphs:with_gaps"],
        split={"by": "ratio", "train": 1, "val": 0, "test": 0},
    )  # fmt: skip
    assert "25 of 30 graphs have a label" in said and "4 classes; train 25, val 0, test 0" in said
    classes, splits, missing = warned
    assert 'attribute "y" of the graphs has 4 classes, and no graph has 0, 2: ' in classes
    assert splits.startswith("data.split leaves no validation and no test graphs")
    # 5 rings of each of 3 to 8 nodes, two columns; in each graph one value of the second column is missing.
    assert missing == "`x` of `node`: 30 of 330 values are missing (NaN); each counts as the mean of its column"
