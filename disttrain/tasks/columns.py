"""Predictions and labels as Arrow columns: what the files of `disttrain predict` hold beside keys and embeddings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from torch import Tensor

Columns = dict[str, pa.Array]
"""Name -> column; the same names and types for any number of rows, also for none."""


def rows_of(numbers: Tensor) -> pa.Array:
    """[N, W] floating -> one list of W float32 a row."""
    values = np.ascontiguousarray(numbers.detach().cpu().float().numpy())
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1), pa.float32()), values.shape[1])


def class_columns(probabilities: Tensor, names: Sequence[str]) -> Columns:
    """One class per row: `prediction`, the most probable one, `prediction_name` where names are known, and
    `probabilities` of all.

    Args:
        probabilities: [N, C].
        names: of the classes from 0 on, or nothing.
    """
    return {
        **named("prediction", pa.array(probabilities.argmax(dim=1).numpy(), pa.int32()), names),
        "probabilities": rows_of(probabilities),
    }


def label_set_columns(probabilities: Tensor, names: Sequence[str]) -> Columns:
    """Several labels per row: `prediction`, the numbers of those above one half, `prediction_name`, and
    `probabilities` of all."""
    return {
        **named("prediction", label_sets(probabilities.numpy() > 0.5), names),
        "probabilities": rows_of(probabilities),
    }


def label_sets(member: np.ndarray, present: np.ndarray | None = None) -> pa.Array:
    """bool [N, L] -> a list of label numbers a row, null where `present` (bool [N]) is false."""
    if present is not None:
        member = member & present[:, None]
    ends = np.concatenate([[0], np.cumsum(member.sum(axis=1))]).astype(np.int32)
    numbers = pa.array(np.nonzero(member)[1], pa.int32())
    absent = None if present is None else pa.array(~present)
    return pa.ListArray.from_arrays(pa.array(ends), numbers, mask=absent)


def named(column: str, numbers: pa.Array, names: Sequence[str]) -> Columns:
    """A column of class numbers, or lists of them, and with it one of names where these are known."""
    if not names:
        return {column: numbers}
    texts = pa.array([str(name) for name in names], pa.string())
    if isinstance(numbers, pa.ListArray):
        mask = numbers.is_null() if numbers.null_count else None
        known = pa.ListArray.from_arrays(numbers.offsets, _names(numbers.values, texts), mask=mask)
    else:
        known = _names(numbers, texts)
    return {column: numbers, f"{column}_name": known}


def _names(numbers: pa.Array, texts: pa.Array) -> pa.Array:
    # A class beyond the names that are known has none.
    known = numbers.to_numpy(zero_copy_only=False)
    known = np.where(np.isnan(known), -1, known).astype(np.int64) if known.dtype.kind == "f" else known
    inside = (known >= 0) & (known < len(texts))
    return texts.take(pa.array(np.where(inside, known, 0), pa.int64(), mask=~inside))
