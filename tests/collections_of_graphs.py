"""Small collections that tests name by dotted path."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data, HeteroData, InMemoryDataset


def rings(count: int = 30, numbers: bool = False) -> list[Data]:
    """Rings and lines of 3 to 8 nodes: class 1, or the number of nodes over 10, is for the model to find. Node features
    are the degrees and the graph's number; a graph without label is every seventh."""
    made = []
    for number in range(count):
        n, ring = 3 + number % 6, number % 2
        src = torch.arange(n if ring else n - 1)
        edge_index = torch.stack([torch.cat([src, (src + 1) % n]), torch.cat([(src + 1) % n, src])])
        degree = torch.bincount(edge_index[0], minlength=n).float()
        x = torch.stack([degree, torch.full((n,), float(number))], dim=1)
        y: Any = torch.tensor([n / 10.0 if number % 7 else float("nan")]) if numbers else ring if number % 7 else -1
        made.append(Data(x=x, edge_index=edge_index, y=y, edge_attr=torch.ones(edge_index.size(1), 1)))
    return made


def one_by_one(count: int = 30) -> Iterator[Data]:
    """The same from an iterator, and with graphs that have no edges or no nodes."""
    yield from rings(count)
    for n in (4, 0, 1):
        yield Data(
            x=torch.zeros(n, 2), edge_index=torch.empty(2, 0, dtype=torch.int64), y=0, edge_attr=torch.empty(0, 1)
        )


class Rings(InMemoryDataset):
    """As a data set, of which only some graphs are chosen, from the last one on."""

    def __init__(self, count: int = 30) -> None:
        super().__init__()
        self.data, self.slices = self.collate(rings(count))


def chosen(count: int = 30) -> InMemoryDataset:
    found = Rings(count)[list(range(count - 1, -1, -3))]
    assert isinstance(found, InMemoryDataset)
    return found


def pairs(count: int = 24) -> list[HeteroData]:
    """Heterogeneous graphs: class 1 has more `b` than `a`."""
    made = []
    for number in range(count):
        graph: Any = HeteroData()
        n, m = 1 + number % 3, 1 + (number // 3) % 3
        graph["a"].x, graph["b"].x = torch.ones(n, 2), torch.ones(m, 3)
        graph["a", "to", "b"].edge_index = torch.stack([torch.arange(n * m) // m, torch.arange(n * m) % m])
        graph.y = torch.tensor([int(m > n)])
        made.append(graph)
    return made


def one_broken(number: int = 5) -> list[Data]:
    graphs = rings()
    graphs[number].x = graphs[number].x.double()  # pyright: ignore[reportOptionalMemberAccess]
    return graphs


def no_graphs() -> list[str]:
    return ["a", "b"]


class Pairs(torch.nn.Module):
    """A model of one's own for `pairs`: how many nodes there are of each type, and their features."""

    def __init__(self, schema: Any, target: str, out_channels: int) -> None:
        super().__init__()
        self.target, self.linear = target, torch.nn.Linear(5, out_channels)

    def forward(self, batch: HeteroData) -> torch.Tensor:
        num_graphs = batch[self.target].batch_size
        sums = [
            torch.zeros(num_graphs, batch[t].x.size(1)).index_add(0, batch[t].batch, batch[t].x) for t in ("a", "b")
        ]
        return self.linear(torch.cat(sums, dim=1))


def named(count: int = 40, several: bool = False, labels: bool = True) -> list[Data]:
    """Rings and lines as above with a name, a mark (of several graphs the same), and a number of the user's own."""
    graphs = rings(count)
    for number, graph in enumerate(graphs):
        graph.name, graph.mark, graph.idx = f"ring {number}", f"m{number % 5}", torch.tensor([1000 - number])
        if several:
            present = number % 7 != 0
            both = [float(number % 2), float((graph.num_nodes or 0) > 5)] if present else [float("nan")] * 2
            graph.y = torch.tensor([both])
        if not labels:
            delattr(graph, "y")
    return graphs


def assays(count: int = 160, numbers: bool = False) -> list[Data]:
    """Four labels or targets a graph, of which a third is missing; every seventh graph has none, and of the last label
    only ones are known in the graphs that `ninths` tests."""
    graphs = rings(count)
    for number, graph in enumerate(graphs):
        n = float(graph.num_nodes or 0)
        found = [n / 10, float(number % 2), n * n, float(number)] if numbers else [n > 5, number % 2, n < 5, True]
        y = torch.tensor([found], dtype=torch.float32)
        if number % 9 and not numbers:
            y[0, 3] = float(number % 3 == 0)
        hidden = [(number * (k + 2) + number // 5) % 3 == 0 for k in range(4)]
        y[0, torch.tensor([hide or number % 7 == 0 for hide in hidden])] = torch.nan
        graph.y = y
    return graphs


def ninths(num_graphs: int) -> tuple[np.ndarray, ...]:
    """Tests the first of nine graphs, and trains the others."""
    first = np.arange(num_graphs) % 9 == 0
    return ~first, np.zeros(num_graphs, bool), first


class Sums(torch.nn.Module):
    """A linear model of the mean features of a graph, which begins with zeros."""

    def __init__(self, schema: Any, target: str, out_channels: int) -> None:
        super().__init__()
        self.target, self.linear = target, torch.nn.Linear(2, out_channels)
        torch.nn.init.zeros_(self.linear.weight)
        torch.nn.init.zeros_(self.linear.bias)

    def forward(self, batch: HeteroData) -> torch.Tensor:
        x, of = batch["node"].x, batch["node"].batch
        sums = torch.zeros(batch[self.target].batch_size, 2).index_add(0, of, x)
        counts = torch.zeros(len(sums)).index_add(0, of, torch.ones(len(x)))
        return self.linear(sums / counts.clamp(min=1).unsqueeze(1) * torch.tensor([1.0, 0.02]))


def five_classes() -> list[Data]:
    graphs = rings()
    graphs[3].y = 5  # pyright: ignore[reportAttributeAccessIssue]
    return graphs


# Transforms, for each use of a graph.


def wider(graph: Data, by: int = 1) -> Data:
    """Adds columns of the node's number, and a new attribute with a row for each edge."""
    assert graph.x is not None and graph.edge_index is not None
    numbers = torch.arange(graph.x.size(0), dtype=graph.x.dtype).unsqueeze(1)
    graph.x = torch.cat([graph.x, numbers.expand(-1, by)], dim=1)
    graph.edge_weight = torch.ones(graph.edge_index.size(1))
    return graph


def noise(graph: Data) -> Data:
    """Draws from each of the generators that a transform may use; changes the graph's tensors in place."""
    assert graph.x is not None
    graph.x.add_(torch.rand(1) + np.random.rand() + random.random())  # noqa: NPY002
    return graph


def another_label(graph: Data, odd: int = -1) -> Data:
    """Learn whether the graph is a ring; graph `odd` gets features of another type."""
    assert graph.x is not None and graph.edge_index is not None
    graph.z = int(graph.edge_index.size(1) == 2 * graph.x.size(0))
    del graph.y  # pyright: ignore[reportAttributeAccessIssue]
    if int(graph.x[0, 1]) == odd:
        graph.x = graph.x.double()
    return graph


def fails(graph: Data, at: int = 3) -> Data:
    assert graph.x is not None
    if int(graph.x[0, 1]) == at:
        raise ZeroDivisionError("no way")
    return graph


def troubled(graph: Data, at: int = 8, how: str = "raise") -> Data:
    """Trouble with one graph, in worker processes only."""
    assert graph.x is not None
    if int(graph.x[0, 1]) == at and multiprocessing.current_process().name.startswith("loader worker"):
        if how == "raise":
            raise ZeroDivisionError("no way")
        if how == "differ":
            graph.x = graph.x.double()
            return graph
        if how == "stop":
            time.sleep(3600)
        os.kill(os.getpid(), signal.SIGKILL)
    return graph


def large(count: int = 64, rows: int = 1 << 14) -> list[Data]:
    """A MiB each."""
    edges = torch.zeros(2, 1, dtype=torch.int64)
    return [
        Data(x=torch.full((rows, 16), float(n)), edge_index=edges, edge_attr=torch.ones(1, 1), y=n % 2)
        for n in range(count)
    ]


def by_name(graphs: Any, last: str = "m3") -> tuple[Any, ...]:
    """A split of `named` graphs that keeps those of a mark together."""
    marks = graphs.attribute("mark")
    assert len(marks) == len(graphs) and graphs[7].mark == marks[7] and len(graphs[1:3]) == 2
    test = torch.tensor([mark > last for mark in marks])
    rest = torch.arange(len(marks))[~test]
    return rest[::2], rest[1::2].tolist(), test


def by_class(labels: np.ndarray, num_graphs: int = 0, num_nodes: int = 0, **others: Any) -> dict[str, Any]:
    assert len(labels) == num_graphs + num_nodes and others
    return {"train": labels == 0, "test": np.flatnonzero(labels == 1)}


def anything(value: Any) -> Any:
    return value


def with_gaps(graph: Any) -> Any:
    """The classes 1 and 3, and one value of each graph's features missing."""
    if graph.y >= 0:
        graph.y = 1 + 2 * graph.y
    graph.x[0, 1] = torch.nan
    return graph


def signs() -> list[Data]:
    """Classes -1 and 1."""
    graphs = rings()
    for number, graph in enumerate(graphs):
        graph.y = number % 2 * 2 - 1  # pyright: ignore[reportAttributeAccessIssue]
    return graphs


def some_without_label(first: bool = True) -> list[Data]:
    """The first graph, or the last, has no label."""
    graphs = rings()
    delattr(graphs[0 if first else -1], "y")
    return graphs


def passes_none(graph: Any) -> bool:
    return False


def empty() -> list[Data]:
    return []
