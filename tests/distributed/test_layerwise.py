"""Layer-wise inference is what the model says with all neighbours, for each model, on any machines; each node once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import HeteroData
from torch_geometric.nn import BatchNorm

from disttrain.config import Evaluate, Experiment, ExperimentError, Sampling
from disttrain.models import build_model
from disttrain.models.blocks import needed_types
from disttrain.sampling import NodeLoader, split_seeds
from disttrain.tasks import build_task
from disttrain.train.layerwise import LayerwiseLoader, all_or_none, check_layered
from disttrain.train.precision import Precision
from disttrain.train.scores import Scores, sampled_scores
from disttrain.train.scratch import Scratch
from disttrain.world import World

from ..graphs import open_parts, write_parts, zoo
from ..ranks import run_ranks
from ..unit.test_predict_output import no_room

MODELS: dict[str, dict[str, Any]] = {
    **{f"sage-{aggr}": {"conv": "sage", "aggr": aggr} for aggr in ("mean", "max", "softmax", "std", "median")},
    "gat": {"conv": "gat", "heads": 2, "norm": "layer", "residual": True},
    "gcn": {"conv": "gcn", "relation_aggr": "attention", "inputs": {"standardize": True}},
    "gcn of features": {"conv": "gcn", "inputs": {"project": False}, "relation_aggr": "max"},
    "batch norm": {"norm": "batch", "layers": 3, "activation": "elu", "dropout": 0.5},
    "one layer": {"layers": 1, "l2_normalize": True},
    "gatv2": {"conv": "gatv2", "heads": 2, "relations": {"paper,in,venue": {"aggr": "max"}}},
    "gin": {"conv": "gin", "inputs": {"standardize": True}},
    "graph": {"conv": "graph", "aggr": "mean", "edge_weight": "kind", "layers": 3, "norm": "layer"},
    "several aggregations side by side": {"aggr": ["sum", "std"], "relation_aggr": "cat", "residual": True},
    "mixed": {"relations": {"paper,cites,paper": {"conv": "gat"}, "author,writes,paper": {"conv": "gcn"}}},
    "jumping": {"jumping_knowledge": "cat", "layers": 3},
    "weights and a relation left out": {
        "sampling": {
            "fanout": {"default": [-1, -1], "venue,publishes,paper": [0, 0]},
            "weight_attr": "kind",  # of author,writes,paper; three of them are 0
        }
    },
    "rgcn": {"kind": "rgcn"},
    "rgat": {"kind": "rgat"},
    "rgat without edge attributes": {"kind": "rgat", "edge_attr": False, "attention": "within"},
    "hgt": {"kind": "hgt"},
}


def experiment(**model: Any) -> Experiment:
    sampling = model.pop("sampling", {})
    layers = model.get("layers", 2)
    return Experiment.model_validate(
        {
            "data": {"source": "generated", "nodes": {"v": {"num_nodes": 10}}},
            "task": {"kind": "node_classification", "node_type": "paper"},
            "model": {"kind": "hetero_conv", "hidden": 8, **model},
            "sampling": {"fanout": [-1] * layers, "batch_size": 16, "workers": 0, **sampling},
        }
    )


def logits_of(scores: Iterator[Scores], node_type: str) -> dict[int, torch.Tensor]:
    found: dict[int, torch.Tensor] = {}
    for logits, embedding, batch in scores:
        assert embedding is not None and len(embedding) == len(logits)
        ids = batch[node_type].n_id[: batch[node_type].batch_size].tolist()
        assert not found.keys() & set(ids)
        found.update(zip(ids, logits))
    return found


def shake(model: torch.nn.Module) -> None:
    """Weights and statistics that no initialisation gives: zero biases and unit variances hide mistakes."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
        for module in model.modules():
            if isinstance(module, BatchNorm):
                module.module.running_mean.uniform_(-1, 1)  # pyright: ignore
                module.module.running_var.uniform_(0.5, 2)  # pyright: ignore


def compare(world: World, directory: str, names: list[str], precision: str = "fp32") -> list[dict[str, Any]]:
    """Per model: this rank's logits by both ways, and what it computed."""
    graph = open_parts(directory, world.machine, world.num_machines)
    found = []
    for name in names:
        settings = experiment(**dict(MODELS[name]))
        task = build_task(settings.task, graph.schema)
        torch.manual_seed(3)
        model: Any = build_model(settings.model, graph.schema, "paper", task.out_channels, graph.statistics)
        shake(model)
        model.eval()
        sampled = NodeLoader(
            world, graph, "paper", split_seeds(world, graph, "paper", "test_mask"),
            sampling=settings.sampling, run_seed=0, wants=model.wants | task.wants, training=False,
        )  # fmt: skip
        before = set(os.listdir(directory))
        layerwise = LayerwiseLoader(
            world, graph, "paper",
            lambda low, high: np.flatnonzero(graph.node_attribute("paper", "test_mask")[low:high]),
            settings=Evaluate(method="layerwise", batch_edges=60, scratch=directory), sampling=settings.sampling,
            wants=model.wants, carried=("y",),
        )  # fmt: skip
        how = Precision(precision, world.device)
        exact = logits_of(layerwise.scores(model, task, how, embeddings=True), "paper")
        found.append(
            {
                "sampled": logits_of(sampled_scores(model, task, sampled, iter, how, embeddings=True), "paper"),
                "layerwise": exact,
                "computed": layerwise.computed,
                "needed": needed_types(graph.schema.edges, "paper", settings.model.layers),
                "left": set(os.listdir(directory)) - before,
            }
        )
    return found


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_parts(zoo(), tmp_path_factory.mktemp("zoo") / "three", 3)


def one_venue() -> HeteroData:
    """Only one machine owns a node of this type."""
    data = zoo()
    data["venue"].num_nodes, data["venue"].x, data["venue"].flag = 1, data["venue"].x[:1], data["venue"].flag[:1]
    data["venue", "publishes", "paper"].edge_index[0] = 0
    data["paper", "in", "venue"].edge_index[1] = 0
    return data


def check(
    ranks: list[list[dict[str, Any]]], names: list[str], rtol: float = 1e-5, data: HeteroData | None = None
) -> None:
    data = data or zoo()
    counts = {t: data[t].num_nodes for t in data.node_types}
    seeds = set(np.flatnonzero(data["paper"].test_mask.numpy()).tolist())
    for number, name in enumerate(names):
        here = [rank[number] for rank in ranks]
        sampled = {node: row for rank in here for node, row in rank["sampled"].items()}
        layerwise = {node: row for rank in here for node, row in rank["layerwise"].items()}
        assert sampled.keys() == layerwise.keys() == seeds, name
        assert sum(len(rank["layerwise"]) for rank in here) == len(seeds), name
        order = sorted(seeds)
        torch.testing.assert_close(
            torch.stack([layerwise[node] for node in order]),
            torch.stack([sampled[node] for node in order]),
            rtol=rtol, atol=rtol, msg=lambda text, name=name: f"{name}: {text}",
        )  # fmt: skip
        needed = here[0]["needed"]
        expected = {(layer, t): counts[t] for layer, types in enumerate(needed[:-1]) for t in types}
        expected[len(needed) - 1, "paper"] = len(seeds)
        computed: dict[tuple[int, str], int] = {}
        for rank in here:
            for place, nodes in rank["computed"].items():
                computed[place] = computed.get(place, 0) + nodes
        assert computed == expected, name
        assert [rank["left"] for rank in here] == [set()] * len(here)


def test_each_model_is_what_it_is_with_all_neighbours(directory: Path) -> None:
    with World.start(device="cpu", threads=1) as world:
        check([compare(world, str(directory), list(MODELS))], list(MODELS))


NAMES = ["gat", "gcn", "batch norm", "jumping", "hgt"]


def test_machines_and_ranks_share_the_work(directory: Path) -> None:
    check(run_ranks(compare, 4, str(directory), NAMES, machines=2), NAMES)


def test_machines_without_a_node_of_a_type(tmp_path: Path) -> None:
    parts = write_parts(one_venue(), tmp_path / "parts", 3)
    check(run_ranks(compare, 3, str(parts), NAMES, machines=3), NAMES, data=one_venue())


def test_half_precision_is_kept_between_the_layers(directory: Path) -> None:
    with World.start(device="cpu", threads=1) as world:
        check([compare(world, str(directory), ["batch norm"], "bf16")], ["batch norm"], rtol=3e-2)


def test_a_model_that_has_no_layers_of_its_own_is_refused() -> None:
    with pytest.raises(ExperimentError, match=r"no inputs, layers, readout, head. Set evaluate.method=sampled"):
        check_layered(torch.nn.Linear(2, 2))


def test_a_relation_that_counts_in_some_hops_only_is_refused() -> None:
    relation = ("venue", "publishes", "paper")
    some = Sampling(fanout={"default": (-1, -1), "venue,publishes,paper": (0, -1)})
    with pytest.raises(ExperimentError, match=r'of "venue,publishes,paper" neighbours are drawn in 1 of 2 hops'):
        all_or_none(some, [relation])
    none = Sampling(fanout=some.fanout, eval_fanout={"default": (-1, 3), "venue,publishes,paper": (0, 0)})
    assert all_or_none(none, [relation, ("paper", "cites", "paper")]) == {
        "venue,publishes,paper": (0,),
        "paper,cites,paper": (-1,),
    }


def test_a_full_disk_and_a_folder_that_is_not_there(directory: Path, tmp_path: Path) -> None:
    shapes = {"paper": ((1000, 64), np.dtype(np.float32)), "empty": ((0, 64), np.dtype(np.float32))}
    with World.start(device="cpu", threads=1) as world:
        with no_room(100_000), pytest.raises(ExperimentError, match=r"vectors between layers .*evaluate.scratch"):
            Scratch(world, tmp_path, shapes)
        with pytest.raises(ExperimentError, match="vectors between layers"):
            Scratch(world, tmp_path / "nowhere", shapes)
        scratch = Scratch(world, tmp_path, shapes)
        scratch["paper"][:] = 7
        assert scratch["empty"].shape == (0, 64) and scratch["empty"].flags.writeable
    assert os.listdir(tmp_path) == []
