"""A split by a function of the user's own: by scaffolds, by groups that belong together, by whatever it sees fit."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..config import ExperimentError, SplitByFunction
from .arguments import check_arguments
from .dotted import import_dotted

_PARTS = ("train", "val", "test")


def by_function(split: SplitByFunction, num_rows: int, given: Mapping[str, Any]) -> tuple[np.ndarray, ...]:
    """Which rows train, validate and test as the function says, bool [num_rows] each.

    Args:
        given: what the function gets of it, by the names of its parameters, beside `split.args`.

    Raises:
        ExperimentError: there is no such function, it does not take the arguments, or returns something else than three
            lists of numbers or masks without a row in common. What it raises itself propagates.
    """
    where = f"data.split.function {split.function}"
    found = _call(split, given)(**_taken(split, given), **split.args)
    if isinstance(found, Mapping):
        if unknown := [str(key) for key in found if key not in _PARTS]:
            raise ExperimentError(f"{where}: expected train, val and test, it also returned {', '.join(unknown)}")
        found = [found.get(part, []) for part in _PARTS]
    if not isinstance(found, (tuple, list)) or len(found) != 3:
        came = f"{len(found)} things" if isinstance(found, (tuple, list)) else f"a {type(found).__name__}"
        raise ExperimentError(
            f"{where}: expected three lists of row numbers, or three masks, for train, val and test; it returned {came}"
        )
    masks = [_mask(part, num_rows, f"{where}: {name}") for part, name in zip(found, _PARTS)]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        both = np.flatnonzero(masks[one] & masks[other])
        if both.size:
            raise ExperimentError(
                f"{where}: {both.size} rows are in both {_PARTS[one]} and {_PARTS[other]}, the first is {both[0]}"
            )
    return tuple(masks)


def code_of(split: SplitByFunction) -> list[str]:
    """The file that the function is in."""
    found = import_dotted(split.function, "data.split.function")
    file = getattr(sys.modules.get(getattr(found, "__module__", "")), "__file__", None)
    return [] if file is None else [file]


def _call(split: SplitByFunction, given: Mapping[str, Any]) -> Callable[..., Any]:
    function = import_dotted(split.function, "data.split.function")
    if not callable(function):
        raise ExperimentError(f"data.split.function: {split.function} is a {type(function).__name__}, not a function")
    if both := [name for name in split.args if name in given]:
        raise ExperimentError(f"data.split.args: {both[0]} is given anyway; name it otherwise")
    try:
        check_arguments(function, split.args, "data.split.args", given=list(given))
    except ExperimentError as error:
        raise ExperimentError(
            f"{error}; it can ask for {', '.join(given)}, by parameters of these names, and for what data.split.args "
            "gives"
        ) from None
    return function


def _taken(split: SplitByFunction, given: Mapping[str, Any]) -> dict[str, Any]:
    """Of what is given, that for which the function has a parameter."""
    parameters = inspect.signature(import_dotted(split.function, "data.split.function")).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return dict(given)
    return {name: value for name, value in given.items() if name in parameters}


def _mask(part: Any, num_rows: int, where: str) -> np.ndarray:
    try:
        rows = np.asarray(part)
    except ValueError:  # lists of differing lengths
        rows = np.empty(0, object)
    if not rows.size and rows.ndim == 1 and rows.dtype.kind == "f":  # an empty list
        rows = rows.astype(np.int64)
    if rows.ndim != 1 or rows.dtype.kind not in "iub":
        raise ExperimentError(
            f"{where}: expected whole numbers in one row, or a mask, got {rows.dtype} {list(rows.shape)}"
        )
    if rows.dtype == bool:
        if len(rows) != num_rows:
            raise ExperimentError(f"{where}: the mask has {len(rows)} places, and there are {num_rows} rows")
        return rows
    outside = rows[(rows < 0) | (rows >= num_rows)]
    if outside.size:
        raise ExperimentError(f"{where}: it has row {outside[0]}; there are {num_rows}, from 0 on")
    mask = np.zeros(num_rows, bool)
    mask[rows] = True
    if mask.sum() != len(rows):
        numbers, counts = np.unique(rows, return_counts=True)
        raise ExperimentError(f"{where}: it has row {numbers[counts > 1][0]} more than once")
    return mask
