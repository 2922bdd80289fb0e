"""What a run says of its labels before it trains: how many there are, and which classes cannot be learnt."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import torch

from ..config import Experiment, GraphTask
from ..config.counted import counted
from ..data.split import entries_there
from ..tasks.labels import SPLITS, label_place
from ..world import World
from .alone import say

logger = logging.getLogger(__name__)

_ROWS_AT_ONCE = 1 << 22
_MOST_SHOWN = 5


def tell_labels(experiment: Experiment, world: World, graph: Any, task: Any) -> None:
    """Say how many graphs have a label and are in each split, and warn of classes that no training seed has, and of
    splits that are empty. Every rank calls it.

    Cost: a pass over labels and masks of the machine's own range, some 10 ns a node, by its first rank.
    """
    what = "counting the labels"
    found = world.sum(torch.from_numpy(world.together(lambda: _counts(world, graph, task), what)), what).numpy()
    if not world.is_lead:
        return
    sizes, everywhere, training = found[:5], *np.split(found[5:], 2)
    count, labelled, *splits = (int(size) for size in sizes)
    about_graphs = isinstance(experiment.task, GraphTask)
    seeds = "graphs" if about_graphs else "nodes"
    if about_graphs:
        none = f" ({count - labelled:,} have none, and are in no split)" if labelled < count else ""
        divided = ", ".join(f"{name} {size:,}" for name, size in zip(SPLITS, splits))
        say(f"{labelled:,} of {counted(count, 'graph')} have a label{none}: {_kind(task)}; {divided}")
    names = graph.schema.info.get("classes", {}).get(task.node_type) or range(len(training))
    if line := lacking_classes(everywhere, training, names, getattr(task, "multilabel", False), seeds):
        logger.warning("%s %s", label_place(task.node_type, task.label), line)
    if line := empty_splits(splits[1], splits[2], seeds):
        logger.warning(line)


def _counts(world: World, graph: Any, task: Any) -> np.ndarray:
    """int64: seeds, those with a label, in train, val and test; of each class those that have it, and that train."""
    num_classes, multilabel = getattr(task, "num_classes", 0), getattr(task, "multilabel", False)
    sizes, classes = np.zeros(5, np.int64), np.zeros((2, num_classes), np.int64)
    low, high = graph.node_books[task.node_type].range_of(graph.machine)
    all_labels = graph.node_attribute(task.node_type, task.label)
    masks = [graph.node_attribute(task.node_type, mask) for mask in SPLITS.values()]
    for first in range(low, high if world.leads_machine else low, _ROWS_AT_ONCE):
        rows = slice(first, min(first + _ROWS_AT_ONCE, high))
        labels = np.asarray(all_labels[rows])
        chosen = [np.asarray(mask[rows]).astype(bool) for mask in masks]
        there = task.has_label(labels)
        sizes += [len(labels), int(there.sum()), *(int(mask.sum()) for mask in chosen)]
        for counts, which in zip(classes, (there, chosen[0]) if num_classes else ()):
            own = labels[which]
            if multilabel:
                counts += (entries_there(own) & (own > 0)).sum(axis=0, dtype=np.int64)
            else:
                counts += np.bincount(own.reshape(-1).astype(np.int64), minlength=num_classes)
    return np.concatenate([sizes, classes.reshape(-1)])


def _kind(task: Any) -> str:
    if num_classes := getattr(task, "num_classes", 0):
        return f"{counted(num_classes, 'label')} each" if task.multilabel else f"{num_classes:,} classes"
    return counted(task.num_targets, "number") + (" each" if task.num_targets > 1 else "")


def lacking_classes(everywhere: np.ndarray, training: np.ndarray, names: Any, multilabel: bool, seeds: str) -> str:
    """What to warn of; empty if every class is among the training seeds.

    Args:
        everywhere, training: int [num_classes], how many of all and of the training seeds have each class or label.
        names: of the classes, or their numbers.
    """
    what, parts = "labels" if multilabel else "classes", []
    nobody = np.flatnonzero(everywhere == 0)
    if len(nobody):
        parts.append(f"no {seeds[:-1]} has {_listed(nobody, names)}")
    elsewhere = np.flatnonzero((training == 0) & (everywhere > 0))
    if len(elsewhere):
        parts.append(f"no {seeds[:-1]} of the training split has {_listed(elsewhere, names)}")
    if not parts:
        return ""
    text = f"has {len(training):,} {what}, and {'; '.join(parts)}: "
    text += "the model has an output for each of them, and cannot learn these"
    return text + ("" if multilabel or not len(nobody) else ". Classes are numbered from 0 on, without gaps")


def _listed(which: np.ndarray, names: Any) -> str:
    shown = ", ".join(str(names[n]) if n < len(names) else str(n) for n in which[:_MOST_SHOWN].tolist())
    return shown + (f" and {len(which) - _MOST_SHOWN:,} more" if len(which) > _MOST_SHOWN else "")


def empty_splits(num_val: int, num_test: int, seeds: str) -> str:
    """What it means that a split has nobody; empty if both have some."""
    if num_val and num_test:
        return ""
    lacks = " and ".join(f"no {name}" for name, size in (("validation", num_val), ("test", num_test)) if not size)
    means = [] if num_val else ["nothing is validated, and the weights are those of the last epoch"]
    means += [] if num_test else ["nothing is tested"]
    return f"data.split leaves {lacks} {seeds}: {'; '.join(means)}"
