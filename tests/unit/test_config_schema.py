"""The schema for editors accepts what the reader accepts, and knows the usual mistakes."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disttrain.config import ExperimentError
from disttrain.config.file import parse_experiment, plain
from disttrain.config.schema import experiment_schema
from disttrain.config.yaml import dump_yaml, parse_yaml

jsonschema = pytest.importorskip("jsonschema")

REPOSITORY = Path(__file__).parents[2]
FILES = sorted([*(REPOSITORY / "configs").glob("*.yaml"), *(REPOSITORY / "examples").glob("*.yaml")])

SMALL = """\
name: small
seed: 1
run_dir: null
data:
  source: generated
  nodes: {paper: {num_nodes: 10, features: 3}}
  edges: {"paper,cites,paper": {num_edges: 10, reverse: true, exponent: [0.5, 0.5]}}
  split: {by: ratio, train: 0.5, val: 0.25, test: 0.25}
  num_classes: 3
  transforms: [ToUndirected, {AddMetaPaths: {x: 1}}]
partition: {parts: 2, method: metis, dir: here}
task: {kind: node_classification, node_type: paper, metrics: [accuracy, auroc], multilabel: auto}
model:
  kind: hetero_conv
  layers: 2
  relations: {"paper,cites,paper": {conv: gat, heads: 2}}
  inputs: {project: true, dropout: 0.5}
sampling:
  fanout: {default: [5, -1], "paper, cites, paper": [{ratio: 0.5, max: 4}, 0]}
  eval_fanout: [3, 3]
train:
  epochs: 3
  lr: 1e-3
  grad_clip: 1
  fp32_layers: convs.0
  scheduler: {kind: cosine, warmup_steps: 3}
  early_stop: {metric: accuracy}
  checkpoint: {every_steps: 5}
evaluate: {method: layerwise, batch_edges: 10}
launch: {nodes: 2}
"""
TABLES = """\
data:
  source: tables
  root: tables
  nodes:
    user:
      file: users.csv
      key: [name, born]
      label: group
      columns: {old: age > 60}
      features: {numeric: age, categorical: [a, b]}
      foreign_keys: {town: town, home: {columns: a, type: town}}
    town: {file: "towns/*.parquet"}
  edges: {"user,knows,user": {file: knows.csv, src: [a, b], dst: [c, d]}}
  reverse: only
  split: {by: time, column: born, val: "2013-10-01", test: 5}
task: {kind: node_classification}
model: {kind: custom, module: "a.b:c", args: {width: [1]}}
"""


@pytest.fixture(scope="module")
def validator() -> Any:
    schema = experiment_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def document(text: str) -> dict[str, Any]:
    value = parse_yaml(text).value
    assert isinstance(value, dict)
    return value


def accepted(value: dict[str, Any]) -> bool:
    try:
        parse_experiment(dump_yaml(value))
    except ExperimentError:
        return False
    return True


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_files_are_valid(file: Path, validator: Any) -> None:
    text = file.read_text(encoding="utf-8")
    assert [error.message for error in validator.iter_errors(document(text))] == []


@pytest.mark.parametrize("text", [SMALL, TABLES])
def test_an_experiment_is_valid_as_written_and_resolved(text: str, validator: Any) -> None:
    assert [error.message for error in validator.iter_errors(document(text))] == []
    resolved = plain(parse_experiment(text))
    assert [error.message for error in validator.iter_errors(resolved)] == []


MISTAKES = {
    "a misspelt key": ("train", {"epoch": 3}),
    "a kind that there is not": ("model", {"kind": "hetero"}),
    "a section without its kind": ("model", {"hidden": 8}),
    "text for a number": ("train", {"epochs": "many"}),
    "a number out of bounds": ("model", {"kind": "hetero_conv", "dropout": 1.5}),
    "a choice that there is not": ("partition", {"method": "metsi"}),
    "a relation of two parts": ("sampling", {"fanout": {"default": [1, 1], "paper,cites": [1, 1]}}),
    "a relation of two parts in the model": ("model", {"kind": "hetero_conv", "relations": {"paper,cites": {}}}),
    "a key of another kind": ("model", {"kind": "hgt", "conv": "sage"}),
    "a list where one value stands": ("train", {"lr": [0.1]}),
    "a path without a colon": ("model", {"kind": "custom", "module": "a.b.c"}),
    "nothing where something must be": ("task", None),
    "a section where text stands": ("name", {}),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_usual_mistakes_are_not_valid(mistake: str, validator: Any) -> None:
    key, value = MISTAKES[mistake]
    wrong = {**document(SMALL), key: value}
    assert not accepted(wrong)
    assert not validator.is_valid(wrong)


def test_sections_that_are_empty_or_change_the_default_only(validator: Any) -> None:
    for change in ({"train": None, "sampling": None}, {"launch": {}}):
        assert accepted({**document(SMALL), **change}) and validator.is_valid({**document(SMALL), **change})
    for split in ({"train": 0.3}, {"seed": 4}, None):
        changed = document(SMALL)
        changed["data"]["split"] = split
        assert accepted(changed) and validator.is_valid(changed)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of everything in a document but itself."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from places(inner, (*path, key))


VALUES: list[Any] = [
    None, True, 0, 1, -1, 2.5, "x", "a,b,c", "auto", [], ["x"], [1, 2], {}, {"x": "y"}, {"kind": "step"},
    {"ratio": 0.5},
]  # fmt: skip
BASES = [document(SMALL), document(TABLES)]


@st.composite
def changed(draw: st.DrawFn) -> tuple[dict[str, Any], Any]:
    """A document with one value replaced, removed or added; and what it was replaced by."""
    whole = copy.deepcopy(draw(st.sampled_from(BASES)))
    path = draw(st.sampled_from(list(places(whole))))
    container: Any = whole
    for step in path[:-1]:
        container = container[step]
    value = draw(st.sampled_from([*VALUES, ...]))
    if value is ...:
        del container[path[-1]]
    elif draw(st.booleans()) and isinstance(container, dict):
        container[draw(st.sampled_from(["x", "a,b,c", "seed", "dropout", "label", "by"]))] = value
    else:
        container[path[-1]] = value
    return whole, value


@settings(max_examples=250)
@given(change=changed())
def test_what_the_reader_accepts_is_valid(change: tuple[dict[str, Any], Any], validator: Any) -> None:
    whole, value = change
    # The reader takes 0 and 1 for false and true, which an editor had better not.
    if accepted(whole) and not (isinstance(value, int) and value in (0, 1)):
        assert [error.message for error in validator.iter_errors(whole)] == [], dump_yaml(whole)
