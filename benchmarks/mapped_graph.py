"""A graph of any size on memory-mapped arrays: the proportions of mag-like, planted communities, power-law degrees.

It is written block by block, so making it needs no more memory than using it. Edges are in random order of both ends,
which is the worst for sorting, and ids say nothing about communities.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import torch
from numba import njit
from torch_geometric.data import HeteroData

COMMUNITIES = 64
HOMOPHILY = 0.6
FEATURES = 32
NODES_PER_EDGE = {"paper": 200 / 3000, "author": 100 / 3000, "institution": 2 / 3000, "field": 10 / 3000}
RELATIONS = {
    ("author", "writes", "paper"): 7 / 30,
    ("paper", "cites", "paper"): 15 / 30,
    ("author", "affiliated", "institution"): 1 / 30,
    ("paper", "topic", "field"): 7 / 30,
}
_BLOCK = 1 << 22


@njit(nogil=True, inline="always")
def _mixed(x: np.uint64) -> np.uint64:
    """splitmix64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@njit(nogil=True)
def _uniform(salt: int, index: int, draw: int) -> float:
    word = _mixed(np.uint64(index) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(salt) * np.uint64(16) + np.uint64(draw))
    return np.float64(word >> np.uint64(11)) / 9007199254740992.0


@njit(nogil=True)
def _draw_edges(first: int, src: np.ndarray, dst: np.ndarray, num_src: int, num_dst: int, salt: int) -> None:
    """Edges `first` on. The members of community c are the ids c, c + 64, ...; a power law over their ranks, which
    each relation shuffles by a multiplication."""
    members_src, members_dst = max(num_src // 64, 1), max(num_dst // 64, 1)
    for place in range(len(src)):
        edge = first + place
        community = int(_uniform(salt, edge, 0) * 64)
        rank = int(members_src * _uniform(salt, edge, 1) ** 2.0)
        src[place] = (community + 64 * ((rank * 7_368_787 + salt) % members_src)) % num_src
        if _uniform(salt, edge, 2) >= 0.6:
            community = (community + 1 + int(_uniform(salt, edge, 3) * 63)) % 64
        rank = int(members_dst * _uniform(salt, edge, 4) ** 3.3)
        dst[place] = (community + 64 * ((rank * 15_485_863 + salt) % members_dst)) % num_dst


def make(folder: Path, num_edges: int) -> None:
    """Write the arrays of a graph of about `num_edges` edges: 16 bytes an edge, and 64 bytes of features a node."""
    folder.mkdir(parents=True)
    counts = {node_type: max(int(share * num_edges), 64) for node_type, share in NODES_PER_EDGE.items()}
    rng = np.random.default_rng(0)
    for node_type, count in counts.items():
        x = np.lib.format.open_memmap(folder / f"{node_type}.x.npy", "w+", np.float16, (count, FEATURES))
        for start in range(0, count, _BLOCK // FEATURES):
            rows = x[start : start + _BLOCK // FEATURES]
            rows[:] = rng.random(rows.shape, dtype=np.float32) + (np.arange(start, start + len(rows)) % 64)[:, None]
        x.flush()
    # Training papers are more frequent in some communities, so that their balance is not had for nothing.
    papers = np.arange(counts["paper"])
    np.save(folder / "paper.train_mask.npy", rng.random(len(papers)) < 0.02 + 0.16 * (papers % 64) / 64)
    for salt, ((src, name, dst), share) in enumerate(RELATIONS.items()):
        count = int(share * num_edges)
        ends = np.lib.format.open_memmap(folder / f"{src},{name},{dst}.npy", "w+", np.int64, (2, count))
        for start in range(0, count, _BLOCK):
            block = slice(start, min(start + _BLOCK, count))
            _draw_edges(start, ends[0, block], ends[1, block], counts[src], counts[dst], salt + 1)
        ends.flush()


def load(folder: Path) -> HeteroData:
    """The graph, with every tensor on its file."""
    data = HeteroData()
    for file in sorted(folder.glob("*.npy")):
        with warnings.catch_warnings():
            # Nobody writes to it.
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            tensor = torch.from_numpy(np.load(file, mmap_mode="r"))
        if file.stem in [",".join(edge_type) for edge_type in RELATIONS]:
            src, name, dst = file.stem.split(",")
            data[src, name, dst].edge_index = tensor
        else:
            node_type, _, name = file.stem.partition(".")
            data[node_type][name] = tensor
    return data
