"""Splits by class, by folds and by files: exact sizes, each row in one part, the same for the same seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from disttrain.config import ExperimentError, SplitByFiles, SplitByFolds, SplitStratified
from disttrain.data.folds import split_files, split_rows


def folds(**settings: Any) -> SplitByFolds:
    return SplitByFolds(by="folds", **settings)


LABELS = st.lists(st.integers(-1, 3), min_size=12, max_size=60).map(np.array)


@given(labels=LABELS, count=st.integers(2, 10), val=st.sampled_from([0.0, 0.1, 0.5]), seed=st.integers(0, 3))
def test_each_row_is_tested_in_one_fold(labels: np.ndarray, count: int, val: float, seed: int) -> None:
    labelled = labels >= 0
    if labelled.sum() < count:
        return
    parts = [split_rows(labels, labelled, folds(folds=count, fold=k, val=val, seed=seed)) for k in range(count)]
    assert np.array_equal(sum(test.astype(int) for _, _, test in parts), labelled)
    for train, validate, test in parts:
        assert (train.astype(int) + validate + test == labelled).all()
        assert abs(int(test.sum()) - labelled.sum() / count) < 1
        assert validate.sum() == np.floor((labelled.sum() - test.sum()) * val + 0.5)
        for label in range(4):
            of_class = (labels == label).sum()
            assert abs((test & (labels == label)).sum() - of_class / count) <= 1
            assert abs((validate & (labels == label)).sum() - (of_class - (test & (labels == label)).sum()) * val) <= 1


@given(labels=LABELS, seed=st.integers(0, 3))
def test_a_stratified_split_has_its_shares_of_each_class(labels: np.ndarray, seed: int) -> None:
    labelled, shares = labels >= 0, (0.6, 0.2, 0.1)
    split = SplitStratified(by="stratified", train=0.6, val=0.2, test=0.1, seed=seed)
    masks = split_rows(labels, labelled, split)
    assert (sum(mask.astype(int) for mask in masks) <= labelled).all()
    for label in range(4):
        for mask, share in zip(masks, shares):
            assert abs((mask & (labels == label)).sum() - (labels == label).sum() * share) <= 1


SEVERAL = st.lists(st.tuples(*[st.sampled_from([0.0, 1.0, np.nan])] * 3), min_size=1, max_size=80).map(np.array)


@given(labels=SEVERAL, seed=st.integers(0, 3))
def test_of_several_labels_each_set_has_its_share_in_each_split(labels: np.ndarray, seed: int) -> None:
    labelled, shares = np.asarray(~np.isnan(labels).all(axis=1)), (0.6, 0.2, 0.1)
    split = SplitStratified(by="stratified", train=0.6, val=0.2, test=0.1, seed=seed)
    masks = split_rows(labels, labelled, split)
    assert (sum(mask.astype(int) for mask in masks) <= labelled).all()
    sets = np.unique(np.nan_to_num(labels, nan=-1.0), axis=0, return_inverse=True)[1].reshape(-1)
    for rows in (labelled, labelled & (labels[:, 0] == 1), *(labelled & (sets == number) for number in set(sets))):
        for mask, share in zip(masks, shares):
            assert abs((mask & rows).sum() - rows.sum() * share) < 2
    for mask, end, start in zip(masks, (0.6, 0.8, 0.9), (0, 0.6, 0.8)):
        assert mask.sum() == np.floor(labelled.sum() * end + 0.5) - np.floor(labelled.sum() * start + 0.5)
    again = split_rows(labels, labelled, split)
    assert all(np.array_equal(one, other) for one, other in zip(masks, again))


def test_seeds_and_labels_decide() -> None:
    labels = np.arange(40) % 2
    every = np.ones(40, dtype=bool)

    def test_part(split: SplitByFolds, of: np.ndarray = labels) -> list[int]:
        return np.flatnonzero(split_rows(of, every, split)[2]).tolist()

    assert test_part(folds()) == test_part(folds()) != test_part(folds(seed=1))
    assert test_part(folds(stratify=False)) != test_part(folds())
    # Without classes there is nothing to stratify by.
    assert test_part(folds(), labels + 0.5) == test_part(folds(stratify=False), labels + 0.5)
    assert test_part(folds(), np.stack([labels, labels], 1)) == test_part(folds(stratify=False))


def test_what_cannot_be_folds_is_refused() -> None:
    with pytest.raises(ValidationError, match="fold must be 0 to 4, got 5"):
        folds(folds=5, fold=5)
    with pytest.raises(ExperimentError, match="10 folds of 3 rows with a label leave some empty"):
        split_rows(np.arange(3), np.ones(3, dtype=bool), folds())


def files(tmp_path: Path, **texts: str) -> SplitByFiles:
    for name, text in texts.items():
        (tmp_path / f"{name}.txt").write_text(text)
    return SplitByFiles(by="files", **{name: str(tmp_path / f"{name}.txt") for name in texts})


def test_files_list_rows(tmp_path: Path) -> None:
    np.save(tmp_path / "test.npy", np.array([5]))
    split = files(tmp_path, train="0\n2\n", val="1, 3").model_copy(update={"test": str(tmp_path / "test.npy")})
    masks = split_rows(np.zeros(6), np.ones(6, dtype=bool), split)
    assert [np.flatnonzero(mask).tolist() for mask in masks] == [[0, 2], [1, 3], [5]]
    assert [Path(path).name for path in split_files(split)] == ["train.txt", "val.txt", "test.npy"]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"train": "0 6"}, "lists row 6; there are 6, from 0 on"),
        ({"train": "0 -1"}, "lists row -1"),
        ({"train": "0 a"}, "data.split.train: .* holds no row numbers"),
        ({"train": "0 1", "test": "1"}, "1 rows are in both train and test, the first is 1"),
    ],
)
def test_files_that_list_something_else_are_refused(tmp_path: Path, texts: dict[str, str], message: str) -> None:
    with pytest.raises(ExperimentError, match=message):
        split_rows(np.zeros(6), np.ones(6, dtype=bool), files(tmp_path, **texts))


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    split = SplitByFiles(by="files", train=str(tmp_path / "nothing.txt"))
    with pytest.raises(ExperimentError, match=r"data.split.train: .*nothing.txt cannot be read: No such file"):
        split_rows(np.zeros(6), np.ones(6, dtype=bool), split)
