"""Splits that go by the class, by folds, or by lists of rows: for graphs of a collection and for nodes alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..config import ExperimentError, SplitByFiles, SplitByFolds, SplitByFunction, SplitByRatio, SplitStratified
from .own_split import by_function, code_of
from .split import by_ratio, entries_there, round_half_up, shuffled

RowSplit = SplitByRatio | SplitByFolds | SplitByFiles | SplitByFunction


def split_rows(
    labels: np.ndarray,
    labelled: np.ndarray,
    split: RowSplit,
    given: Mapping[str, Any] | None = None,
    more: bool = False,
) -> tuple[np.ndarray, ...]:
    """Which rows train, validate and test, bool [num_rows] each.

    Args:
        labels: [num_rows, ...]
        labelled: bool [num_rows]: those with a label.
        given: what a function of the user's own gets beside `labels`.
        more: they come beside others, and may be fewer than folds.

    Raises:
        ExperimentError: the rows cannot be divided so.
    """
    if isinstance(split, SplitStratified):
        return stratified(labels, labelled, split)
    if isinstance(split, SplitByFolds):
        return by_folds(labels, labelled, split, more)
    if isinstance(split, SplitByFiles):
        return by_files(labelled, split)
    if isinstance(split, SplitByFunction):
        return by_function(split, len(labelled), {"labels": labels, **(given or {})})
    return by_ratio(labelled, split)


def split_in_turn(
    labels: np.ndarray,
    labelled: np.ndarray,
    split: RowSplit,
    ends: Sequence[int],
    given: Mapping[str, Any] | None = None,
) -> tuple[np.ndarray, ...]:
    """As `split_rows`, of rows that came one group after the other: each group is divided by itself, so those that were
    there first stay in the split that they were in. Files and functions of the user's own divide all of them.

    Args:
        ends: where each group ends, the last one with the last row.
        given: see `split_rows`.
    """
    if isinstance(split, (SplitByFiles, SplitByFunction)):
        return split_rows(labels, labelled, split, given)
    starts = [0, *ends[:-1]]
    groups = [
        split_rows(labels[start:end], labelled[start:end], split, more=start > 0) for start, end in zip(starts, ends)
    ]
    return tuple(np.concatenate(masks) for masks in zip(*groups))


def stratified(labels: np.ndarray, labelled: np.ndarray, split: SplitStratified) -> tuple[np.ndarray, ...]:
    """These shares of the labelled rows, and of each class to within one row; of several labels a row, see
    `by_label_sets`.

    Args:
        labels: a class of each row, or several labels.
        labelled: bool [num_rows]
    """
    if labels.ndim == 2:
        return by_label_sets(labels, labelled, split)
    order = by_class(labels, labelled, split.seed)
    classes = labels[order] if _has_classes(labels, labelled) else np.zeros(len(order), np.int64)
    shares = np.minimum(np.cumsum([split.train, split.val, split.test]), 1.0)
    part = np.empty(len(order), np.int64)
    for rows in np.split(np.arange(len(order)), np.flatnonzero(np.diff(classes)) + 1):
        ends = [round_half_up(len(rows) * share) for share in shares]
        part[rows] = np.searchsorted(ends, np.arange(len(rows)), side="right")
    return tuple(_mask(order[part == number], len(labelled)) for number in range(3))


def by_label_sets(labels: np.ndarray, labelled: np.ndarray, split: SplitByRatio) -> tuple[np.ndarray, ...]:
    """These shares of the labelled rows, and as nearly as may be of each label.

    Rows are put in the order of their labels, the first label first, so that those with the same labels stand together;
    each split gets its share evenly along that order. So of all rows, of those that have the first label, and of those
    with the same labels, each split has its share to within two rows.

    Args:
        labels: [num_rows, num_labels] zeros and ones; one that is missing is a value of its own.
        labelled: bool [num_rows]
    """
    rows = shuffled(np.flatnonzero(labelled), split.seed)
    values = np.where(entries_there(labels[rows]), labels[rows], -1).astype(np.int8)
    order = rows[np.lexsort(values.T[::-1])]
    shares = np.minimum(np.cumsum([split.train, split.val, split.test]), 1.0)
    ends = [round_half_up(len(order) * share) for share in shares]
    sizes, left, rest, masks = np.diff([0, *ends]), len(order), order, []
    # The smaller splits first, each evenly spread over what the ones before it have left.
    for number in (2, 1, 0):
        at, count = np.arange(left), int(sizes[number])
        taken = (at + 1) * count // max(left, 1) > at * count // max(left, 1)
        masks.append(_mask(rest[taken], len(labelled)))
        rest, left = rest[~taken], left - count
    return masks[2], masks[1], masks[0]


def by_folds(
    labels: np.ndarray, labelled: np.ndarray, split: SplitByFolds, more: bool = False
) -> tuple[np.ndarray, ...]:
    """Fold number `split.fold` tests; of the others, the share `split.val` validates and the rest trains.

    Each labelled row is in one fold. Folds are equal to within one row, and so is each class's part of them; likewise
    the validation rows.

    Args:
        labels, labelled: as for `stratified`.
        more: see `split_rows`.

    Raises:
        ExperimentError: there are fewer rows than folds.
    """
    order = by_class(labels if split.stratify else np.zeros(len(labels)), labelled, split.seed)
    if len(order) < split.folds and not more:
        raise ExperimentError(
            f"data.split.folds: {split.folds} folds of {len(order)} rows with a label leave some empty"
        )
    # Dealt out like cards, class after class.
    test = np.arange(len(order)) % split.folds == split.fold
    rest = order[~test]
    count = round_half_up(len(rest) * split.val)
    at = np.arange(len(rest))
    val = (at + 1) * count // max(len(rest), 1) > at * count // max(len(rest), 1)
    return tuple(_mask(rows, len(labelled)) for rows in (rest[~val], rest[val], order[test]))


def by_class(labels: np.ndarray, labelled: np.ndarray, seed: int) -> np.ndarray:
    """The labelled rows, class after class, those of a class in an order that the seed decides."""
    rows = shuffled(np.flatnonzero(labelled), seed)
    return rows[np.argsort(labels[rows], kind="stable")] if _has_classes(labels, labelled) else rows


def _has_classes(labels: np.ndarray, labelled: np.ndarray) -> bool:
    return labels.ndim == 1 and (
        labels.dtype.kind != "f" or bool((labels[labelled] == np.floor(labels[labelled])).all())
    )


def by_files(labelled: np.ndarray, split: SplitByFiles) -> tuple[np.ndarray, ...]:
    """The rows that files list by number.

    Raises:
        ExperimentError: a file cannot be read, or numbers what there is not, or two list the same row.
    """
    masks = []
    for name in ("train", "val", "test"):
        path = getattr(split, name)
        rows = np.empty(0, np.int64) if path is None else _read_rows(Path(path), f"data.split.{name}")
        outside = rows[(rows < 0) | (rows >= len(labelled))]
        if outside.size:
            raise ExperimentError(
                f"data.split.{name}: {path} lists row {outside[0]}; there are {len(labelled)}, from 0 on"
            )
        masks.append(_mask(rows, len(labelled)))
    for one, other, names in ((0, 1, "train and val"), (0, 2, "train and test"), (1, 2, "val and test")):
        both = np.flatnonzero(masks[one] & masks[other])
        if both.size:
            raise ExperimentError(f"data.split: {both.size} rows are in both {names}, the first is {both[0]}")
    return tuple(masks)


def split_files(split: object) -> list[str]:
    """The files that decide a split."""
    if isinstance(split, SplitByFunction):
        return code_of(split)
    if not isinstance(split, SplitByFiles):
        return []
    return [path for path in (split.train, split.val, split.test) if path is not None]


def _read_rows(path: Path, where: str) -> np.ndarray:
    try:
        if path.suffix == ".npy":
            rows = np.load(path, allow_pickle=False)
        else:
            rows = np.array([int(word) for word in path.read_text().replace(",", " ").split()], np.int64)
    except OSError as error:
        raise ExperimentError(f"{where}: {path} cannot be read: {error.strerror or error}") from None
    except (ValueError, OverflowError, EOFError) as error:
        raise ExperimentError(f"{where}: {path} holds no row numbers: {error}") from None
    if rows.ndim != 1 or rows.dtype.kind not in "iu":
        raise ExperimentError(f"{where}: expected whole numbers in one row, {path} holds {rows.dtype} {rows.shape}")
    return rows.astype(np.int64)


def _mask(rows: np.ndarray, length: int) -> np.ndarray:
    mask = np.zeros(length, dtype=bool)
    mask[rows] = True
    return mask
