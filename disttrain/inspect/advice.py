"""What the facts speak for, each with its reason. Rules of thumb: nothing is changed, and nothing is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..config import Experiment, parse_edge_type
from ..config.counted import counted
from ..config.sampling import shown_entry
from ..graph.schema import GRAPH
from ..train.idle_types import idle_line, some
from .storage_advice import graph_advice, storage_advice

_MANY_EDGES = 100_000_000
_SCARCE = 0.02
_FEW_STEPS = 5


def advice(experiment: Experiment, facts: dict[str, Any]) -> list[str]:
    """Lines, the most important first."""
    rules = (_labels, _features, _nodes, _fanouts, _batches, _evaluation, _cut)
    return [line for rule in rules for line in rule(experiment, facts)]


def collection_advice(experiment: Experiment, facts: dict[str, Any]) -> list[str]:
    """The same of a collection of graphs; how it should be kept comes first, and is always said."""
    rules = (storage_advice, _labels, _features, graph_advice, _epochs)
    return [line for rule in rules for line in rule(experiment, facts)]


def _labels(experiment: Experiment, facts: dict[str, Any]) -> Iterator[str]:
    splits, what = facts["labels"]["splits"], "graph" if facts["target"] == GRAPH else "node"
    for split in ("val", "test"):
        if not splits[split]["nodes"]:
            yield f"there are no {what}s to {'validate' if split == 'val' else 'test'} on: look at data.split"
    classes = splits["train"].get("classes")
    if not classes:
        return
    absent = [name for name, count in classes.items() if not count]
    if absent:
        yield f"no training {what} is of class {some(absent)}: what a model says of it is chance; look at data.split"
    total, largest = sum(classes.values()), max(classes.values())
    if total and not facts["labels"]["several_per_node"] and largest / total > 0.9:
        yield (
            f"{largest / total:.0%} of the training {what}s are of one class: accuracy says little; "
            "task.metrics=[macro_f1,average_precision]"
        )
    elif total and not facts["labels"]["several_per_node"]:
        scarce = [name for name, count in classes.items() if 0 < count < _SCARCE * total / len(classes)]
        if scarce:
            yield f"class {some(scarce)} has hardly a training {what}: look at macro_f1 beside accuracy"


def _features(experiment: Experiment, facts: dict[str, Any]) -> Iterator[str]:
    inputs = getattr(experiment.model, "inputs", None)
    for name, nodes in facts["nodes"].items():
        features = nodes["features"]
        if features is None or not nodes["takes_part"]:
            continue
        if features["unscaled"] and not (inputs is not None and inputs.standardize):
            where = "model.inputs.standardize=true" if inputs is not None else "scale them in your model"
            yield (
                f'features of "{name}" are not scaled (means up to {features["largest_mean"]:.3g}, deviations from '
                f"{features['smallest_std']:.3g} to {features['largest_std']:.3g}): {where}"
            )
        if features["constant_columns"]:
            yield (
                f'of {counted(features["columns"], "column")} of x of "{name}" {features["constant_columns"]} '
                "constant: leave such out, they say nothing"
            )
        if features["not_finite_columns"]:
            columns = counted(features["not_finite_columns"], "column")
            yield f'{columns} of x of "{name}" with infinite values: mend that'
        if features["missing"]:
            missing = counted(features["missing"], "missing value")
            yield f'{missing} of x of "{name}": the mean of the column stands for it'


def _nodes(experiment: Experiment, facts: dict[str, Any]) -> Iterator[str]:
    edges = {parse_edge_type(name): relation["edges"] for name, relation in facts["relations"].items()}
    if line := idle_line(experiment, facts["nodes"], edges, facts["target"]):
        yield line
    alone = facts["nodes"][facts["target"]]["without_neighbours"]
    if 0.2 < alone < 1:
        yield f"{alone:.0%} of the nodes of {facts['target']} have no neighbour: a graph model sees their features only"
    for name, relation in facts["relations"].items():
        if relation["repeated_edges"]:
            yield (
                f'"{name}" has {counted(relation["repeated_edges"], "repeated edge")}, each a neighbour of its own; '
                "unless that is meant, make one of each (`torch_geometric.utils.coalesce`, or SELECT DISTINCT)"
            )


def _fanouts(experiment: Experiment, facts: dict[str, Any]) -> Iterator[str]:
    for name, relation in facts["relations"].items():
        if not relation["takes_part"] or not relation["edges"]:
            continue
        degrees, fanout, most = relation["destination_degrees"], relation["fanout"][0], relation["most_drawn"][0]
        shown, least = shown_entry(fanout), fanout["min"] if isinstance(fanout, dict) else fanout
        if least > degrees["max"]:
            yield (
                f'"{name}": no node has more than {counted(degrees["max"], "neighbour")}, a fanout of {shown} '
                "draws all of them"
            )
        elif most > 0 and relation["drawn_share"][0] < 0.1:
            yield (
                f'"{name}": a fanout of {shown} draws {relation["drawn_share"][0]:.1%} of the edges (mean degree '
                f"{degrees['mean']:.3g}, largest {degrees['max']:,}): more, or a share of the degree, "
                "{ratio: 0.1, min: 1, max: 50}"
            )
        elif most > 10_000:
            yield (
                f'"{name}": a fanout of {shown} draws up to {most:,} neighbours of one node; give a lower number for '
                "training, and evaluate with all of them by evaluate.method=layerwise"
            )


def _batches(experiment: Experiment, facts: dict[str, Any]) -> Iterator[str]:
    yield from _epochs(experiment, facts)
    batch = facts["batches"]["train"]
    total = sum(nodes["nodes"] for nodes in facts["nodes"].values() if nodes["takes_part"])
    share = sum(batch["nodes"].values()) / max(total, 1)
    if share > 0.5 and batch["steps"] >= _FEW_STEPS:
        yield (
            f"a batch of {batch['seeds']:,.0f} seeds touches {share:.0%} of all nodes, {batch['steps']:,} times an "
            "epoch: lower fanouts, or take larger batches"
        )


def _epochs(experiment: Experiment, facts: dict[str, Any]) -> Iterator[str]:
    steps, what = facts["batches"]["train"]["steps"], "graphs" if facts["target"] == GRAPH else "seeds"
    if 0 < steps < _FEW_STEPS:
        yield (
            f"an epoch is {counted(steps, 'step')} of {experiment.sampling.batch_size} {what} on one rank: "
            "a smaller sampling.batch_size learns more in an epoch"
        )


def _evaluation(experiment: Experiment, facts: dict[str, Any]) -> Iterator[str]:
    sampled, layerwise = (facts["evaluation"][key] for key in ("sampled_edges", "layerwise_edges"))
    if not sampled or not layerwise or experiment.sampling.temporal or experiment.model.kind == "custom":
        return
    if experiment.evaluate.method == "sampled" and sampled > 2 * layerwise:
        yield (
            f"an evaluation draws {sampled:,.0f} edges; layer by layer it is {layerwise:,.0f}, and exact: "
            "evaluate.method=layerwise"
        )
    elif experiment.evaluate.method == "layerwise" and layerwise > 10 * sampled:
        yield (
            f"a layer-wise evaluation computes {layerwise:,.0f} edges, sampled it is {sampled:,.0f}: "
            "evaluate.method=sampled while training, and --method layerwise in predict"
        )


def _cut(experiment: Experiment, facts: dict[str, Any]) -> Iterator[str]:
    edges = sum(relation["edges"] for relation in facts["relations"].values())
    memory = facts["memory"]
    if experiment.partition.method == "metis" and edges > _MANY_EDGES:
        yield f"METIS holds all {edges:,} edges in memory, several times over: partition.method=fennel streams them"
    if memory["machines"] > 1 and experiment.partition.topology == "partitioned":
        rest = memory["mapped"]["total"]
        if memory["mapped"]["topology"] * memory["machines"] < rest:
            yield (
                "the edges take less room than a machine's features: partition.topology=replicated spares the exchange "
                "of neighbours"
            )
    gpu = experiment.train.precision == "fp32" and experiment.train.device == "cuda"
    if gpu and getattr(experiment.model, "hidden", 0) >= 64:
        yield "on a GPU, train.precision=bf16 computes faster at this width and halves the memory of a step"
