"""Small graphs for tests, with everything in them that has gone wrong somewhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch_geometric.data import HeteroData

from disttrain.config import Partition
from disttrain.graph.graph import Graph
from disttrain.graph.partitioner import partition


def zoo(seed: int = 0) -> HeteroData:
    """Four node types of unequal widths and dtypes (one without features, one never an end of an edge), six relations
    (one empty, one with self loops and multi-edges, edge attributes of several dtypes), masks and labels on `paper`."""
    rng = np.random.default_rng(seed)
    count = {"paper": 211, "author": 97, "venue": 5, "lonely": 3}
    data = HeteroData()
    for number, (node_type, num_nodes) in enumerate(count.items()):
        data[node_type].num_nodes = num_nodes
        ids = torch.arange(num_nodes)
        if node_type == "paper":
            data[node_type].x = torch.stack([ids + 0.25, ids * 2.0, -ids - 0.0], dim=1).float()
            data[node_type].y = ids % 7
            data[node_type].time = ids * 1_000_000_007
            data[node_type].weight = ids.double() / 3
        elif node_type == "venue":
            data[node_type].x = torch.from_numpy(rng.normal(size=(num_nodes, 2, 5)))
            data[node_type].flag = ids % 2 == 0
        elif node_type == "lonely":
            data[node_type].x = torch.from_numpy(rng.normal(size=(num_nodes, number)).astype(np.float16))
    order = torch.from_numpy(rng.permutation(count["paper"]))
    for name, part in (("train_mask", order[:100]), ("val_mask", order[100:150]), ("test_mask", order[150:190])):
        mask = torch.zeros(count["paper"], dtype=torch.bool)
        mask[part] = True
        data["paper"][name] = mask

    def connect(src: str, relation: str, dst: str, num_edges: int) -> None:
        ends = np.stack(
            [rng.integers(0, count[src], num_edges), rng.integers(0, count[dst], num_edges) ** 2 % count[dst]]
        )
        data[src, relation, dst].edge_index = torch.from_numpy(ends)

    connect("paper", "cites", "paper", 1500)
    connect("author", "writes", "paper", 700)
    connect("paper", "rev_writes", "author", 500)
    connect("venue", "publishes", "paper", 230)
    connect("paper", "in", "venue", 400)
    connect("author", "knows", "author", 0)
    cites = data["paper", "cites", "paper"]
    cites.edge_index[:, :20] = cites.edge_index[:1, :20]
    cites.edge_index[:, 20:30] = cites.edge_index[:, 30:40]
    cites.edge_attr = torch.arange(1500).view(-1, 1) * torch.tensor([1.0, 0.5])
    cites.time = torch.arange(1500) * 3
    data["author", "writes", "paper"].kind = torch.arange(700).to(torch.uint8)
    return data


def ring(num_nodes: int = 24) -> HeteroData:
    """v -> v+1 and v -> v+2 (mod n); x[v] = v. Node v has exactly the in-neighbours v-1 and v-2."""
    ids = torch.arange(num_nodes)
    data = HeteroData()
    data["node"].x = ids.float().view(-1, 1)
    data["node"].y = ids % 3
    data["node"].train_mask = torch.ones(num_nodes, dtype=torch.bool)
    data["node", "next", "node"].edge_index = torch.stack(
        [torch.cat([ids, ids]), torch.cat([(ids + 1) % num_nodes, (ids + 2) % num_nodes])]
    )
    return data


def write_parts(data: HeteroData, directory: Path, parts: int, method: str = "random") -> Path:
    """Partition `data` into `directory`."""
    settings = Partition(parts=parts, method=method)  # type: ignore[arg-type]
    partition(data, {}, {}, settings, parts, str(directory), f"test-{parts}-{method}", lambda line: None)
    return directory


def open_parts(directory: Path | str, machine: int = 0, num_machines: int = 1) -> Graph:
    return Graph.open(directory, machine, num_machines)


def dated_zoo(seed: int = 0, seeds_time: bool = True) -> HeteroData:
    """The zoo with weights `w` on two relations (a third of them 0; one with a destination whose all are), and times
    `at`: of papers (whole numbers, with ties), of venues (floating, one missing) and of citations."""
    rng = np.random.default_rng(seed + 1)
    data = zoo(seed)
    for relation in (("paper", "cites", "paper"), ("paper", "rev_writes", "author")):
        num_edges = data[relation].edge_index.size(1)
        weights = rng.gamma(0.5, size=num_edges) * (rng.random(num_edges) > 0.3)
        data[relation].w = torch.from_numpy(weights)
    of_the_first = data["paper", "rev_writes", "author"].edge_index[1] == 0
    data["paper", "rev_writes", "author"].w[of_the_first] = 0.0
    data["paper"].at = torch.from_numpy(rng.integers(-20, 20, 211))
    data["venue"].at = torch.tensor([-30.0, -0.5, float("nan"), 3.25, 19.0], dtype=torch.float64)
    data["paper", "cites", "paper"].at = torch.from_numpy(rng.integers(-20, 20, 1500))
    if not seeds_time:
        data["paper"].born = data["paper"].at
        del data["paper"].at
    return data
