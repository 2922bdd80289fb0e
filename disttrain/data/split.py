"""Which nodes train, validate and test: three disjoint boolean masks over labelled nodes."""

from __future__ import annotations

import datetime

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.data.storage import NodeStorage

from ..config import (
    ExperimentError,
    Names,
    Split,
    SplitByColumn,
    SplitByFiles,
    SplitByFolds,
    SplitByFunction,
    SplitByMasks,
    SplitByRatio,
    SplitByTime,
)
from .nearest import nearest

MASKS = ("train_mask", "val_mask", "test_mask")
_SHOWN = 8


def split_nodes(data: HeteroData, node_type: str, label: str, split: Split, *, numbers: bool = False) -> dict[str, int]:
    """Set `train_mask`, `val_mask` and `test_mask` (bool [num_nodes]) of a node type.

    Args:
        numbers: the label is any number (regression), not a class.

    Returns:
        See `other_names`.

    Raises:
        ExperimentError: if what the split needs is not there, or nothing is left to train on.
    """
    store = data[node_type]
    labelled = has_label(store[label].numpy(), numbers)
    where = f'task.label: attribute "{label}" of node type "{node_type}"'
    check_labels(store[label].numpy()[labelled], where, numbers)
    refuse_signs(store[label].numpy(), where, numbers)
    others: dict[str, int] = {}
    if isinstance(split, SplitByMasks):
        masks = _published(store, node_type, split, labelled)
    elif isinstance(split, (SplitByRatio, SplitByFolds, SplitByFiles, SplitByFunction)):
        from .folds import split_rows

        given = {"num_nodes": len(labelled), "graph": data, "node_type": node_type}
        masks = split_rows(store[label].numpy(), labelled, split, given)
    else:
        if split.column not in store:
            raise ExperimentError(
                f'data.split.column: "{node_type}" has no attribute "{split.column}"'
                f"{nearest(split.column, store.keys())}"
            )
        values = store[split.column].numpy()
        if values.ndim == 2 and values.shape[1] == 1:
            values = values[:, 0]
        if values.ndim != 1:
            raise ExperimentError(
                f'data.split.column: "{split.column}" of "{node_type}" has shape {list(values.shape)}; expected one '
                "value for each node"
            )
        if isinstance(split, SplitByColumn):
            masks, others = by_names(values, split), other_names(values, split)
        else:
            masks = by_time(values, split)
    set_masks(store, masks, labelled, node_type)
    return others


def set_masks(store: NodeStorage, masks: tuple[np.ndarray, ...], labelled: np.ndarray, node_type: str) -> None:
    """Write the masks, without unlabelled nodes."""
    for name, mask in zip(MASKS, masks):
        store[name] = torch.from_numpy(mask & labelled)
    if not store.train_mask.any():
        raise ExperimentError(
            f'data.split: no node of "{node_type}" is left to train on ({int(labelled.sum())} of {len(labelled)} have '
            "a label); look at the split and the label"
        )


def has_label(labels: np.ndarray, numbers: bool = False) -> np.ndarray:
    """Which rows have a label, bool [num_nodes]; of several labels or targets, at least one. See `entries_there`."""
    return np.asarray(entries_there(labels, numbers).any(axis=tuple(range(1, labels.ndim))))


def entries_there(labels: np.ndarray, numbers: bool = False) -> np.ndarray:
    """Which entries are a label, bool of the same shape: one that is NaN is none.

    Args:
        numbers: any number is one; otherwise a negative one is none.
    """
    if labels.dtype.kind == "b" or (numbers and labels.dtype.kind != "f"):
        return np.ones(labels.shape, dtype=bool)
    # what is not a number is not at least 0 either
    return ~np.isnan(labels) if numbers else np.greater_equal(labels, 0)


def check_labels(labels: np.ndarray, where: str, numbers: bool) -> None:
    """Refuse labels that cannot be learnt.

    Args:
        labels: of the rows that have one, see `has_label`; entries that are not there are left alone.

    Raises:
        ExperimentError: classes that are no whole numbers, or numbers that are infinite.
    """
    (_check_numbers if numbers else _check_classes)(labels, where)


def _check_classes(labels: np.ndarray, where: str) -> None:
    """Refuse labels that would be cut off to whole numbers."""
    if labels.dtype.kind == "f":
        wrong = labels[~np.isnan(labels) & (np.isinf(labels) | (labels != np.floor(labels)))]
        if wrong.size:
            raise ExperimentError(
                f"{where} holds {wrong.flat[0]:g}; expected classes, whole numbers from 0 on, or zeros and ones for "
                "several labels (NaN or negative: no label)"
            )


def _check_numbers(labels: np.ndarray, where: str) -> None:
    if labels.dtype.kind == "f" and np.isinf(labels).any():
        raise ExperimentError(f"{where} holds infinite values; expected numbers (NaN: no label)")


def refuse_signs(labels: np.ndarray, where: str, numbers: bool) -> None:
    """Refuse classes that are written -1 and 1: a negative number stands for no label, so that one of them would be
    lost.

    Args:
        labels: of all rows, also of those without one.
        numbers: they are no classes.

    Raises:
        ExperimentError: they are nothing else (but missing).
    """
    if numbers or labels.dtype.kind not in "if" or not (labels == -1).any() or not (labels == 1).any():
        return
    if ((np.abs(labels) == 1) | np.isnan(labels)).all():
        raise ExperimentError(
            f"{where} holds nothing but -1 and 1, and a negative number stands for no label, so that only the class 1 "
            "would be there; number the classes from 0 on: make the -1 a 0 where the data are made, "
            "`y = (y + 1) // 2` (if -1 is meant to be no label, there is one class only, and nothing to learn)"
        )


def _published(store: NodeStorage, node_type: str, split: SplitByMasks, labelled: np.ndarray) -> tuple[np.ndarray, ...]:
    if "train_mask" not in store:
        raise ExperimentError(
            f'data.split: "{node_type}" has no train_mask; choose {{by: ratio, train: 0.6, val: 0.2, test: 0.2}}, '
            "{by: column, ...} or {by: time, ...}"
        )
    train, val, test = (_one_mask(store, name, node_type, split.column) for name in MASKS)
    for (one, a), (other, b) in (
        (("train", train), ("val", val)),
        (("train", train), ("test", test)),
        (("val", val), ("test", test)),
    ):
        if both := int((a & b & labelled).sum()):
            raise ExperimentError(f'data.split: {both} nodes of "{node_type}" are in both {one}_mask and {other}_mask')
    if split.val_from_train > 0:
        chosen = np.flatnonzero(train & labelled)
        held_out = shuffled(chosen, split.seed)[: round_half_up(len(chosen) * split.val_from_train)]
        val = val.copy()
        train = train.copy()
        val[held_out], train[held_out] = True, False
    elif not val.any():
        raise ExperimentError(
            f'data.split: the data set publishes no validation nodes of "{node_type}"; hold some out of the training '
            "nodes: {by: masks, val_from_train: 0.2}"
        )
    return train, val, test


def _one_mask(store: NodeStorage, name: str, node_type: str, column: int | None) -> np.ndarray:
    if name not in store:
        return np.zeros(int(store.num_nodes or 0), dtype=bool)
    mask: Tensor = store[name].bool()
    if mask.dim() == 1:
        return mask.numpy()
    if mask.dim() != 2 or column is None or column >= mask.size(1):
        came = "data.split.column is not given" if column is None else f"data.split.column is {column}"
        raise ExperimentError(
            f'data.split: {name} of "{node_type}" has shape {tuple(mask.shape)}, that is several splits: choose one by '
            f"{{by: masks, column: 0}} (0 to {mask.size(1) - 1}); {came}"
        )
    return mask[:, column].numpy()


def by_ratio(labelled: np.ndarray, split: SplitByRatio) -> tuple[np.ndarray, ...]:
    """Exactly these shares of the labelled rows, drawn by a hash of row number and seed."""
    order = shuffled(np.flatnonzero(labelled), split.seed)
    shares = np.cumsum([split.train, split.val, split.test])
    ends = [round_half_up(len(order) * min(share, 1.0)) for share in shares]
    masks = []
    for begin, end in zip([0, *ends], ends):
        mask = np.zeros(len(labelled), dtype=bool)
        mask[order[begin:end]] = True
        masks.append(mask)
    return tuple(masks)


def by_names(values: np.ndarray, split: SplitByColumn) -> tuple[np.ndarray, ...]:
    """Rows whose value, written as text, is among the names of a split."""
    text = values.astype(str)
    masks = tuple(np.isin(text, names) for names in (split.train, split.val, split.test))
    _refuse_shared_names(split)
    for part, names, mask in zip(("train", "val", "test"), (split.train, split.val, split.test), masks):
        if names and not mask.any() and (part == "train" or part in split.model_fields_set):
            came = ", ".join(repr(str(value)) for value in np.unique(text)[:8])
            raise ExperimentError(
                f'data.split.{part}: no row of column "{split.column}" has the value {" or ".join(names)}; there are: '
                f"{came}"
            )
    return masks


def other_names(values: np.ndarray, split: SplitByColumn) -> dict[str, int]:
    """Values that stand for no split, with how many rows have each; of many, the commonest."""
    found, counts = np.unique(values.astype(str), return_counts=True)
    others = [(int(n), str(v)) for v, n in zip(found, counts) if v not in (*split.train, *split.val, *split.test)]
    return {value: rows for rows, value in sorted(others, key=lambda other: (-other[0], other[1]))[:_SHOWN]}


def _refuse_shared_names(split: SplitByColumn) -> None:
    names: Names = (*split.train, *split.val, *split.test)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ExperimentError(f"data.split: {', '.join(twice)} stands for more than one of train, val and test")


def by_time(values: np.ndarray, split: SplitByTime) -> tuple[np.ndarray, ...]:
    """Rows before `val`, from `val` to before `test`, and from `test` on. A missing time is in none of them."""
    val, test = moment(split.val, "data.split.val"), moment(split.test, "data.split.test")
    if not val <= test:
        raise ExperimentError(f"data.split: val ({split.val}) must not be later than test ({split.test})")
    values = values.astype(np.float64)
    masks = values < val, (values >= val) & (values < test), values >= test
    if not masks[0].any() or not (masks[1].any() or masks[2].any()):
        known = values[np.isfinite(values)]
        came = f"from {known.min():.16g} to {known.max():.16g}" if len(known) else "all missing"
        left = "nothing is left to train on" if not masks[0].any() else "all of them train"
        raise ExperimentError(
            f"data.split: the times of {split.column} are {came}, and what divides them {val:.16g} and {test:.16g}: "
            f"{left} (dates are seconds since 1970)"
        )
    return masks


def moment(value: str | float, where: str) -> float:
    """A number as it is; an ISO date or date-time as seconds since 1970 (UTC unless it says otherwise)."""
    if not isinstance(value, str):
        return float(value)
    try:
        return float(value)
    except ValueError:
        pass
    try:
        when = datetime.datetime.fromisoformat(value.replace("Z", "+00:00"))
    except ValueError:
        raise ExperimentError(f"{where}: expected a number or an ISO date such as 2013-10-01, got {value!r}") from None
    if when.tzinfo is None:
        when = when.replace(tzinfo=datetime.timezone.utc)
    return when.timestamp()


def round_half_up(value: float) -> int:
    """The nearest integer; 2.5 is 3."""
    return int(np.floor(value + 0.5))


def shuffled(ids: np.ndarray, seed: int) -> np.ndarray:
    """`ids` in an order that only their values and the seed decide, whatever the versions of libraries.

    Each id is hashed with the finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
    """
    state = np.uint64(seed % 2**64)
    with np.errstate(over="ignore"):
        hashed = ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        for value in (state, np.uint64(0x9E3779B97F4A7C15)):
            hashed = hashed + value
            hashed = (hashed ^ (hashed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            hashed = (hashed ^ (hashed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            hashed = hashed ^ (hashed >> np.uint64(31))
    return ids[np.lexsort((ids, hashed))]
