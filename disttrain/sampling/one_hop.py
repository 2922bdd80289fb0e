"""One hop of one relation as a single call: the signature and the results of pyg-lib's `dist_neighbor_sample`.

`sample_one_hop` draws with this package's kernels; where pyg-lib is installed, `torch.ops.pyg.dist_neighbor_sample` can
take its place (`sampling.backend: pyg-lib`).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..config import ExperimentError
from .drawable import Drawable
from .fanout import Rule
from .relation import OneHop, Relation
from .temporal import time_keys
from .trees import Trees
from .weighted import running_sums, scale_weights


def sample_one_hop(
    rowptr: Tensor,
    col: Tensor,
    seed: Tensor,
    num_neighbors: int,
    node_time: Tensor | None = None,
    edge_time: Tensor | None = None,
    seed_time: Tensor | None = None,
    edge_weight: Tensor | None = None,
    csc: bool = False,
    replace: bool = False,
    directed: bool = True,
    disjoint: bool = False,
    temporal_strategy: str = "uniform",
    *,
    states: np.ndarray | None = None,
) -> tuple[Tensor, Tensor, list[int]]:
    """Draw up to `num_neighbors` (-1: all) neighbours of each seed.

    Args:
        rowptr, col: the neighbours of node v are col[rowptr[v] : rowptr[v + 1]], by time where there are times.
        seed: int64 [num_seeds], any may come several times.
        node_time, edge_time: of nodes or of edges, one of them; no neighbour later than its seed is drawn.
        seed_time: [num_seeds]; None: that of `node_time`.
        edge_weight: neighbours are drawn by it, those of weight 0 never. Not along with times, as in pyg-lib.
        csc, directed: have no influence on one hop.
        disjoint: nodes come with the place of their seed.
        temporal_strategy: "uniform" or "last"; of the last, none is drawn twice.
        states: uint64 [num_seeds], by which each seed's draws are decided; None: by torch's generator.

    Returns:
        Nodes, the seeds and then the neighbours of each, [n], or [n, 2] with the place of the seed first if `disjoint`.
        Edges, int64 [num_edges], places in `col`. And num_seeds + 1 numbers: how many nodes there are once the first
        0, 1, ... seeds have been expanded.
    """
    if (node_time is not None or edge_time is not None) and not disjoint:
        raise ValueError("drawing by time needs disjoint=True")
    if sum(given is not None for given in (node_time, edge_time, edge_weight)) > 1:
        raise ValueError("expected at most one of node_time, edge_time and edge_weight")
    seeds, colptr = seed.numpy(), rowptr.numpy()
    times, grown = None, None
    if node_time is not None:
        times = node_time[col]
        seed_time = node_time[seed] if seed_time is None else seed_time
    elif edge_time is not None:
        times = edge_time
    if times is not None:
        if seed_time is None:
            raise ValueError("edge_time needs seed_time")
        trees = Trees(np.zeros(len(seeds), np.uint64), time_keys(seed_time.numpy()))
        grown = trees, np.arange(len(seeds))
    drawable = None
    if times is not None or edge_weight is not None:
        drawable = _layout(colptr, times, edge_weight)
    relation = Relation(
        0,
        ("", "", ""),
        0,
        len(colptr) - 1,
        (colptr, col.numpy(), colptr),
        colptr,
        drawable,
        replace=replace,
        latest=temporal_strategy == "last",
    )
    draw = relation.look_up(seeds, Rule(num_neighbors), np.uint64(0), grown)
    if states is None:
        states = torch.randint(-(2**63), 2**63 - 1, (len(seeds),)).numpy().view(np.uint64)
    draw.states[:] = states
    edges = np.empty(draw.total, np.int64)
    relation.draw_places(draw, edges)
    edge = torch.from_numpy(edges)
    node = torch.cat([seed, col[edge]])
    counts = torch.from_numpy(draw.counts.astype(np.int64))
    if disjoint:
        places = torch.arange(len(seeds))
        node = torch.stack([torch.cat([places, places.repeat_interleave(counts)]), node], dim=1)
    return node, edge, [len(seeds), *(len(seeds) + counts.cumsum(0)).tolist()]


def _layout(colptr: np.ndarray, times: Tensor | None, weights: Tensor | None) -> Drawable:
    if weights is None:
        assert times is not None
        return Drawable(colptr, None, times=time_keys(times.numpy()))
    scaled = weights.double().numpy().copy()
    kept = np.flatnonzero(scaled)
    colptr, order = np.concatenate([[0], np.cumsum(scaled != 0)])[colptr], kept
    scaled = scaled[kept]
    scale_weights(colptr, scaled)
    return Drawable(colptr, order, weights=scaled, sums=running_sums(colptr, scaled))


def _pyg_lib_one_hop(*args, states: np.ndarray | None = None, **kwargs) -> tuple[Tensor, Tensor, list[int]]:
    return torch.ops.pyg.dist_neighbor_sample(*args, **kwargs)


def one_hop_of(backend: str) -> OneHop | None:
    """What draws a hop; None: the kernels themselves, which need no such call.

    Raises:
        ExperimentError: pyg-lib is not installed, or is one without `dist_neighbor_sample`.
    """
    if backend != "pyg-lib":
        return None
    try:
        import pyg_lib  # noqa: F401  # pyright: ignore[reportMissingImports]

        torch.ops.pyg.dist_neighbor_sample  # noqa: B018
    except (ImportError, AttributeError, OSError) as error:
        raise ExperimentError(
            f"sampling.backend is pyg-lib, which cannot be used here ({type(error).__name__}: {error}); install it for "
            f"torch {torch.__version__}, or set sampling.backend=auto"
        ) from error
    return _pyg_lib_one_hop
