"""What inspect says of a graph, counted once more by other means; and that it leaves nothing behind."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from disttrain import cli
from disttrain.config import Experiment, ExperimentError, NodeClassification, Sampling
from disttrain.graph.graph import Graph
from disttrain.inspect.advice import _fanouts
from disttrain.inspect.labels import _Moments, label_facts
from disttrain.inspect.memory import _layout
from disttrain.inspect.nodes import node_facts
from disttrain.inspect.relations import relation_facts
from disttrain.inspect.spread import spread
from disttrain.sampling import Route
from disttrain.sampling.drawable import drawable_edges
from disttrain.sampling.kind import kind_of
from disttrain.tasks import build_task

from ..graphs import dated_zoo, open_parts, write_parts, zoo

EXPERIMENT = """\
name: tiny
data:
  source: generated
  nodes: {paper: {num_nodes: 60, features: 6}, author: {num_nodes: 30}, lonely: {num_nodes: 3, features: 2}}
  edges:
    "author,writes,paper": {num_edges: 100}
  num_classes: 3
  num_communities: 6
task: {kind: node_classification}
model: {kind: hetero_conv, hidden: 8}
sampling: {fanout: [200, -1], batch_size: 10}
train: {epochs: 1, threads: 1}
"""


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    return open_parts(write_parts(zoo(), tmp_path_factory.mktemp("inspect") / "zoo", 2))


def experiment(**sampling: Any) -> Experiment:
    return Experiment.model_validate(
        {
            "data": {"source": "generated", "nodes": {"v": {"num_nodes": 10}}},
            "task": {"kind": "node_classification", "node_type": "paper"},
            "model": {"kind": "hetero_conv", "layers": 1},
            "sampling": {"fanout": [3], **sampling},
        }
    )


def test_relations_by_counting(graph: Graph) -> None:
    data = zoo()
    facts = relation_facts(graph, "paper", experiment())
    assert facts.keys() == {",".join(edge_type) for edge_type in data.edge_types}
    for edge_type in data.edge_types:
        src, dst = data[edge_type].edge_index.numpy()
        found = facts[",".join(edge_type)]
        degrees = np.bincount(dst, minlength=data[edge_type[2]].num_nodes)
        assert found["edges"] == len(src)
        assert found["repeated_edges"] == len(src) - len({*zip(src.tolist(), dst.tolist())})
        assert found["self_loops"] == (int((src == dst).sum()) if edge_type[0] == edge_type[2] else 0)
        assert found["destination_degrees"]["mean"] == pytest.approx(degrees.mean())
        assert found["destination_degrees"]["max"] == degrees.max()
        assert found["destination_degrees"]["zero"] == pytest.approx((degrees == 0).mean())
        sources = np.bincount(src, minlength=data[edge_type[0]].num_nodes)
        assert found["source_degrees"]["max"] == sources.max()
        assert found["source_degrees"]["zero"] == pytest.approx((sources == 0).mean())
        share = np.minimum(degrees, 3).sum() / len(src) if len(src) else 1.0
        assert found["drawn_share"] == [pytest.approx(share)]
        assert found["takes_part"] == (edge_type[2] == "paper")
    assert facts["paper,cites,paper"]["self_loops"] >= 20
    assert facts["paper,cites,paper"]["repeated_edges"] >= 10


def test_a_share_of_the_degree_is_shown_and_judged_as_it_is_written(graph: Graph) -> None:
    """Without `max` there is no bound, which is not a fanout of -1."""
    citing = np.bincount(zoo()["paper", "cites", "paper"].edge_index[1].numpy())
    for entry, most in (
        ({"ratio": 0.25, "min": 2, "max": None}, int(np.ceil(citing.max() / 4))),
        ({"ratio": 0.5, "min": 1, "max": 3}, 3),
        (-1, citing.max()),
        (2, 2),
    ):
        found = relation_facts(graph, "paper", experiment(fanout=[entry]))["paper,cites,paper"]
        assert found["fanout"] == [entry] and found["most_drawn"] == [most]
    bounds = {"ratio": 0.01, "min": 0, "max": None}, {"ratio": 0.5, "min": 10_001, "max": None}
    facts = relation_facts(graph, "paper", experiment(fanout=[{**bounds[0], "max": 5}]))
    lines = list(_fanouts(experiment(), {"relations": facts}))
    assert any(
        line.startswith('"paper,cites,paper": a fanout of {ratio: 0.01, min: 0, max: 5} draws') for line in lines
    )
    facts["paper,cites,paper"].update(fanout=[bounds[1]], most_drawn=[20_000], drawn_share=[0.5])
    facts["paper,cites,paper"]["destination_degrees"]["max"] = 40_000
    (line,) = (line for line in _fanouts(experiment(), {"relations": facts}) if "cites" in line)
    assert "a fanout of {ratio: 0.5, min: 10001} draws up to 20,000 neighbours of one node" in line


def test_percentiles_are_values_that_occur() -> None:
    assert spread(np.arange(1, 101)) == {"mean": 50.5, "max": 100, "zero": 0.0, "p50": 50, "p90": 90, "p99": 99}
    assert spread(np.array([7])) == {"mean": 7.0, "max": 7, "zero": 0.0, "p50": 7, "p90": 7, "p99": 7}
    assert spread(np.array([], np.int64))["max"] == 0


def test_nodes_and_their_features(graph: Graph) -> None:
    data = zoo()
    facts = node_facts(graph, "paper", 1)
    assert {name: nodes["nodes"] for name, nodes in facts.items()} == {
        "paper": 211, "author": 97, "venue": 5, "lonely": 3,
    }  # fmt: skip
    assert [name for name, nodes in facts.items() if nodes["takes_part"]] == ["paper", "author", "venue"]
    assert facts["lonely"]["without_neighbours"] == 1.0
    x = data["paper"].x.double()
    features = facts["paper"]["features"]
    assert features["largest_mean"] == pytest.approx(x.mean(dim=0).abs().max().item())
    assert features["largest_std"] == pytest.approx(x.std(dim=0, correction=0).max().item())
    assert features["unscaled"] is True
    assert facts["venue"]["features"]["columns"] == 10
    assert facts["venue"]["features"]["unscaled"] is False
    assert facts["author"]["features"] is None


def test_labels_of_each_split(graph: Graph) -> None:
    data = zoo()
    task = build_task(NodeClassification(kind="node_classification", node_type="paper"), graph.schema)
    facts = label_facts(graph, task)
    for split in ("train", "val", "test"):
        mask = data["paper"][f"{split}_mask"]
        assert facts["splits"][split]["nodes"] == int(mask.sum())
        counts = torch.bincount(data["paper"].y[mask], minlength=7).tolist()
        assert list(facts["splits"][split]["classes"].values()) == counts


def test_numbers_in_pieces_have_the_deviation_of_all() -> None:
    """Of dates in seconds, too, whose squares differ in digits that a float does not have."""
    dates = 1.7e9 + np.random.default_rng(0).random(1001)
    moments = _Moments()
    for piece in np.array_split(dates, 7):
        moments.add(piece)
    facts = moments.facts()
    assert facts["mean"] == pytest.approx(dates.mean(), rel=1e-12)
    assert facts["std"] == pytest.approx(dates.std(), rel=1e-6)
    assert (facts["low"], facts["high"]) == (dates.min(), dates.max()) and _Moments().facts() == {}


def test_edges_that_are_drawn_by_weight_or_time_take_memory(tmp_path: Path) -> None:
    data, sampling = dated_zoo(), Sampling(weight_attr="w", time_attr="at")
    graph, expected = open_parts(write_parts(data, tmp_path / "dated", 2)), 0
    for (src, _, dst), store in data.edge_items():
        weight, time = "w" in store, "at" in store or "at" in data[src]
        if weight or time:
            per_edge = 4 + 8 * time + 16 * weight
            expected += per_edge * store.edge_index.size(1) + 8 * data[dst].num_nodes
    assert _layout(sampling, graph) == expected > 0
    made = [drawable_edges(graph, Route(), e, kind_of(sampling, graph.schema, "paper")) for e in graph.schema.edges]
    arrays = [a for d in made if d is not None for a in (d.colptr, d.order, d.times, d.weights, d.sums)]
    # Those of weight 0, about a third, are left out.
    assert 0.6 * expected < sum(a.nbytes for a in arrays if a is not None) < 1.05 * expected
    assert _layout(Sampling(), graph) == 0


def test_the_command_leaves_nothing_and_prefers_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    (tmp_path / "tiny.yaml").write_text(EXPERIMENT)
    assert cli.run(["inspect", "tiny.yaml", "--json", "--machines", "3"]) == 0
    loaded = json.loads(capfd.readouterr().out)
    assert sorted(os.listdir(tmp_path)) == ["scratch", "tiny.yaml"]
    assert not [name for name in os.listdir(tmp_path / "scratch") if name.startswith("disttrain")]
    assert loaded["partitions"]["directory"] is None
    assert loaded["memory"]["machines"] == 3
    assert "no node has more than" in "\n".join(loaded["advice"])
    assert '"lonely" cannot reach paper in 2 layers' in "\n".join(loaded["advice"])
    assert loaded["batches"]["train"]["seeds"] == (10 + 10 + 10 + 6) / 4
    assert loaded["evaluation"]["layerwise_edges"] == 100 + 200

    assert cli.run(["partition", "tiny.yaml", "partition.parts=2"]) == 0
    capfd.readouterr()
    assert cli.run(["inspect", "tiny.yaml", "partition.parts=2", "--json", "--machines", "3"]) == 0
    opened = json.loads(capfd.readouterr().out)
    assert opened["partitions"]["parts"] == 2
    for name in ("nodes", "relations", "labels", "batches", "evaluation", "advice"):
        assert opened[name] == loaded[name], name
    assert cli.run(["inspect", "tiny.yaml"]) == 0
    assert "author,writes,paper" in capfd.readouterr().out


def test_what_a_run_would_be_refused_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(EXPERIMENT)
    with pytest.raises(ExperimentError, match="--machines: expected a number of at least 1"):
        cli.run(["inspect", "tiny.yaml", "--machines", "0"])
