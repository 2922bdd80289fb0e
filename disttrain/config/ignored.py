"""Settings that are written down and have no effect beside the others: they are warned of, not refused."""

from __future__ import annotations

from . import (
    TAKE_EDGE_ATTR,
    TAKE_EDGE_WEIGHT,
    CustomModel,
    Experiment,
    GpsModel,
    GraphRegression,
    GraphTask,
    HeteroConvModel,
    NodeRegression,
    Pooled,
    Section,
)
from .yaml import path_text

_OF_NEIGHBOURS = (
    "fanout", "eval_fanout", "replace", "weight_attr", "disjoint", "time_attr", "seed_time", "temporal_strategy",
    "locality", "cache_bytes", "cache_epochs", "feature_precision", "backend",
)  # fmt: skip

_OF_STORAGE = {"memory_limit": "auto", "in_memory": "hybrid", "ondisk_backend": "ondisk", "cache": "ondisk"}
"""Settings of a collection, and the storage that they are for."""


def ignored_settings(experiment: Experiment) -> list[str]:
    """One line for each setting that was given and does nothing: its path, and why."""
    found: list[str] = []

    def idle(section: Section, where: tuple[str, ...], key: str, why: str) -> None:
        if key in section.model_fields_set and getattr(section, key) != type(section).model_fields[key].default:
            found.append(f"{path_text((*where, key))} has no effect: {why}")

    train, sampling, model = experiment.train, experiment.sampling, experiment.model
    if train.optimizer != "sgd":
        idle(train, ("train",), "momentum", f"train.optimizer is {train.optimizer}, only sgd has it")
    if experiment.partition.method not in ("ldg", "fennel"):
        why = f"partition.method is {experiment.partition.method}, only ldg and fennel stream in passes"
        idle(experiment.partition, ("partition",), "passes", why)
    scheduler = train.scheduler
    for key in ("step_epochs", "gamma"):
        if scheduler.kind != "step":
            idle(scheduler, ("train", "scheduler"), key, f"train.scheduler.kind is {scheduler.kind}, not step")
    if scheduler.kind not in ("cosine", "linear"):
        idle(scheduler, ("train", "scheduler"), "min_factor", f"train.scheduler.kind is {scheduler.kind}")
    if train.on_nan == "stop":
        idle(train, ("train",), "max_skipped", "train.on_nan is stop, the first such step ends the run")
    elastic = train.elastic
    if experiment.launch.min_nodes is None:
        for key in ("keep", "lr"):
            idle(elastic, ("train", "elastic"), key, "launch.min_nodes is null, no machine may be missing")
    elif elastic.keep == "batches":
        idle(elastic, ("train", "elastic"), "lr", "train.elastic.keep is batches, a step has as many seeds as ever")
    task = experiment.task
    if isinstance(task, GraphTask):
        about = f"task.kind is {task.kind}"
        for key in _OF_NEIGHBOURS:
            idle(sampling, ("sampling",), key, f"{about}, no neighbours are drawn")
        for key in type(experiment.partition).model_fields:
            idle(experiment.partition, ("partition",), key, f"{about}, a collection has no partitions")
        for key, needs in _OF_STORAGE.items():
            if experiment.data.storage != needs:
                idle(experiment.data, ("data",), key, f"data.storage is {experiment.data.storage}, not {needs}")
        if isinstance(model, CustomModel):
            idle(model, ("model",), "layers", f"{about}, nothing is drawn for them")
        if sampling.by_size:
            for key in ("batch_size", "eval_batch_size", "drop_last", "balance"):
                idle(sampling, ("sampling",), key, "sampling.max_nodes and max_edges decide what a step has")
    else:
        for key in ("storage", "store", "shard", "pre_filter", *_OF_STORAGE):
            idle(experiment.data, ("data",), key, f"task.kind is {task.kind}, one graph is no collection")
        for key in ("drop_last", "balance", "max_nodes", "max_edges", "worker_kind", "start_method"):
            idle(sampling, ("sampling",), key, f"task.kind is {task.kind}, one graph is no collection")
    if isinstance(model, Pooled) and not isinstance(task, GraphTask):
        for key in ("pooling", "head_layers", "head_norm", "head_dropout"):
            idle(model, ("model",), key, f"task.kind is {task.kind}, nodes are not pooled")
    elif isinstance(model, Pooled) and model.head_layers == 1:
        for key in ("head_norm", "head_dropout"):
            idle(model, ("model",), key, "model.head_layers is 1, there is nothing between")
    if isinstance(model, GpsModel):
        idle(model, ("model",), "residual", "gps has ways around of its own")
        if model.conv in ("gin", "gcn", "sage", "none"):
            idle(model, ("model",), "edge_attr", f"model.conv is {model.conv}, which takes none")
    if isinstance(task, (NodeRegression, GraphRegression)) and task.loss != "huber":
        idle(task, ("task",), "delta", f"task.loss is {task.loss}, only huber has it")
    if train.precision == "fp32":
        idle(train, ("train",), "fp32_layers", "train.precision is fp32, every layer computes in it")
    if experiment.evaluate.method == "layerwise":
        for key in ("eval_fanout", "eval_batch_size"):
            idle(sampling, ("sampling",), key, "evaluate.method is layerwise: all neighbours count")
    else:
        for key in ("batch_edges", "scratch"):
            idle(experiment.evaluate, ("evaluate",), key, "evaluate.method is sampled")
    if sampling.workers == 0:
        for key in ("prefetch", *(("worker_kind", "start_method") if isinstance(task, GraphTask) else ())):
            idle(sampling, ("sampling",), key, "sampling.workers is 0, the training thread makes batches")
    elif isinstance(task, GraphTask) and not sampling.in_processes(bool(experiment.data.transforms)):
        idle(sampling, ("sampling",), "start_method", "workers are threads (sampling.worker_kind)")
    if sampling.time_attr is None and not isinstance(task, GraphTask):
        idle(sampling, ("sampling",), "temporal_strategy", "sampling.time_attr is null, neighbours have no times")
    if sampling.cache_bytes == 0 and not isinstance(task, GraphTask):
        idle(sampling, ("sampling",), "cache_epochs", "sampling.cache_bytes is 0, nothing is kept")
    if isinstance(model, HeteroConvModel):
        relations = {relation: model.options(relation).conv for relation in model.relations}
        convs = {model.conv, *relations.values()}
        attends, aggregates = ("gat", "gatv2"), ("sage", "graph")
        if not convs.intersection(attends):
            idle(model, ("model",), "heads", "no relation has conv gat or gatv2")
        if not convs.intersection(aggregates):
            idle(model, ("model",), "aggr", "no relation has conv sage or graph")
        if not any(isinstance(options.aggr, tuple) for options in (model, *model.relations.values())):
            idle(model, ("model",), "aggr_mode", "no aggr is a list")
        if not convs.intersection(TAKE_EDGE_WEIGHT):
            idle(model, ("model",), "edge_weight", f"no relation has conv {' or '.join(TAKE_EDGE_WEIGHT)}")
        if not convs.intersection(TAKE_EDGE_ATTR):
            idle(model, ("model",), "edge_attr", f"no relation has conv {', '.join(TAKE_EDGE_ATTR)}")
        for relation, options in model.relations.items():
            where = ("model", "relations", relation)
            if relations[relation] not in attends:
                idle(options, where, "heads", "this relation's conv is not gat or gatv2")
            if not isinstance(model.options(relation).aggr, tuple):
                idle(options, where, "aggr_mode", "this relation's aggr is not a list")
            if relations[relation] not in TAKE_EDGE_ATTR:
                idle(options, where, "edge_attr", f"this relation's conv is not {', '.join(TAKE_EDGE_ATTR)}")
    return found
