"""The section `model`: what fits together, what is refused, and what has no effect."""

from __future__ import annotations

import pytest

from disttrain.config import Aggregation, ExperimentError, HeteroConvModel
from disttrain.config.file import parse_experiment
from disttrain.config.ignored import ignored_settings

HEAD = "data: {source: pyg, dataset: DBLP, root: data}\ntask: {kind: node_classification}\n"


def mistake(model: str) -> str:
    with pytest.raises(ExperimentError) as caught:
        parse_experiment(f"{HEAD}model: {model}\n", (), "x.yaml")
    _, *lines = str(caught.value).splitlines()
    assert len(lines) == 1, lines
    return lines[0].strip()


def test_aggregations_in_all_their_forms() -> None:
    quantile = "{kind: quantile, args: {q: [0.25, 0.75]}}"
    text = f'{{kind: hetero_conv, aggr: [mean, {quantile}], relations: {{"a,to,b": {{aggr: std}}}}}}'
    model = parse_experiment(f"{HEAD}model: {text}\n").model
    assert isinstance(model, HeteroConvModel)
    assert model.aggr == ("mean", Aggregation(kind="quantile", args={"q": [0.25, 0.75]}))
    assert model.options("a,to,b").aggr == "std"
    assert model.options("b,to,a").aggr == model.aggr


def test_a_relation_has_its_own_options_or_those_of_the_model() -> None:
    model = HeteroConvModel.model_validate(
        {
            "kind": "hetero_conv", "aggr": "max", "heads": 2, "edge_weight": "w",
            "relations": {"a,to,b": {"conv": "gat", "edge_attr": False}, "b,to,a": {"conv": "gatv2", "aggr": "mean"}},
        }
    )  # fmt: skip
    assert model.options("a,to,b") == ("gat", None, "cat", 2, False, "w")
    assert model.options("b,to,a") == ("gatv2", "mean", "cat", 2, "auto", "w")
    assert model.options("c,to,a") == ("sage", "max", "cat", 2, "auto", "w")


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("{kind: hetero_conv, aggr: meen}", "did you mean `mean`?"),
        ("{kind: hetero_conv, aggr: [mean, medan]}", "did you mean `median`?"),
        ("{kind: hetero_conv, aggr: equilibrium}", "equilibrium cannot be used: its output is a minimum of an energy"),
        ("{kind: hetero_conv, aggr: {kind: sort, args: {kk: 2}}}", "sort needs args: k"),
        ("{kind: hetero_conv, aggr: []}", "got []"),
        ('{kind: hetero_conv, relations: {"a,to,b": {conv: gcn, aggr: max}}}', "conv gcn is a normalised sum"),
        ('{kind: hetero_conv, conv: gin, relations: {"a,to,b": {aggr: mean}}}', "conv gin sums its neighbours"),
        ('{kind: hetero_conv, conv: gatv2, relations: {"a,to,b": {aggr: lstm}}}', "of aggr it takes one of mean, sum"),
        ('{kind: hetero_conv, relations: {"a,to,b": {edge_attr: true}}}', "takes no edge_attr; gat, gatv2, gin do"),
        ("{kind: hetero_conv, conv: graph, edge_attr: true}", "conv graph takes no edge_attr"),
        ('{kind: hetero_conv, relations: {"a,to,b": {edge_weight: w}}}', "takes no edge_weight; graph, gcn do"),
        ("{kind: rgcn, bases: 2, blocks: 2}", "give one of them"),
        ("{kind: rgcn, hidden: 10, blocks: 4}", "blocks (4) must divide hidden (10)"),
        ("{kind: rgat, hidden: 10}", "heads (4) must divide hidden (10)"),
        ("{kind: hgt, hidden: 9, heads: 2}", "heads (2) must divide hidden (9)"),
        ("{kind: hgtt}", "did you mean `hgt`?"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(model: str, said: str) -> None:
    assert said in mistake(model)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("{kind: hetero_conv, heads: 2}", "model.heads has no effect: no relation has conv gat or gatv2"),
        ("{kind: hetero_conv, conv: gin, aggr: max}", "model.aggr has no effect: no relation has conv sage or graph"),
        ("{kind: hetero_conv, aggr_mode: proj}", "model.aggr_mode has no effect: no aggr is a list"),
        ("{kind: hetero_conv, edge_weight: w}", "model.edge_weight has no effect: no relation has conv graph or gcn"),
        (
            "{kind: hetero_conv, edge_attr: false}",
            "model.edge_attr has no effect: no relation has conv gat, gatv2, gin",
        ),
        (
            '{kind: hetero_conv, relations: {"a,to,b": {heads: 2}}}',
            'model.relations["a,to,b"].heads has no effect: this relation\'s conv is not gat or gatv2',
        ),
        ("{kind: hetero_conv, conv: gatv2, heads: 2}", None),
        ("{kind: hetero_conv, conv: graph, edge_weight: w, aggr: [mean, sum], aggr_mode: proj}", None),
    ],
)
def test_what_has_no_effect_is_said(model: str, said: str | None) -> None:
    found = ignored_settings(parse_experiment(f"{HEAD}model: {model}\n"))
    assert found == ([] if said is None else [said])
