"""The experiment's file: reading it with overrides, writing it resolved, and telling two experiments apart."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path as FilePath
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from . import Experiment, ExperimentError, TablesData, fanout_conflicts, parse_edge_type, task_conflicts
from .check import Kind, Mistake, check, choose, field_kind, is_section, kind_of, members, nearest, shown
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
    try:
        text = FilePath(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ExperimentError(f"{path}: there is no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ExperimentError(f"{path} cannot be read as UTF-8 text: {error}") from None
    return parse_experiment(text, overrides, str(path))


def parse_experiment(text: str, overrides: Iterable[str] = (), name: str = "the experiment") -> Experiment:
    """`read_experiment` for text that is at hand; `name` stands for the file in messages."""
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

    checked = check(Kind(Experiment), data, (), mistakes)
    mistakes.extend([*_fanout_mistakes(checked, mistakes), *_metric_mistakes(checked, mistakes)])
    mistakes.extend([*_layerwise_mistakes(checked), *_task_mistakes(checked, mistakes)])
    mistakes.extend(_node_type_mistakes(checked, mistakes))
    if mistakes:
        raise ExperimentError(_message(name, mistakes, origins))
    return Experiment.model_validate(checked)


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


def _sound(mistakes: list[Mistake], *path: str) -> bool:
    """Whether nothing is wrong at a path, above or below it."""
    return not any(m.path and (m.path[: len(path)] == path or path[: len(m.path)] == m.path) for m in mistakes)


def _layerwise_mistakes(checked: Any) -> list[Mistake]:
    """Layer-wise scores, against neighbours that depend on the seed."""
    evaluate, sampling = (checked.get(key) or {} for key in ("evaluate", "sampling"))
    if not isinstance(evaluate, dict) or not isinstance(sampling, dict) or sampling.get("time_attr") is None:
        return []
    text = (
        "layerwise computes each node once, but with sampling.time_attr it depends on the seed which neighbours count; "
        "set evaluate.method=sampled (with sampling.eval_fanout -1 for all of them)"
    )
    return [Mistake(("evaluate", "method"), text)] if evaluate.get("method") == "layerwise" else []


def _node_type_mistakes(checked: Any, mistakes: list[Mistake]) -> list[Mistake]:
    """Node types that relations, foreign keys and the task name, against those of the tables."""
    data, task = checked.get("data"), checked.get("task")
    if not isinstance(data, dict) or data.get("source") != "tables" or not _sound(mistakes, "data"):
        return []
    tables = TablesData.model_validate(data)
    named: list[tuple[Path, str]] = [
        (("data", "edges", name), end) for name in tables.edges for end in parse_edge_type(name)[::2]
    ]
    for name, table in tables.nodes.items():
        keys = table.references
        named += [(("data", "nodes", name, "foreign_keys", relation), key.type) for relation, key in keys.items()]
    if isinstance(task, dict) and isinstance(task.get("node_type"), str):
        named.append((("task", "node_type"), task["node_type"]))
    found = []
    for path, node_type in named:
        if node_type not in tables.nodes:
            close = nearest(node_type, tables.nodes)
            hint = f"did you mean `{close}`?" if close else f"there are {', '.join(tables.nodes)}"
            found.append(Mistake(path, f"there is no node type {shown(node_type)} among data.nodes; {hint}"))
    return found


def _task_mistakes(checked: Any, mistakes: list[Mistake]) -> list[Mistake]:
    """What is about nodes beside a task about graphs, and the other way round."""
    if not isinstance(checked, dict):
        return []
    kinds: dict[str, str | None] = {}
    for name, path, default in (
        ("task", ("task", "kind"), None),
        ("model", ("model", "kind"), None),
        ("source", ("data", "source"), None),
        ("split", ("data", "split", "by"), "masks"),
        ("evaluate", ("evaluate", "method"), None),
    ):
        value: Any = checked
        for step in path:
            value = value.get(step) if isinstance(value, dict) else None
        kinds[name] = (value if isinstance(value, str) else default) if _sound(mistakes, *path) else None
    return [Mistake(path, text) for path, text in task_conflicts(kinds).items()]


def _metric_mistakes(checked: Any, mistakes: list[Mistake]) -> list[Mistake]:
    """Metrics that training is to go by, against those of the task."""
    if not _sound(mistakes, "task") or not isinstance(checked.get("task"), dict):
        return []
    section = choose(field_kind(Experiment.model_fields["task"]), checked["task"])
    assert section is not None, "the task is sound"
    metrics = section.model_fields["metrics"]
    names, known = checked["task"].get("metrics", metrics.default), get_args(get_args(metrics.annotation)[0])
    found = []
    for path in (("train", "best_metric"), ("train", "early_stop", "metric")):
        value: Any = checked
        for step in path:
            value = value.get(step) if isinstance(value, dict) else None
        if isinstance(value, str) and value not in (*names, "loss"):
            close = None if value in known else nearest(value, (*names, "loss"))
            hint = f"did you mean `{close}`?" if close else "add it to task.metrics"
            found.append(Mistake(path, f"expected one of {', '.join((*names, 'loss'))}, got {shown(value)}; {hint}"))
    return found


def _fanout_mistakes(checked: Any, mistakes: list[Mistake]) -> list[Mistake]:
    """Fanouts against layers, as far as both are sound, so that this is said along with everything else."""
    model = checked.get("model")
    sampling = checked.get("sampling") or {}
    if not isinstance(model, dict) or not isinstance(sampling, dict) or not _sound(mistakes, "model", "layers"):
        return []
    section, task = choose(field_kind(Experiment.model_fields["model"]), model), checked.get("task")
    if section is None or (isinstance(task, dict) and str(task.get("kind")).startswith("graph_")):
        return []
    layers = int(model.get("layers", section.model_fields["layers"].default))
    defaults = Experiment.model_fields["sampling"].default
    fanouts = {
        key: sampling.get(key, getattr(defaults, key))
        for key in ("fanout", "eval_fanout")
        if _sound(mistakes, "sampling", key)
    }
    return [Mistake(("sampling", *path), text) for path, text in fanout_conflicts(layers, fanouts).items()]


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
