"""Splits: disjoint, labelled nodes only, the same for ever."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter
from torch_geometric.data import HeteroData

from disttrain.config import ExperimentError, Split
from disttrain.data import left_out_lines
from disttrain.data.split import has_label, moment, shuffled, split_nodes

ADAPTER = TypeAdapter(Split)


def masks(split: dict[str, Any], **attributes: Any) -> list[list[int]]:
    data = HeteroData()
    data["v"].num_nodes = len(attributes["y"])
    for name, value in attributes.items():
        data["v"][name] = value
    split_nodes(data, "v", "y", ADAPTER.validate_python(split))
    return [data["v"][name].nonzero().flatten().tolist() for name in ("train_mask", "val_mask", "test_mask")]


def mask(*ids: int, size: int = 10) -> torch.Tensor:
    result = torch.zeros(size, dtype=torch.bool)
    result[list(ids)] = True
    return result


Y = torch.arange(10) % 3


def test_shuffle_is_decided_by_ids_and_seed_alone():
    # figures of an independent implementation in plain integers
    def mixed(value: int, seed: int) -> int:
        bits, golden = 2**64 - 1, 0x9E3779B97F4A7C15
        state = value * golden & bits
        for step in (seed, golden):
            state = state + step & bits
            state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & bits
            state = (state ^ state >> 27) * 0x94D049BB133111EB & bits
            state ^= state >> 31
        return state

    ids = np.arange(100)
    for seed in (0, 1, 12345):
        assert shuffled(ids, seed).tolist() == sorted(range(100), key=lambda i: mixed(i, seed))
    assert shuffled(ids[::-1], 7).tolist() == shuffled(ids, 7).tolist()
    assert shuffled(ids, 0).tolist() != shuffled(ids, 1).tolist()


def test_published_masks():
    given = {"train_mask": mask(0, 1, 2), "val_mask": mask(3, 4), "test_mask": mask(5)}
    assert masks({"by": "masks"}, y=Y, **given) == [[0, 1, 2], [3, 4], [5]]


def test_unlabelled_nodes_are_in_no_split():
    y = torch.tensor([0, -1, 1, float("nan"), 1, -1])
    given = {"train_mask": mask(0, 1, 2, size=6), "val_mask": mask(3, 4, size=6), "test_mask": mask(5, size=6)}
    assert masks({"by": "masks"}, y=y, **given) == [[0, 2], [4], []]


def test_labels_of_several_columns():
    labels = np.array([[0.0, 1.0], [np.nan, 1.0], [-1.0, np.nan]])
    assert has_label(labels).tolist() == [True, True, False], "one of several is enough"
    assert has_label(labels, numbers=True).tolist() == [True, True, True]
    assert has_label(np.array([[True], [False]])).tolist() == [True, True]


def test_validation_comes_from_train():
    given = {"train_mask": mask(*range(8)), "test_mask": mask(8, 9)}
    train, val, test = masks({"by": "masks", "val_from_train": 0.25}, y=Y, **given)
    assert (len(train), len(val), test) == (6, 2, [8, 9])
    assert sorted(train + val) == list(range(8))
    assert masks({"by": "masks", "val_from_train": 0.25, "seed": 1}, y=Y, **given)[1] != val


def test_masks_of_several_splits():
    given = {
        "train_mask": torch.stack([mask(0), mask(1)], dim=1),
        "val_mask": torch.stack([mask(2), mask(3)], dim=1),
        "test_mask": mask(4),
    }
    assert masks({"by": "masks", "column": 1}, y=Y, **given) == [[1], [3], [4]]
    with pytest.raises(ExperimentError, match=r"shape \(10, 2\), that is several splits.*\(0 to 1\).*not given"):
        masks({"by": "masks"}, y=Y, **given)
    with pytest.raises(ExperimentError, match=r"data\.split\.column is 2"):
        masks({"by": "masks", "column": 2}, y=Y, **given)


def test_ratio():
    split = {"by": "ratio", "train": 0.5, "val": 0.2, "test": 0.2, "seed": 3}
    train, val, test = masks(split, y=Y)
    assert [len(train), len(val), len(test)] == [5, 2, 2]
    assert len({*train, *val, *test}) == 9
    assert masks(split, y=Y) == [train, val, test]


def test_column():
    codes = torch.tensor([0] * 4 + [1] * 3 + [2] * 3)
    split = {"by": "column", "column": "part", "train": "0", "val": ["1"], "test": "2"}
    assert masks(split, y=Y, part=codes) == [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]
    with pytest.raises(ExperimentError, match="no row of column"):
        masks({"by": "column", "column": "part"}, y=Y, part=codes)
    with pytest.raises(ExperimentError, match='did you mean "part"'):
        masks({"by": "column", "column": "prt"}, y=Y, part=codes)
    with pytest.raises(ExperimentError, match="0 stands for more than one"):
        masks({**split, "test": "0"}, y=Y, part=codes)
    with pytest.raises(ExperimentError, match="split.test: no row .* has the value 3; there are: '0', '1', '2'"):
        masks({**split, "test": "3"}, y=Y, part=codes)


def test_values_that_stand_for_no_split_are_counted():
    data = HeteroData()
    data["v"].y, data["v"].part = Y, torch.tensor([0] * 4 + [1] * 3 + [2] * 2 + [5])
    split = ADAPTER.validate_python({"by": "column", "column": "part", "train": "0"})
    assert split_nodes(data, "v", "y", split) == {"1": 3, "2": 2, "5": 1}
    assert left_out_lines({"in_no_split": {"dev": 3, "": 1}}) == [
        "data.split: 3 rows of 'dev', in no split",
        "data.split: 1 row of '', in no split",
    ]


def test_time():
    year = torch.arange(2010, 2020)
    assert masks({"by": "time", "column": "year", "val": 2015, "test": 2017}, y=Y, year=year) == [
        [0, 1, 2, 3, 4],
        [5, 6],
        [7, 8, 9],
    ]
    seconds = torch.tensor([moment(f"20{i}-01-01", "") for i in range(10, 20)])
    split = {"by": "time", "column": "at", "val": "2015-01-01", "test": "2016-12-31T23:59:59"}
    assert masks(split, y=Y, at=seconds) == [[0, 1, 2, 3, 4], [5, 6], [7, 8, 9]]
    with pytest.raises(ExperimentError, match="must not be later"):
        masks({**split, "val": "2018-01-01"}, y=Y, at=seconds)
    with pytest.raises(ExperimentError, match="from 2010 to 2019, .* 1420070400 and 1483228799: all of them train"):
        masks({**split, "column": "year"}, y=Y, year=year)
    with pytest.raises(ExperimentError, match="nothing is left to train on"):
        masks({**split, "val": 2015, "test": 2017}, y=Y, at=seconds)
    with pytest.raises(ExperimentError, match="ISO date such as"):
        masks({**split, "val": "January"}, y=Y, at=seconds)


def test_columns_of_one_value_for_each_node():
    split = {"by": "time", "column": "at", "val": 5, "test": 8}
    at = torch.arange(10.0)
    assert masks(split, y=Y, at=at.unsqueeze(1)) == masks(split, y=Y, at=at)
    with pytest.raises(ExperimentError, match=r'"at" of "v" has shape \[10, 2\]; expected one value'):
        masks(split, y=Y, at=at.unsqueeze(1).expand(10, 2))


@pytest.mark.parametrize("wrong", [0.5, float("inf")])
def test_labels_that_are_no_whole_numbers_are_refused(wrong: float):
    split = {"by": "ratio", "train": 0.6, "val": 0.2, "test": 0.2}
    for label in (torch.arange(10.0), torch.ones(10, 3)):
        masks(split, y=label)
        label.view(-1)[3] = wrong
        with pytest.raises(ExperimentError, match=f'"y" of node type "v" holds {wrong:g}; expected classes'):
            masks(split, y=label)


def test_moments():
    assert moment("1970-01-02", "") == 86400
    assert moment("1970-01-01T01:00:00+01:00", "") == 0
    assert moment("2013.5", "") == 2013.5


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "has no train_mask; choose"),
        ({"train_mask": mask(0)}, "publishes no validation nodes"),
        ({"train_mask": mask(0, 1), "val_mask": mask(1)}, '1 nodes of "v" are in both train_mask and val_mask'),
        ({"train_mask": mask(), "val_mask": mask(1)}, "left to train on"),
    ],
)
def test_masks_refused(given: dict[str, torch.Tensor], said: str):
    with pytest.raises(ExperimentError, match=said):
        masks({"by": "masks"}, y=Y, **given)
