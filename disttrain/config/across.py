"""What is wrong with an experiment: in each section, and between sections."""

from __future__ import annotations

from typing import Any, get_args

from . import Experiment, TablesData, fanout_conflicts, parse_edge_type, task_conflicts
from .check import Kind, Mistake, check, choose, field_kind, nearest, shown
from .yaml import Path


def check_experiment(data: dict[Any, Any], mistakes: list[Mistake]) -> Any:
    """Add everything that is wrong to `mistakes`; return the settings, ready to become an `Experiment`."""
    checked = check(Kind(Experiment), data, (), mistakes)
    mistakes.extend([*_fanout_mistakes(checked, mistakes), *_metric_mistakes(checked, mistakes)])
    mistakes.extend([*_layerwise_mistakes(checked), *_task_mistakes(checked, mistakes)])
    mistakes.extend(_node_type_mistakes(checked, mistakes))
    return checked


def sound(mistakes: list[Mistake], *path: str) -> bool:
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
    if not isinstance(data, dict) or data.get("source") != "tables" or not sound(mistakes, "data"):
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
        kinds[name] = (value if isinstance(value, str) else default) if sound(mistakes, *path) else None
    return [Mistake(path, text) for path, text in task_conflicts(kinds).items()]


def _metric_mistakes(checked: Any, mistakes: list[Mistake]) -> list[Mistake]:
    """Metrics that training is to go by, against those of the task."""
    if not sound(mistakes, "task") or not isinstance(checked.get("task"), dict):
        return []
    section = choose(field_kind(Experiment.model_fields["task"]), checked["task"])
    assert section is not None, "the task is sound"
    metrics = section.model_fields["metrics"]
    names, known = checked["task"].get("metrics", metrics.default), get_args(get_args(metrics.annotation)[0])
    found = []
    for path in (("train", "best_metric"), ("train", "early_stop", "metric"), ("sweep", "metric")):
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
    if not isinstance(model, dict) or not isinstance(sampling, dict) or not sound(mistakes, "model", "layers"):
        return []
    section, task = choose(field_kind(Experiment.model_fields["model"]), model), checked.get("task")
    if section is None or (isinstance(task, dict) and str(task.get("kind")).startswith("graph_")):
        return []
    layers = int(model.get("layers", section.model_fields["layers"].default))
    defaults = Experiment.model_fields["sampling"].default
    fanouts = {
        key: sampling.get(key, getattr(defaults, key))
        for key in ("fanout", "eval_fanout")
        if sound(mistakes, "sampling", key)
    }
    return [Mistake(("sampling", *path), text) for path, text in fanout_conflicts(layers, fanouts).items()]
