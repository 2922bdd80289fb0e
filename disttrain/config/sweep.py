"""Several runs of one experiment that differ in some settings."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple, get_args

from pydantic import model_validator

from .evaluate import Evaluate
from .partition import Partition
from .sampling import Sampling
from .section import Section
from .train import Train
from .yaml import Path, YamlError, parse_path, path_text

MOST_POINTS = 1000
"""As many runs a sweep may have; Slurm's arrays have no more unless told otherwise."""
_LONGEST_NAME = 120
_OF_THE_WHOLE = ("name", "run_dir", "sweep", "launch")
"""Settings that all points share."""


class Sweep(Section):
    """Runs of this experiment, each with overrides of its own: every set of `points` with every combination of
    `grid`."""

    grid: dict[str, Any] = {}
    """A setting, and the list of its values: `{train.lr: [0.01, 0.001], seed: [0, 1, 2]}`."""
    points: tuple[dict[str, Any], ...] = ()
    """Sets of overrides: `[{model.conv: sage}, {model.conv: gat, model.heads: 4}]`."""
    metric: str | None = None
    """The table of results is sorted by this validation metric; null: by that which chooses the best checkpoint."""

    @model_validator(mode="after")
    def _has_points(self) -> Sweep:
        enumerate_points(self)
        return self


class Point(NamedTuple):
    """One run of a sweep."""

    name: str
    """Of its folder; it stays the same when other values are added to the sweep."""
    settings: dict[Path, Any]


def enumerate_points(sweep: Sweep) -> list[Point]:
    """The runs of a sweep, in the order of the file; of the grid, the last setting changes fastest.

    Raises:
        ValueError: it has none or too many, a setting is no path, its values are no list, or two runs are the same.
    """
    grid = dict(_flat(sweep.grid))
    sets = [_parsed(point) for point in sweep.points] or [{}]
    for path, values in grid.items():
        if not isinstance(values, list) or not values:
            raise ValueError(
                f"grid: expected a list of values for {path_text(path)}, got {json.dumps(values, default=str)}"
            )
        if any(path in point for point in sets):
            raise ValueError(f"{path_text(path)} is in points and in grid: one of them would have no effect")
    if not grid and not sweep.points:
        raise ValueError("expected grid (settings with lists of values) or points (a list of sets of overrides)")
    for path in dict.fromkeys(path for settings in (grid, *sets) for path in settings):
        if path[0] in _OF_THE_WHOLE:
            raise ValueError(f"{path_text(path)} is the same for all points of a sweep")
    number = len(sets)
    for values in grid.values():
        number *= len(values)
    if number > MOST_POINTS:
        raise ValueError(f"expected at most {MOST_POINTS} points, got {number}")
    found = [{**point, **dict(zip(grid, values))} for point in sets for values in itertools.product(*grid.values())]
    _refuse_twins(found)
    return [Point(name, settings) for name, settings in zip(_names(found), found)]


def _flat(settings: dict[Any, Any], path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Settings by their whole paths, also those that are written as sections (as overrides make them)."""
    for key, value in settings.items():
        here = (*path, *_path(key))
        if isinstance(value, dict) and value:
            yield from _flat(value, here)
        else:
            yield here, value


def _parsed(point: dict[str, Any]) -> dict[Path, Any]:
    """Settings by their paths. Those of `train: {lr: 0.1}` are the ones that are named, as in the grid: all others of
    the section stay as they are in the file. What names its kind (`model`, `data`, `task`) is a value by itself."""
    found: dict[Path, Any] = {}
    for key, value in point.items():
        path = _path(key)
        section = _WITHOUT_KINDS.get(path[0]) if len(path) == 1 else None
        found |= {path: value} if section is None else dict(_within(section, value, path))
    return found


_WITHOUT_KINDS: dict[Any, type[Section]] = {
    "partition": Partition, "sampling": Sampling, "train": Train, "evaluate": Evaluate,
}  # fmt: skip


def _within(section: type[Section], value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    if not isinstance(value, dict):
        yield path, value
        return
    for key, inner in value.items():
        field = section.model_fields.get(key)
        kinds = [] if field is None else [field.annotation, *get_args(field.annotation)]
        deeper = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section)), None)
        if deeper is None:
            yield (*path, key), inner
        else:
            yield from _within(deeper, inner, (*path, key))


def _path(key: Any) -> Path:
    try:
        return parse_path(str(key))
    except YamlError as error:
        raise ValueError(str(error)) from None


def _refuse_twins(points: list[dict[Path, Any]]) -> None:
    seen: dict[str, int] = {}
    for number, settings in enumerate(points):
        text = _identity(settings)
        if text in seen:
            raise ValueError(f"points {seen[text]} and {number} are the same, {_described(settings)}")
        seen[text] = number


def _identity(settings: dict[Path, Any]) -> str:
    """Unlike names, it tells 1 from "1"."""
    return json.dumps(sorted((path_text(path), value) for path, value in settings.items()), default=str)


def _described(settings: dict[Path, Any]) -> str:
    return (
        ", ".join(f"{path_text(path)}={value_text(value)}" for path, value in settings.items()) or "without overrides"
    )


def _names(points: list[dict[Path, Any]]) -> list[str]:
    """A folder's name for each: its settings, as short as they are told apart by."""
    short = short_names(list(dict.fromkeys(path for settings in points for path in settings)))
    names = [_folder(",".join(f"{short[path]}={value_text(value)}" for path, value in s.items())) for s in points]
    return [
        name if names.count(name) == 1 else f"{name}-{_digest(_identity(settings))}"
        for name, settings in zip(names, points)
    ]


def short_names(paths: list[Path]) -> dict[Path, str]:
    """For each path the fewest of its last steps that no other one ends in."""
    found = {}
    for path in paths:
        for length in range(1, len(path) + 1):
            if length == len(path) or sum(other[-length:] == path[-length:] for other in paths) == 1:
                found[path] = ".".join(str(step) for step in path[-length:])
                break
    return found


def value_text(value: Any) -> str:
    """A value as names and tables have it."""
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), default=str)


def _folder(text: str) -> str:
    name = re.sub(r"[^\w.=,+\-]+", "_", text, flags=re.ASCII) or "base"
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 17]}-{_digest(text)}"


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
