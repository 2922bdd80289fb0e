"""Ways to feed the graphs of a collection to a rank, each in a process of its own (see `rank_pool.py`)."""

from __future__ import annotations

import gc
import os
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import psutil
import torch
from torch.utils.data import DistributedSampler
from torch_geometric import transforms
from torch_geometric.data import HeteroData
from torch_geometric.datasets import QM9
from torch_geometric.loader import DataLoader

from disttrain.collection.loader import GraphLoader
from disttrain.config import Experiment
from disttrain.graph.schema import GRAPH, Wants
from disttrain.report.memory_monitor import look
from disttrain.train.collections import prepare_collection
from disttrain.world import World

BATCH_SIZE = 128
WORKERS = 2
TRANSFORM = {"Distance": {"norm": False}}
"""Of each graph at each access, where one is asked for: the length of each bond."""


@dataclass(frozen=True)
class Took:
    num_graphs: int
    cpu_seconds: float
    """Of the rank and its worker processes."""
    wall_seconds: float


class Listed(torch.utils.data.Dataset):
    """A list of graphs, each of which goes through a transform when it is used."""

    def __init__(self, graphs: list[Any], transform: Any) -> None:
        self.graphs, self.transform = graphs, transform

    def __len__(self) -> int:
        return len(self.graphs)

    def __getitem__(self, number: int) -> Any:
        return self.transform(self.graphs[number].clone())


class Contestant:
    """Args:
    kind: list, pyg, or a storage of ours.
    root: where PyG's QM9 lies.
    transform: each graph goes through `TRANSFORM` whenever it is used.
    """

    def __init__(self, world: World, kind: str, root: str, transform: bool) -> None:
        self.world, self.kind, self.root, self.transform = world, kind, root, transform
        sys.modules["rdkit"] = None  # pyright: ignore[reportArgumentType]  (where it is, QM9 has other raw files)
        self.loader: Any = None

    def start(self) -> Took:
        """From nothing to the first batch; the epoch that it belongs to is then gone through."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what PyG unpickles
            cpu, wall = cpu_seconds(), time.perf_counter()
            self.loader = {"list": self._of_list, "pyg": self._of_pyg}.get(self.kind, self._of_ours)()
            batches = self._batches(0)
            num_graphs = _count(next(batches))
            took = Took(num_graphs, cpu_seconds() - cpu, time.perf_counter() - wall)
            for _ in batches:
                pass
        return took

    def epoch(self, number: int) -> tuple[Took, int]:
        """One epoch, and the sum of the numbers of its graphs."""
        cpu, wall, num_graphs, numbers = cpu_seconds(), time.perf_counter(), 0, 0
        for batch in self._batches(number):
            num_graphs += _count(batch)
            numbers += int(_numbers(batch).sum())
        return Took(num_graphs, cpu_seconds() - cpu, time.perf_counter() - wall), numbers

    def memory(self, number: int) -> tuple[int, int]:
        """RSS and PSS of the rank and its workers in the middle of an epoch, which is then left."""
        gc.collect()
        batches = self._batches(number)
        for _ in range(max(1, self._num_steps() // 2)):
            next(batches, None)
        self.world.barrier("all are in the middle of it")
        rss, pss = look(os.getpid())
        self.world.barrier("all have looked")
        assert pss is not None, "PSS is Linux's"
        return rss, pss

    def _num_steps(self) -> int:
        return self.loader.num_steps if isinstance(self.loader, GraphLoader) else len(self.loader)

    def _batches(self, epoch: int) -> Iterator[Any]:
        if isinstance(self.loader, GraphLoader):
            with closing(self.loader.batches(epoch)) as batches:
                yield from batches
        else:
            self.loader.sampler.set_epoch(epoch)
            yield from self.loader

    # What PyG's tutorials write.

    def _of_pyg(self) -> DataLoader:
        return self._data_loader(QM9(self.root, transform=self._pyg_transform()))

    def _pyg_transform(self) -> Any:
        return getattr(transforms, *TRANSFORM)(**TRANSFORM["Distance"]) if self.transform else None

    def _of_list(self) -> DataLoader:
        made = self._pyg_transform()
        graphs = [graph.clone() for graph in QM9(self.root)]
        return self._data_loader(Listed(graphs, made) if made else graphs)

    def _data_loader(self, graphs: Any) -> DataLoader:
        sampler: Any = DistributedSampler(graphs, num_replicas=self.world.size, rank=self.world.rank)
        return DataLoader(
            graphs, batch_size=BATCH_SIZE, sampler=sampler, num_workers=WORKERS, persistent_workers=True,
            multiprocessing_context="fork",  # what it is by itself on Linux
        )  # fmt: skip

    def _of_ours(self) -> GraphLoader:
        experiment = experiment_of(self.root, self.kind, self.transform)
        graphs = prepare_collection(experiment, self.world)
        (node_type,) = (name for name in graphs.schema.nodes if name != GRAPH)
        (edge_type,) = graphs.schema.edges
        wants = Wants(
            nodes={GRAPH: ("y", "idx"), node_type: ("x", "pos", "z")}, edges={edge_type: ("edge_attr",)}
        )  # all that PyG's batches have but the text
        return GraphLoader(
            self.world, graphs, "train_mask", sampling=experiment.sampling, run_seed=0, wants=wants, training=True
        )  # fmt: skip


def experiment_of(root: str, storage: str, transform: bool = False) -> Experiment:
    """A run on these graphs."""
    return Experiment.model_validate(
        {
            "data": {
                "source": "pyg",
                "dataset": "QM9",
                "root": root,
                "storage": storage,
                "split": {"by": "ratio", "train": 1.0, "val": 0, "test": 0},
                **({"transforms": [TRANSFORM]} if transform else {}),
            },
            "task": {"kind": "graph_regression"},
            "model": {"kind": "gin"},
            "sampling": {"batch_size": BATCH_SIZE, "workers": WORKERS},
            "train": {"device": "cpu", "threads": 1},
        }
    )


def cpu_seconds() -> float:
    """Of this process, and of those that it has started and that are still there."""
    total = time.process_time()
    for child in psutil.Process().children(recursive=True):
        try:
            times = child.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system
    return total


def _count(batch: Any) -> int:
    return batch[GRAPH].num_nodes if isinstance(batch, HeteroData) else batch.num_graphs


def _numbers(batch: Any) -> torch.Tensor:
    return batch[GRAPH].idx if isinstance(batch, HeteroData) else batch.idx
