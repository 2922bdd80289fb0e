"""Mini-batches made by brute force, as the loader's contract has them, for tests of models and tasks."""

from __future__ import annotations

import numpy as np
import torch
from torch_geometric.data import HeteroData

from disttrain.graph.schema import Attribute, Edges, Nodes, Schema


def schema_of(data: HeteroData) -> Schema:
    """The schema that the partitioner would write."""

    def attribute(value: torch.Tensor) -> Attribute:
        array = value.numpy()
        known = array[~np.isnan(array)] if array.dtype.kind == "f" else array
        bounded = known.size > 0 and array.dtype.kind != "b"
        return Attribute(
            str(array.dtype),
            tuple(array.shape[1:]),
            float(known.min()) if bounded else None,
            float(known.max()) if bounded else None,
            int(array.size - known.size),
        )

    def attributes(store: object) -> dict[str, Attribute]:
        return {k: attribute(v) for k, v in store.items() if isinstance(v, torch.Tensor) and k != "edge_index"}  # type: ignore[attr-defined]

    return Schema(
        {t: Nodes(int(data[t].num_nodes or 0), attributes(data[t])) for t in data.node_types},
        {e: Edges(data[e].num_edges, attributes(data[e])) for e in data.edge_types},
    )


def batch_of(
    data: HeteroData, target: str, seeds: list[int], layers: int, fanout: int = -1, seed: int = 0
) -> HeteroData:
    """The first `fanout` of each node's shuffled neighbours (-1: all), `layers` hops; with whole-graph degrees."""
    rng = np.random.default_rng(seed)
    ids: dict[str, list[int]] = {t: [] for t in data.node_types}
    ids[target] = list(seeds)
    hops = {t: [len(ids[t])] for t in data.node_types}
    edges: dict = {e: [] for e in data.edge_types}
    edge_hops: dict = {e: [] for e in data.edge_types}
    frontier = {t: list(ids[t]) for t in data.node_types}
    for _ in range(layers):
        before = {t: len(ids[t]) for t in data.node_types}
        for e in data.edge_types:
            src, dst = data[e].edge_index.numpy()
            drawn = 0
            for node in frontier[e[2]]:
                incoming = np.flatnonzero(dst == node)
                for edge in np.sort(rng.permutation(incoming)[: None if fanout < 0 else fanout]):
                    if src[edge] not in ids[e[0]]:
                        ids[e[0]].append(int(src[edge]))
                    edges[e].append((ids[e[0]].index(src[edge]), ids[e[2]].index(node), edge))
                    drawn += 1
            edge_hops[e].append(drawn)
        for t in data.node_types:
            frontier[t] = ids[t][before[t] :]
            hops[t].append(len(frontier[t]))
    batch = HeteroData()
    for t in data.node_types:
        n_id = torch.tensor(ids[t], dtype=torch.int64)
        batch[t].n_id, batch[t].num_nodes, batch[t].num_sampled_nodes = n_id, len(n_id), hops[t]
        for name, value in data[t].items():
            if isinstance(value, torch.Tensor):
                batch[t][name] = value[n_id]
    batch[target].batch_size = len(seeds)
    batch[target].input_id = torch.arange(len(seeds))
    for e in data.edge_types:
        table = torch.tensor(edges[e], dtype=torch.int64).reshape(-1, 3)
        batch[e].edge_index, batch[e].e_id = table[:, :2].t().contiguous(), table[:, 2]
        batch[e].num_sampled_edges = edge_hops[e]
        out = torch.bincount(data[e].edge_index[0], minlength=data[e[0]].num_nodes)
        into = torch.bincount(data[e].edge_index[1], minlength=data[e[2]].num_nodes)
        batch[e].src_degree, batch[e].dst_degree = out[batch[e[0]].n_id], into[batch[e[2]].n_id]
        if "edge_attr" in data[e]:
            batch[e].edge_attr = data[e].edge_attr[table[:, 2]]
    return batch


def random_graph(seed: int = 0, edge_attr: bool = False) -> HeteroData:
    """paper (30, float x, labels), author (20, x of another width), venue (4, no features), island (3, unreachable)."""
    generator = torch.Generator().manual_seed(seed)

    def edge_index(src: int, dst: int, count: int) -> torch.Tensor:
        pairs = torch.randperm(src * dst, generator=generator)[:count]
        return torch.stack([pairs // dst, pairs % dst])

    data = HeteroData()
    data["paper"].x = torch.randn(30, 6, generator=generator)
    data["paper"].y = torch.randint(0, 3, (30,), generator=generator)
    data["author"].x = torch.randn(20, 5, generator=generator)
    data["venue"].num_nodes = 4
    data["island"].x = torch.randn(3, 2, generator=generator)
    data["author", "writes", "paper"].edge_index = edge_index(20, 30, 60)
    data["paper", "written_by", "author"].edge_index = edge_index(30, 20, 50)
    within = edge_index(30, 30, 90)
    data["paper", "cites", "paper"].edge_index = within[:, within[0] != within[1]]
    data["venue", "of", "paper"].edge_index = edge_index(4, 30, 30)
    data["paper", "in", "island"].edge_index = edge_index(30, 3, 5)
    if edge_attr:
        for e in data.edge_types:
            data[e].edge_attr = torch.randn(data[e].num_edges, 3, generator=generator)
    return data
