"""The experiment's file: reading it with overrides, writing it resolved, and telling two experiments apart."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable
from pathlib import Path as FilePath
from typing import Any, NamedTuple, get_args, get_origin

from pydantic import BaseModel

from . import Experiment, ExperimentError
from .across import check_experiment, sound
from .check import Kind, Mistake, choose, field_kind, is_section, kind_of, members, nearest, shown
from .sweep import Point, Sweep, enumerate_points
from .yaml import Path, YamlError, dump_yaml, leaves, parse_path, parse_yaml, path_text


def read_experiment(path: str | FilePath, overrides: Iterable[str] = ()) -> Experiment:
    """Read a YAML file, lay overrides over it, and check everything.

    Args:
        path: the YAML file (YAML 1.2: only `true` and `false` are booleans, `1e-3` is a number).
        overrides: `key.path=value`, later ones win; values are YAML. Lists are reached by index
            (`sampling.fanout.0=15`), keys with commas or dots as they are or in brackets
            (`model.relations["paper,to,author"].conv=gat`).

    Raises:
        ExperimentError: one message with all mistakes, each with its path, its line or override, what was expected and
            what came, and for misspelt words the nearest valid one.
    """
    return parse_experiment(_text_of(path), overrides, str(path))


def parse_experiment(text: str, overrides: Iterable[str] = (), name: str = "the experiment") -> Experiment:
    """`read_experiment` for text that is at hand; `name` stands for the file in messages."""
    return _parse(text, overrides, name)[0]


def read_points(path: str | FilePath, overrides: Iterable[str] = ()) -> list[SweepPoint]:
    """The runs of a sweep, each a whole experiment with a run directory of its own, in that of the sweep.

    Args:
        path, overrides: see `read_experiment`; what a point sets wins.

    Raises:
        ExperimentError: as there; or it has no `sweep`.
    """
    experiment, points = _parse(_text_of(path), overrides, str(path))
    if experiment.sweep is None:
        raise ExperimentError(f"{path} has no `sweep`, of which this could be a point")
    return points


def read_point(path: str | FilePath, overrides: Iterable[str], which: str) -> Experiment:
    """One of them, by its name or its number from 0.

    Raises:
        ExperimentError: as `read_points`; or there is no such point.
    """
    points = read_points(path, overrides)
    found = [point for point in points if which in (point.name, str(point.number))]
    if not found:
        names = [point.name for point in points]
        close = nearest(which, names)
        known = (
            f"did you mean `{close}`?" if close else f"there are {', '.join(names[:10])}{', ...' * (len(names) > 10)}"
        )
        raise ExperimentError(
            f"{path}: the sweep has no point {which!r}; {known} (or a number from 0 to {len(points) - 1})"
        )
    return found[0].experiment


class SweepPoint(NamedTuple):
    """One run of a sweep."""

    number: int
    name: str
    settings: dict[Path, Any]
    experiment: Experiment


def _text_of(path: str | FilePath) -> str:
    try:
        return FilePath(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ExperimentError(f"{path}: there is no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ExperimentError(f"{path} cannot be read as UTF-8 text: {error}") from None


def _parse(text: str, overrides: Iterable[str], name: str) -> tuple[Experiment, list[SweepPoint]]:
    try:
        document = parse_yaml(text)
    except YamlError as error:
        raise ExperimentError(f"{name}: {error}") from None
    data = {} if document.value is None else document.value
    if not isinstance(data, dict):
        raise ExperimentError(
            f"{name}: expected a mapping with the keys {', '.join(Experiment.model_fields)}, got {shown(data)}"
        )
    origins = {where: f"line {line}" for where, line in document.lines.items() if where}
    mistakes = [Mistake(where, text) for where, text in document.repeated.items()]
    for override in overrides:
        _apply(data, override, origins, mistakes)

    checked = check_experiment(data, mistakes)
    points = _points(data, checked, mistakes)
    if mistakes:
        raise ExperimentError(_message(name, mistakes, origins))
    experiment = Experiment.model_validate(checked)
    return experiment, [
        SweepPoint(number, point.name, point.settings, _of_point(experiment, settings, point.name))
        for number, (point, settings) in enumerate(points)
    ]


def _points(data: dict[Any, Any], checked: Any, mistakes: list[Mistake]) -> list[tuple[Point, Any]]:
    """The points of the sweep with their checked settings; what is wrong with them joins the other mistakes."""
    if not isinstance(checked, dict) or checked.get("sweep") is None or not sound(mistakes, "sweep"):
        return []
    found, known = [], {(mistake.path, mistake.text) for mistake in mistakes}
    for point in enumerate_points(Sweep.model_validate(checked["sweep"])):
        settings = copy.deepcopy({key: value for key, value in data.items() if key != "sweep"})
        wrong: list[Mistake] = []
        for path, value in point.settings.items():
            try:
                _set(settings, path, copy.deepcopy(value))
            except YamlError as error:
                wrong.append(Mistake(path, str(error)))
        found.append((point, check_experiment(settings, wrong)))
        for mistake in wrong:
            if mistake not in known:  # what is wrong with many points is said of the first one
                known.add(mistake)
                mistakes.append(Mistake(("sweep",), f"point {point.name}: {path_text(mistake.path)}: {mistake.text}"))
    return found


def _of_point(experiment: Experiment, settings: Any, name: str) -> Experiment:
    return Experiment.model_validate({**settings, "sweep": None, "run_dir": f"{experiment.directory}/{name}"})


def write_experiment(experiment: Experiment, path: str | FilePath) -> None:
    """Write every setting, defaults too; `read_experiment` gives an equal experiment back. The file lands whole."""
    target = FilePath(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(dump_yaml(plain(experiment)), encoding="utf-8")
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def plain(value: Any) -> Any:
    """Sections as mappings and tuples as lists, the way YAML has them."""
    if isinstance(value, BaseModel):
        return {name: plain(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    return value


def differences(a: Any, b: Any, called: tuple[str, str] = ("there", "here")) -> list[str]:
    """Where two experiments (or sections, or plain values) differ: `train.lr: 0.005 there, 0.01 here`."""
    first, second = (dict(leaves(plain(side))) for side in (a, b))
    inner = {path[:n] for path in (*first, *second) for n in range(len(path))}  # of mappings that hold something
    return [
        f"{path_text(path)}: {_side(first, path)} {called[0]}, {_side(second, path)} {called[1]}"
        for path in dict.fromkeys((*first, *second))
        if not (path in inner and first.get(path, second.get(path)) == {})
        and (path not in first or path not in second or first[path] != second[path])
    ]


def _side(values: dict[Path, Any], path: Path) -> str:
    return shown(values[path]) if path in values else "nothing"


def _message(name: str, mistakes: list[Mistake], origins: dict[Path, str]) -> str:
    count = f"{len(mistakes)} mistakes" if len(mistakes) > 1 else "1 mistake"
    lines = []
    for path, text in sorted(mistakes, key=lambda mistake: _order(mistake.path, origins)):
        origin = _origin(path, origins)
        where = path_text(path) + (f" ({origin})" if origin else "")
        lines.append(f"  {where}: {text}" if where else f"  {text}")
    return "\n".join([f"{name}: {count}", *lines])


def _origin(path: Path, origins: dict[Path, str]) -> str | None:
    """Where a path was written; for what is missing, where the section it belongs to begins."""
    while path:
        if path in origins:
            return origins[path]
        path = path[:-1]
    return None


def _order(path: Path, origins: dict[Path, str]) -> tuple[int, int]:
    origin = _origin(path, origins) or ""
    return (0, int(origin[5:])) if origin.startswith("line ") else (1, 0)


# Overrides: `key.path=value` laid over the plain values.


def _split_override(override: str) -> tuple[str, str] | None:
    """The path and the value's text; an equals sign within brackets or before none at all does not divide."""
    depth = 0
    for i, letter in enumerate(override):
        depth += (letter == "[") - (letter == "]")
        if letter == "=" and depth == 0:
            return override[:i].strip(), override[i + 1 :]
    return None


def _apply(data: dict[Any, Any], override: str, origins: dict[Path, str], mistakes: list[Mistake]) -> None:
    parts = _split_override(override)
    if parts is None:
        mistakes.append(Mistake((), f"the override {override!r} is not of the form key.path=value"))
        return
    try:
        path = parse_path(parts[0])
        value = parse_yaml(parts[1]).value
    except YamlError as error:
        mistakes.append(Mistake((), f"the override {override!r}: {error}"))
        return
    try:
        where = _set(data, path, value)
    except YamlError as error:
        mistakes.append(Mistake((), f"the override {override!r}: {error}"))
        return
    for known in [known for known in origins if known[: len(where)] == where]:
        del origins[known]
    origins[where] = f"override {override}"


def _set(data: dict[Any, Any], path: Path, value: Any) -> Path:
    """Set one value, making sections on the way, and lists from their defaults.

    Returns:
        The path of what is new, spelt as the data does: that of the value, or of the first section made for it.
    """
    container: Any = data
    spelt: list[Any] = []
    new: Path | None = None
    for depth, step in enumerate(path):
        last = depth == len(path) - 1
        if isinstance(container, list):
            key: Any = _index(container, step, path[:depth])
        elif isinstance(container, dict):
            key = _key(container, step)
        else:
            raise YamlError(f"{path_text(path[:depth])} is {shown(container)}, it has no {step!r}")
        spelt.append(key)
        if last:
            container[key] = value
            break
        inside = container[key] if isinstance(container, list) else container.get(key)
        if inside is None:
            new = new or tuple(spelt)
            inside = _default(data, tuple(spelt))
            container[key] = inside = (
                inside if isinstance(inside, (dict, list)) and isinstance(path[depth + 1], int) else {}
            )
        container = inside
    return new or tuple(spelt)


def _index(container: list[Any], step: Any, path: Path) -> int:
    if not isinstance(step, int) or step >= len(container):
        indices = f"only the indices 0 to {len(container) - 1}" if container else "set all of it"
        raise YamlError(
            f"{path_text(path)} is a list of {len(container)}, {shown(container)}; it has no {step!r}, {indices}"
        )
    return step


def _key(container: dict[Any, Any], step: Any) -> Any:
    if step in container:
        return step
    if isinstance(step, int):
        return str(step)
    return next((key for key in container if isinstance(key, str) and _relation(key) == _relation(step)), step)


def _relation(text: str) -> str:
    return ",".join(part.strip() for part in text.split(","))


def _default(data: dict[Any, Any], path: Path) -> Any:
    """What the experiment has at `path` when the file says nothing, as plain values; None where that is unknown."""
    kind, value = Kind(Experiment), data
    for step in path:
        annotation = kind.annotation
        if kind.discriminator is not None:
            annotation = choose(kind, value) if isinstance(value, dict) else None
        elif get_origin(annotation) is dict:
            kind, value = kind_of(get_args(annotation)[1]), value.get(step) if isinstance(value, dict) else None
            continue
        annotation = next((m for m in members(annotation) if is_section(m)), None)
        field = annotation.model_fields.get(step) if annotation is not None else None
        if field is None:
            return None
        inner = value.get(step) if isinstance(value, dict) else None
        kind, value = field_kind(field), plain(field.default) if inner is None and not field.is_required() else inner
    return value
