"""Reading an experiment: values as YAML 1.2 has them, overrides of any depth, and every mistake in one message."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from disttrain.config import (
    Experiment,
    ExperimentError,
    GeneratedData,
    HeteroConvModel,
    PygData,
    SplitByMasks,
    SplitByRatio,
)
from disttrain.config.check import Mistake, check, field_kind, kind_of, members
from disttrain.config.file import parse_experiment, read_experiment
from disttrain.config.ignored import ignored_settings

SMALL = """\
name: small
data: {source: pyg, dataset: DBLP, root: data/dblp}
task: {kind: node_classification, node_type: author}
model:
  kind: hetero_conv
  relations:
    "paper,to,author": {conv: gat, aggr: max}
sampling:
  fanout: [10, 5]
train:
  lr: 1e-3
"""


def mistakes(text: str, *overrides: str) -> list[str]:
    with pytest.raises(ExperimentError) as caught:
        parse_experiment(text, overrides, "x.yaml")
    first, *lines = str(caught.value).splitlines()
    assert first == f"x.yaml: {len(lines)} mistake{'s' * (len(lines) > 1)}"
    return [line.strip() for line in lines]


def hetero(experiment: Experiment) -> HeteroConvModel:
    assert isinstance(experiment.model, HeteroConvModel)
    return experiment.model


# Values


def test_a_small_file_with_defaults() -> None:
    experiment = parse_experiment(SMALL)
    assert experiment.train.lr == 0.001
    assert isinstance(experiment.data, PygData)
    assert experiment.sampling.fanout == (10, 5)
    assert experiment.sampling.batch_size == 512
    assert hetero(experiment).relations["paper,to,author"].conv == "gat"
    assert experiment.directory == "runs/small"


def test_all_mistakes_come_in_one_message_each_with_its_line() -> None:
    found = mistakes(
        """\
name: 7
data: {source: pyg, dataset: DBLP}
task: {kind: node_clasification}
model:
  kind: hetero_conv
  layers: 3
  cnv: gat
  relations:
    "paper,to": {conv: gat}
    "a, b, c": {conv: gta}
sampling:
  fanout: [10, 5]
  batch_size: abc
train:
  lr: -1e-3
  epochs: true
  precision: fp61
  early_stop: {patience: 0}
""",
        "partition.parts=none",
    )
    assert [line.split(":")[0] for line in found] == [
        "name (line 1)",
        "data.root (line 2)",
        "task.kind (line 3)",
        "model.cnv (line 7)",
        'model.relations["paper,to"] (line 9)',
        'model.relations["a, b, c"].conv (line 10)',
        "sampling.fanout (line 12)",
        "sampling.batch_size (line 13)",
        "train.lr (line 15)",
        "train.epochs (line 16)",
        "train.precision (line 17)",
        "train.early_stop.metric (line 18)",
        "train.early_stop.patience (line 18)",
        "partition.parts (override partition.parts=none)",
    ]
    assert found[0].endswith('expected text, got 7; in quotes, "7", it is text')
    assert found[1].endswith("is missing: expected text")
    assert found[2].endswith("did you mean `node_classification`?")
    assert "did you mean `conv`? Valid here: kind, hidden, layers, residual" in found[3]
    assert "a relation is written" in found[4]
    assert found[5].endswith(
        'expected one of sage, gat, gatv2, gcn, gin, graph or null, got "gta"; did you mean `gat`?'
    )
    assert found[6].endswith("has 2 hops ([10, 5]), but model.layers is 3; give one fanout per layer")
    assert found[7].endswith('expected a whole number above 0, got "abc"')
    assert found[8].endswith("expected a number above 0, got -0.001")
    assert found[9].endswith("expected a whole number above 0, got true")
    assert found[10].endswith("did you mean `fp16`?")
    assert found[13].endswith('expected a whole number above 0 or `auto`, got "none"')


def test_no_word_of_the_machinery() -> None:
    text = "\n".join(mistakes("data: {source: x}\nmodel: 3\ntask: []\nsampling: {fanout: 7}\nx: 1"))
    for word in ("pydantic", "union", "tag", "Input should", "discriminator", "validat", "tuple", "dict", "Section"):
        assert word not in text


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (
            "{dataset: DBLP, root: x}",
            "data.source (line 1): is missing: expected one of pyg, ogb, file, python, generated, tables",
        ),
        ("{sorce: pyg, dataset: DBLP, root: x}", "is `sorce` meant to be that?"),
        ("{source: tabels, root: x, nodes: {}}", 'got "tabels"; did you mean `tables`?'),
        ("{source: PYG, dataset: DBLP, root: x}", 'got "PYG"; did you mean `pyg`?'),
        ("{source: 3}", "data.source (line 1): expected one of pyg, ogb, file, python, generated, tables, got 3"),
        ("pyg", 'expected a section with `source: pyg, ogb, file, python, generated, tables`, got "pyg"'),
        ("{source: pyg, dataset: DBLP, root: x, path: y}", "`path` goes with source: file, not with pyg. Valid here: "),
        ("{source: pyg, dataset: D, root: x, split: {by: tiem, column: a, val: 1, test: 2}}", "did you mean `time`?"),
        (
            "{source: pyg, dataset: D, root: x, split: {by: ratio, train: 0.8, val: 0.2, test: 0.2}}",
            "at most 1, got 1.2",
        ),
        ("{source: python, function: nowhere}", "a dotted path is written 'package.module:name', got 'nowhere'"),
        ("{source: file, path: x, trust: maybe}", 'expected true or false, got "maybe"'),
    ],
)
def test_mistakes_in_kinds_of_sections(data: str, said: str) -> None:
    (line,) = mistakes(f"data: {data}\ntask: {{kind: node_classification}}\nmodel: {{kind: hetero_conv}}")
    assert said in line


def test_the_rest_of_a_section_is_held_against_the_kind_that_was_probably_meant() -> None:
    found = mistakes(SMALL.replace("source: pyg, dataset: DBLP", "source: pgy, datset: DBLP"))
    assert [line.split(" ")[0] for line in found] == ["data.source", "data.datset"]


def test_a_key_that_belongs_elsewhere_is_sent_there() -> None:
    assert "`patience` belongs at train.early_stop.patience" in mistakes(SMALL, "train.patience=3")[0]
    # spelt right, whatever it looks like here
    assert "`dangling` belongs at data.dangling." in mistakes(f"{SMALL}\ndangling: drop")[0]


@pytest.mark.parametrize(
    ("override", "said"),
    [
        (
            "task.kind=graph_classification",
            "task.node_type (line 3): `node_type` goes with kind: node_classification or node_regression, not with "
            "graph_classification. Valid here: kind, ",
        ),
        ("data.split.fold=1", "goes with by: folds, not with masks. Valid here: by, val_from_train, seed, column"),
        ("data.split={by: ratio, train: 0.5, val: 0.2, test: 0.2, column: a}", "goes with by: masks or column or time"),
        ("task.nonsense=1", "task.nonsense (override task.nonsense=1): there is no such key. Valid here: "),
    ],
)
def test_a_key_of_another_kind_of_the_section_says_which(override: str, said: str) -> None:
    assert said in "\n".join(mistakes(SMALL, override))


def test_every_key_of_every_union_names_its_kinds() -> None:
    """Whatever a section is: no key is sent to where it stands."""
    for name, tag in (("data", "source"), ("task", "kind"), ("model", "kind")):
        union = field_kind(Experiment.model_fields[name])
        sections = [kind_of(member).annotation for member in members(union.annotation)]
        for section in sections:
            (ours, *_) = get_args(section.model_fields[tag].annotation)
            for key in {key for other in sections for key in other.model_fields} - set(section.model_fields):
                found: list[Mistake] = []
                check(union, {tag: ours, key: 1}, (name,), found)
                (text,) = (mistake.text for mistake in found if mistake.path == (name, key))
                assert f"`{key}` goes with {tag}: " in text and f", not with {ours}. " in text


def test_node_types_that_no_table_has_are_told_along_with_everything_else() -> None:
    text = """
data:
  source: tables
  root: x
  nodes:
    customer: {file: c.csv, key: id, label: kind}
    order: {file: o.csv, foreign_keys: {buyer: custmer}}
  edges: {"customers,likes,thing": {file: l.csv, src: a, dst: b}}
task: {kind: node_classification, node_type: oder}
model: {kind: hetero_conv, layers: two}
"""
    found = mistakes(text)
    assert [line.partition(":")[0].partition(" (")[0] for line in found] == [
        "data.nodes.order.foreign_keys.buyer",
        'data.edges["customers,likes,thing"]',
        'data.edges["customers,likes,thing"]',
        "task.node_type",
        "model.layers",
    ]
    assert found[0].endswith('there is no node type "custmer" among data.nodes; did you mean `customer`?')
    assert found[2].endswith('there is no node type "thing" among data.nodes; there are customer, order')


def test_a_misspelt_required_key_is_said_once() -> None:
    (line,) = mistakes(SMALL.replace("root:", "rooot:"))
    assert "data.rooot (line 2): there is no such key; did you mean `root`?" in line


def test_fanouts_per_relation_against_layers() -> None:
    found = mistakes(SMALL, "sampling.fanout={default: [3, 2], 'a, b, c': [1]}", "sampling.eval_fanout=[-1]")
    assert any('sampling.fanout["a,b,c"]' in line and "has 1 hop (" in line for line in found)
    assert any(line.startswith("sampling.eval_fanout") for line in found)
    assert len(found) == 2


def test_a_fanout_that_is_itself_wrong_is_not_counted() -> None:
    (line,) = mistakes(SMALL, "sampling.fanout=[1,2,x]")
    assert line.startswith("sampling.fanout[2]")


def test_metrics_that_the_task_does_not_have() -> None:
    found = mistakes(SMALL, "train.early_stop={metric: acuracy}", "train.best_metric=auroc", "sampling.batch_size=0")
    assert len(found) == 3
    assert any("train.early_stop.metric" in line and "did you mean `accuracy`?" in line for line in found)
    assert any("train.best_metric" in line and "add it to task.metrics" in line for line in found)
    assert parse_experiment(SMALL, ["train.best_metric=loss"]).train.best_metric == "loss"


def test_settings_without_effect_are_named() -> None:
    given = ["train.momentum=0.5", "train.scheduler.gamma=0.1", "model.heads=4", "sampling={workers: 0, prefetch: 2}"]
    lines = ignored_settings(parse_experiment(SMALL, [*given, "model.relations.a,b,c={conv: gcn, heads: 2}"]))
    assert [line.split(" ")[0] for line in lines] == [
        "train.momentum",
        "train.scheduler.gamma",
        "sampling.prefetch",
        'model.relations["a,b,c"].heads',
    ]
    assert ignored_settings(parse_experiment(SMALL)) == []


def test_repeated_keys_are_refused_with_both_lines() -> None:
    found = mistakes(SMALL + "  lr: 2e-3\n  epochs: 0\n")
    assert found[0] == "train.lr (line 12): this key is given twice, in line 11 and in line 12"
    assert found[1].startswith("train.epochs (line 13)")


def test_relations_that_are_the_same_when_normalised_are_refused() -> None:
    (line,) = mistakes(SMALL, 'model.relations={"a,b,c": {}, "a, b, c": {}}')
    assert "given twice" in line


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [1", "line 1, column"),
        ("- 1", "expected a mapping with the keys name, seed"),
        ("a: !!python/object:os.system x", "line 1"),
        ("a: 1\n---\nb: 2", "a second document begins"),
        ("a: &x [*x]", "an alias stands within what it refers to"),
        ("a: *x", "undefined alias"),
        ("a\x00: 1", "the character at position 1 is not allowed"),
    ],
)
def test_what_is_not_yaml(text: str, said: str) -> None:
    with pytest.raises(ExperimentError, match=r"x\.yaml: ") as caught:
        parse_experiment(text, (), "x.yaml")
    assert said in str(caught.value)


def test_an_empty_file_names_what_is_missing() -> None:
    assert [line.split(" ")[0].rstrip(":") for line in mistakes("")] == ["data", "task", "model"]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match="there is no such file"):
        read_experiment(tmp_path / "x.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"name: \xe9")
    with pytest.raises(ExperimentError, match="UTF-8"):
        read_experiment(tmp_path / "latin.yaml")


def test_generated_with_its_own_default_split() -> None:
    experiment = parse_experiment(
        "data: {source: generated, nodes: {a: {num_nodes: 9}}, edges: {'a, to, a': {num_edges: 9, exponent: [0, 1]}}}\n"
        "task: {kind: node_classification}\nmodel: {kind: hetero_conv}"
    )
    assert isinstance(experiment.data, GeneratedData)
    assert experiment.data.split.by == "ratio"
    assert list(experiment.data.edges) == ["a,to,a"]
    (line,) = mistakes(
        SMALL, "data={source: generated, nodes: {a: {num_nodes: 1}}, edges: {'a,b,a': {num_edges: 1, exponent: [1]}}}"
    )
    assert "expected a list of 2: a number, a number, got [1]" in line


def test_a_section_without_its_kind_changes_the_default_one() -> None:
    generated = "data={source: generated, nodes: {a: {num_nodes: 9}}}"
    split = parse_experiment(SMALL, [generated, "data.split.seed=3"]).data.split
    assert split == SplitByRatio(by="ratio", train=0.6, val=0.2, test=0.2, seed=3)
    assert parse_experiment(SMALL, ["data.split.val_from_train=0.2"]).data.split == SplitByMasks(val_from_train=0.2)
    (line,) = mistakes(SMALL, "data.split.seed=-3")
    assert line.startswith("data.split.seed (override data.split.seed=-3): expected a whole number of at least 0")


@pytest.mark.parametrize("text", ["!!int abc", "!!float abc", "!!bool abc", "!!timestamp abc", "9" * 5000, "[" * 3000])
def test_what_no_loader_can_read_is_refused(text: str) -> None:
    with pytest.raises(ExperimentError, match=r"^x.yaml: (line \d+: '.*' cannot be read as|it is nested too deeply)"):
        parse_experiment(f"{SMALL}seed: {text}\n", (), "x.yaml")


@pytest.mark.parametrize(
    "override",
    ["seed=-1", "seed=18446744073709551616", "partition.seed=-1", "train.timeout=1e300", "name=a/b", "name=..",
     "name=''", 'name="a\\0b"', "sampling.fanout.0=1000000000"],
)  # fmt: skip
def test_values_that_nothing_could_be_done_with(override: str) -> None:
    (line,) = mistakes(SMALL, override)
    assert "expected" in line and "got" in line


def test_reading_imports_no_torch(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(SMALL)
    code = (
        "import sys; from disttrain.config.file import read_experiment; read_experiment(sys.argv[1]); "
        "sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    )
    assert (
        subprocess.run([sys.executable, "-c", code, str(tmp_path / "x.yaml")], timeout=60, check=False).returncode == 0
    )


def test_layerwise_scores_need_neighbours_that_do_not_depend_on_the_seed() -> None:
    text = "data: {source: generated, nodes: {v: {num_nodes: 3}}}\ntask: {kind: node_classification}\n"
    text += "model: {kind: hetero_conv}\nsampling: {time_attr: time}\nevaluate: {method: layerwise}\n"
    with pytest.raises(ExperimentError, match=r"evaluate.method \(line 5\): layerwise computes each node once, but"):
        parse_experiment(text)
    parse_experiment(text, ["evaluate.method=sampled"])
