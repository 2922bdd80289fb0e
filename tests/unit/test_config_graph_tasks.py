"""Experiments about graphs: what goes together with what, said with everything else that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from disttrain.config import Experiment, GinModel, SplitByFolds, pools
from disttrain.config.file import parse_experiment
from disttrain.config.ignored import ignored_settings
from tests.unit.test_config_file import mistakes

GRAPHS = """\
data: {source: pyg, dataset: TUDataset, root: data, args: {name: MUTAG}, split: {by: folds}}
task: {kind: graph_classification}
model: {kind: gin, layers: 5}
"""
NODES = """\
data: {source: pyg, dataset: DBLP, root: data}
task: {kind: node_classification}
model: {kind: hetero_conv}
"""


def test_a_small_file_with_defaults() -> None:
    experiment = parse_experiment(GRAPHS)
    assert isinstance(experiment.model, GinModel) and experiment.model.norm == "batch"
    assert isinstance(experiment.data.split, SplitByFolds) and experiment.data.split.folds == 10
    assert experiment.data.storage == "auto" and ignored_settings(experiment) == []


def test_what_is_about_nodes_does_not_go_with_a_task_about_graphs() -> None:
    found = mistakes(
        GRAPHS, "model={kind: rgcn}", "data.split=null", "evaluate.method=layerwise", "train.best_metric=mae"
    )
    paths = sorted(line.split(" ")[0].rstrip(":") for line in found)
    assert paths == ["data.split", "evaluate.method", "model.kind", "train.best_metric"]
    text = "\n".join(found)
    assert "rgcn is about nodes, and task.kind is graph_classification; choose gin, gine, gcn," in text
    splits = "ratio, stratified, folds, files, function"
    assert f"expected one of {splits} where task.kind is graph_classification, got masks" in text
    generated = GRAPHS.replace(
        "source: pyg, dataset: TUDataset, root: data, args: {name: MUTAG}", "source: file, path: a"
    )
    assert "file gives one graph" in "\n".join(mistakes(generated))


def test_a_model_of_graphs_does_not_go_with_a_task_about_nodes() -> None:
    (found,) = mistakes(NODES, "model.kind=gin", "model.layers=2")
    assert "gin is about whole graphs, and task.kind is node_classification" in found
    with pytest.raises(ValidationError, match=r"model\.kind: gin is about whole graphs"):
        Experiment.model_validate(
            {
                "data": {"source": "file", "path": "a.pt"},
                "task": {"kind": "node_regression"},
                "model": {"kind": "gin", "layers": 2},
            }
        )


def test_settings_that_do_nothing_are_warned_of() -> None:
    found = ignored_settings(
        parse_experiment(
            GRAPHS, ["sampling.fanout=[1,2]", "partition.parts=3", "model.head_layers=1", "model.head_dropout=0.5"]
        )
    )
    assert [line.split(" ")[0] for line in found] == ["sampling.fanout", "partition.parts", "model.head_dropout"]
    assert found[0].endswith("task.kind is graph_classification, no neighbours are drawn")
    (line,) = ignored_settings(parse_experiment(NODES, ["data.storage=memory"]))
    assert line == "data.storage has no effect: task.kind is node_classification, one graph is no collection"


@pytest.mark.parametrize("name", ["tu_mutag.yaml", "tu_proteins.yaml"])
def test_the_experiments_are_about_collections(name: str) -> None:
    text = (Path(__file__).resolve().parents[2] / "configs" / name).read_text()
    assert parse_experiment(text).task.kind == "graph_classification"


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("{kind: gps, conv: gine, edge_attr: false}", "conv gine needs edge_attr; choose gin, or leave edge_attr out"),
        ("{kind: gps, conv: sage, edge_attr: true}", "conv sage takes no edge_attr; auto, gine, gat and pna do"),
        ("{kind: gps, edge_weight: w}", "conv auto takes no edge_weight; gcn does"),
        ("{kind: gps, heads: 5}", "heads (5) must divide hidden (64)"),
        ("{kind: pna, towers: 3}", "towers (3) must divide hidden (64)"),
        ("{kind: gin, pooling: attentoin}", "did you mean `attention`?"),
        ("{kind: gin, pooling: [sum, add]}", "add cannot be used: it is called sum here"),
        ("{kind: gin, pooling: sort}", "sort needs arguments: {kind: sort, args: {k: ...}}"),
        ("{kind: gin, edge_attr: true}", "`edge_attr` goes with kind: "),
    ],
)
def test_models_of_graphs_that_do_not_fit_are_refused(model: str, said: str) -> None:
    assert said in "\n".join(mistakes(GRAPHS, f"model={model}"))


def test_poolings_in_all_their_forms() -> None:
    found = parse_experiment(GRAPHS, ["model.pooling=[mean,attention,set2set,{kind: sort, args: {k: 3}}]"]).model
    assert isinstance(found, GinModel)
    assert [(one.kind, one.args) for one in pools(found.pooling)] == [
        ("mean", {}), ("attentional", {}), ("set2set", {"processing_steps": 3}), ("sort", {"k": 3}),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "model", "path"),
    [
        (NODES, "{kind: hetero_conv, pooling: mean}", "model.pooling"),
        (GRAPHS, "{kind: hetero_conv, head_layers: 1, head_dropout: 0.5}", "model.head_dropout"),
        (GRAPHS, "{kind: gps, residual: true}", "model.residual"),
        (GRAPHS, "{kind: gps, conv: gcn, edge_attr: false}", "model.edge_attr"),
    ],
)
def test_what_does_nothing_in_models_of_graphs_is_warned_of(text: str, model: str, path: str) -> None:
    assert [line.split(" ")[0] for line in ignored_settings(parse_experiment(text, [f"model={model}"]))] == [path]
