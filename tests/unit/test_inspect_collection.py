"""What inspect says of a collection, counted once more by other means."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch_geometric.data import Data

from disttrain import cli, config
from disttrain.collection.collated import collate
from disttrain.collection.graphs import Graphs
from disttrain.config import Experiment
from disttrain.graph.schema import GRAPH, Attribute, Nodes, Schema
from disttrain.inspect.labels import label_facts
from disttrain.inspect.list_form import list_facts
from disttrain.inspect.sizes import size_facts
from disttrain.inspect.storage_advice import graph_advice, storage_advice
from disttrain.inspect.storages import storages
from disttrain.inspect.table import _labels
from disttrain.tasks import build_task

from ..collections_of_graphs import assays, ninths, one_by_one, pairs, rings

EXPERIMENT = """\
name: rings
data:
  source: python
  function: tests.collections_of_graphs:one_by_one
  split: {by: stratified, train: 0.6, val: 0.2, test: 0.2}
task: {kind: graph_classification}
model: {kind: gin, hidden: 4, layers: 2}
sampling: {batch_size: 4}
train: {threads: 1}
"""


def test_the_command_counts_and_tries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rings.yaml").write_text(EXPERIMENT)
    assert cli.run(["inspect", "rings.yaml", "--json"]) == 0
    facts = json.loads(capfd.readouterr().out)
    graphs = list(one_by_one())
    nodes = np.array([graph.num_nodes for graph in graphs])
    edges = np.array([graph.num_edges for graph in graphs])
    for name, counts in (("nodes", nodes), ("edges", edges)):
        found = facts["sizes"][name]
        assert (found["min"], found["max"], found["mean"]) == (counts.min(), counts.max(), counts.mean())
        assert found["p50"] == np.sort(counts)[(len(counts) - 1) // 2] and found["zero"] == (counts == 0).mean()
    assert facts["empty"] == {"without_nodes": 1, "without_edges": 3}
    labels = [graph.y for graph in graphs]
    totals = {name: sum(split["classes"][name] for split in facts["labels"]["splits"].values()) for name in ("0", "1")}
    assert totals == {"0": labels.count(0), "1": labels.count(1)}
    assert facts["labels"]["labelled"] == len(graphs) - labels.count(-1)
    files = list(Path(facts["collection"]["directory"]).rglob("*.npy"))
    assert facts["bytes"]["collated"] == sum(file.stat().st_size for file in files)
    assert facts["storages"].keys() == set(storages()) >= {"memory", "mmap"}
    for found in facts["storages"].values():
        assert "refused" in found or found["graphs_per_second"] > 0
    assert facts["advice"][0].startswith(f"data.storage=auto, which is {facts['auto']['storage']} here: ")
    assert any("1 graph without a node" in line for line in facts["advice"])
    assert cli.run(["inspect", "rings.yaml"]) == 0
    assert "data.storage, tried on one rank" in capfd.readouterr().out


def test_the_share_of_labels_that_are_missing_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    for numbers in (False, True):
        labels = np.array([graph.y[0].tolist() for graph in assays(90, numbers)])  # type: ignore[index]
        masks = dict(zip(("train_mask", "val_mask", "test_mask"), ninths(90)))
        there = ~np.isnan(labels)
        masks = {name: mask & there.any(axis=1) for name, mask in masks.items()}
        graphs = Graphs(collate(rings(90), "here"), {"stores": []}, {**masks, "z": labels})
        kinds: Any = (
            config.GraphRegression(kind="graph_regression", label="z")
            if numbers
            else config.GraphClassification(kind="graph_classification", label="z")
        )
        attributes = {"z": Attribute("float64", (4,), 0, 1, 9), **dict.fromkeys(masks, Attribute("bool"))}
        task = build_task(kinds, Schema({GRAPH: Nodes(90, attributes)}, {}))
        facts = label_facts(graphs, task)
        assert facts["labelled"] == there.any(axis=1).sum()
        for split in ("train", "test"):
            own = there[masks[f"{split}_mask"]]
            assert facts["splits"][split]["missing"] == pytest.approx((~own).mean(axis=0))
        if numbers:
            assert facts["splits"]["train"]["mean"] == pytest.approx(np.nanmean(labels[masks["train_mask"]]))
        Console(width=140).print(_labels({"labels": facts, "target": GRAPH}))
        assert f"{(~there[masks['train_mask']])[:, 2].mean():.1%}" in capsys.readouterr().out


def test_sizes_of_each_type() -> None:
    graphs = pairs()
    found = size_facts(collate(graphs, "here"))
    assert found.keys() == {"a", "b", "a,to,b"}
    assert found["a,to,b"]["total"] == sum(graph["a", "to", "b"].edge_index.size(1) for graph in graphs)
    assert (found["b"]["min"], found["b"]["max"]) == (1, 3)


def test_the_list_is_measured() -> None:
    """Of tensors that are far larger than all that comes with them."""
    graphs = [Data(x=torch.ones(200, 256), y=1) for _ in range(200)]
    found = list_facts(collate(graphs, "here"), np.full(200, 200))
    assert found["graphs"] == 200
    tensors = sum(graph.x.nbytes for graph in graphs)  # pyright: ignore[reportOptionalMemberAccess]
    assert found["bytes"] == pytest.approx(tensors, rel=0.1)


def advised(storage: str, **rates: float) -> list[str]:
    experiment = Experiment.model_validate(
        {
            "data": {"source": "python", "function": "a:b", "split": {"by": "folds"}, "storage": storage},
            "task": {"kind": "graph_classification"},
            "model": {"kind": "gin"},
        }
    )
    common = {"load_seconds": 0.25, "first_batch_seconds": 0.125, "process_bytes": 1 << 20}
    facts: dict[str, Any] = {
        "storages": {name: {"graphs_per_second": rate, **common} for name, rate in rates.items()},
        "auto": {"storage": "mmap", "why": "it is so"},
    }
    facts["storages"]["hybrid"] = {"refused": "there is no such attribute"}
    return list(storage_advice(experiment, facts))


def test_the_storage_is_advised_by_what_was_measured() -> None:
    first = "data.storage=auto, which is mmap here: it is so; 1,000 graphs/s on one rank, the first batch after 375 ms"
    assert advised("auto", memory=1200, mmap=1000) == [first]
    assert advised("mmap", memory=2000, mmap=1000) == [
        first, "data.storage=memory made 2,000 graphs/s, and takes 1.0 MiB in each process",
    ]  # fmt: skip
    assert advised("ondisk", memory=1000, mmap=1000, ondisk=100) == [
        first, "data.storage=ondisk, as the experiment has it, made 100 graphs/s",
    ]  # fmt: skip


def test_uneven_graphs_are_pointed_out() -> None:
    nodes = {"p50": 10, "max": 500}
    empty = {"without_nodes": 0, "without_edges": 0}
    facts = {"collection": {"graphs": 30}, "sizes": {"nodes": nodes}, "empty": empty}
    (line,) = graph_advice(None, facts)  # pyright: ignore[reportArgumentType]
    assert line.startswith("the largest graph has 500 nodes, the median 10:")
    assert len(rings()) == 30
