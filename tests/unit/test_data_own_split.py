"""A split by a function of the user's own: what it gets, what it may return, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from disttrain import data
from disttrain.config import ExperimentError, GeneratedData, NodeClassification, SplitByFunction
from disttrain.data.own_split import by_function
from tests.ranks import run_ranks
from tests.unit.test_collection_loader import opened

HERE = "tests.collections_of_graphs"


def split(function: str, **args: Any) -> SplitByFunction:
    return SplitByFunction(by="function", function=f"{HERE}:{function}", args=args)


def returned(value: Any) -> list[list[int]]:
    return [np.flatnonzero(mask).tolist() for mask in by_function(split("anything", value=value), 6, {})]


def test_numbers_and_masks_of_all_kinds() -> None:
    mask = [False, True, False, False, False, False]
    for value in (
        ([0, 2], mask, torch.tensor([5])),
        (np.array([2, 0], np.int32), np.array(mask), [5]),
        [range(0, 3, 2), torch.tensor(mask), (5,)],
        {"train": (0, 2), "val": mask, "test": np.array([5], np.uint8)},
    ):
        assert returned(value) == [[0, 2], [1], [5]]
    assert returned(([1], [], np.empty(0))) == [[1], [], []] == returned({"train": [1]})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (([0], [1]), "three lists of row numbers, or three masks, for train, val and test; it returned 2 things"),
        ("abc", "it returned a str"),
        (None, "it returned a NoneType"),
        ({"training": [0]}, "expected train, val and test, it also returned training"),
        (([0, 1], [1], []), "1 rows are in both train and val, the first is 1"),
        (([0], [1], [6]), "test: it has row 6; there are 6, from 0 on"),
        (([0], [-1], []), "val: it has row -1"),
        (([0, 0], [], []), "train: it has row 0 more than once"),
        (([0.5], [], []), r"train: expected whole numbers in one row, or a mask, got float64 \[1\]"),
        (([[0, 1]], [], []), r"int64 \[1, 2\]"),
        (([[0], [0, 1]], [], []), "train: expected whole numbers in one row"),
        (([True, False], [], []), "the mask has 2 places, and there are 6 rows"),
        ((["a"], [], []), "train: expected whole numbers"),
    ],
)
def test_what_is_no_split_is_refused(value: Any, message: str) -> None:
    with pytest.raises(ExperimentError, match=message) as caught:
        returned(value)
    assert str(caught.value).startswith(f"data.split.function {HERE}:anything")


def test_the_function_has_to_be_there_and_to_take_the_arguments() -> None:
    for function, args, message in (
        ("nothing", {}, "has no 'nothing'"),
        ("anything", {}, '"value" is missing'),
        ("by_name", {"lasst": 1}, 'no argument "lasst"; did you mean "last"'),
        ("by_name", {"graphs": 1}, "data.split.args: graphs is given anyway"),
    ):
        with pytest.raises(ExperimentError, match=message):
            by_function(split(function, **args), 6, {"graphs": []})


def wants_n(n: int) -> Any:
    return [0], [1], [2]


def test_what_a_function_may_ask_for_is_said() -> None:
    asked = SplitByFunction(by="function", function=f"{__name__}:wants_n")
    given = {"labels": np.zeros(3), "num_graphs": 3, "graphs": []}
    expected = r'"n" is missing; it can ask for labels, num_graphs, graphs, by parameters of these names'
    with pytest.raises(ExperimentError, match=expected):
        by_function(asked, 3, given)


def test_graphs_are_looked_at_by_one_rank_and_the_split_is_part_of_the_run(tmp_path: Path) -> None:
    first = opened(tmp_path, "named", split=split("by_name").model_dump())
    labelled = first.node_attribute("graph", "y") >= 0
    assert np.array_equal(first.masks["test_mask"], labelled & (np.arange(40) % 5 == 4))
    other = opened(tmp_path, "named", split=split("by_name", last="m1").model_dump())
    assert other.manifest["split"] != first.manifest["split"]
    by_class = opened(tmp_path, "rings", split=split("by_class").model_dump())
    labels = by_class.node_attribute("graph", "y")
    assert np.array_equal(by_class.masks["train_mask"], labels == 0)
    with pytest.raises(ExperimentError, match="no graph is left to train on"):
        opened(tmp_path, "rings", split=split("anything", value=[[], [1], [2]]).model_dump())


def by_chance() -> Any:
    return np.split(np.random.default_rng().permutation(30), [10, 20])


def drawn(world: Any, directory: str) -> str:
    function = {"by": "function", "function": "tests.unit.test_data_own_split:by_chance"}
    return opened(directory, world=world, split=function).manifest["split"]


def test_all_ranks_have_the_same_split(tmp_path: Path) -> None:
    assert len(set(run_ranks(drawn, 2, str(tmp_path), machines=1))) == 1


def test_nodes_are_divided_by_a_function_too() -> None:
    source = GeneratedData(
        source="generated", nodes={"v": {"num_nodes": 50, "features": 2}}, num_classes=3, split=split("by_class")  # pyright: ignore
    )  # fmt: skip
    task = NodeClassification(kind="node_classification")
    store: Any = data.load(source, task).data["v"]
    assert torch.equal(store.train_mask, store.y == 0) and torch.equal(store.test_mask, store.y == 1)
    other = source.model_copy(update={"split": split("by_class", extra=1)})
    assert data.fingerprint(source, task) != data.fingerprint(other, task)
