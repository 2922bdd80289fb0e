"""Seeded heterogeneous graphs: planted communities with power-law degrees, and the ring of the exactness tests."""

from __future__ import annotations

import numpy as np
import torch
from torch_geometric.data import HeteroData

from disttrain.config import EdgeType, ExperimentError, GeneratedData, GeneratedEdges, parse_edge_type

_WEIGHT_SCALE = 2**40
_BYTE_SUM_MEAN = 510.0
_BYTE_SUM_STD = float(np.sqrt(4 * (256**2 - 1) / 12))
_FEATURE_ROWS = 1 << 16
_POWER_LAW_ROUNDS = 10
_COMPLEMENT_PAIRS = 1 << 24


def generate(section: GeneratedData) -> HeteroData:
    """Make the graph that the section describes.

    It is the same, bit for bit, on any machine: all draws are integers, and floats see only IEEE products and sums.

    `communities`: the nodes of each type belong to `num_communities` communities of equal size. An edge's source is
    drawn by the power law of its end over the whole type; the destination lies, with probability `homophily`, in the
    source's community, else in another one, and is drawn by its own power law in there. Each relation ranks the nodes
    anew. A relation has exactly `num_edges` different edges and no self loop; edges are sorted by source, then
    destination. `x` is the centre of the node's class plus noise, both near normal. Each type has centres of its own.
    The target type has labels `y` (int64): the class is `community % num_classes`, or, where there are more classes
    than communities, one of those with that community as remainder, by chance. With `target_kind: numbers`, `y` is
    float32, see there.

    `ring`: nodes `v` of one type `t`, edges `t,edge,t` from `v` to `(v + 1) % n` (ids 0 to n-1) and to `(v + 2) % n`
    (ids n to 2n-1), `x[v] = [v]` (float32, exact to 2**24), `y[v] = v % num_classes`.

    Returns:
        `x` float32 [N, features] (types without features have `num_nodes` only), `edge_index` int64 [2, E]. No masks:
        splitting is the loader's work.

    Raises:
        ExperimentError: a relation between unknown types, more edges than pairs of nodes, an unfitting ring.

    Cost: 0.3 s per million edges and 0.1 s per million rows of 10 features, on one core.
    """
    return _ring(section) if section.kind == "ring" else _communities(section)


def _target(section: GeneratedData) -> str:
    if not section.nodes:
        raise ExperimentError("data.nodes: a generated graph needs at least one node type, none was given")
    target = section.target if section.target is not None else next(iter(section.nodes))
    if target not in section.nodes:
        raise ExperimentError(f"data.target: expected one of the node types {sorted(section.nodes)}, got {target!r}")
    return target


def _ring(section: GeneratedData) -> HeteroData:
    target = _target(section)
    if len(section.nodes) != 1 or section.edges:
        raise ExperimentError(
            f"data.kind: a ring has one node type and makes its own edges; got node types {sorted(section.nodes)} and "
            f"edges {sorted(section.edges)}. Leave out `edges`, name one type, or use `kind: communities`"
        )
    num_nodes = section.nodes[target].num_nodes
    ids = torch.arange(num_nodes)
    data = HeteroData()
    data[target].x = ids.float().unsqueeze(1)
    data[target].y = ids.float() if section.target_kind == "numbers" else ids % section.num_classes
    ahead = torch.cat([(ids + 1) % num_nodes, (ids + 2) % num_nodes])
    data[target, "edge", target].edge_index = torch.stack([ids.repeat(2), ahead])
    return data


def _communities(section: GeneratedData) -> HeteroData:
    target = _target(section)
    # One child seed per type and relation: adding a relation to the YAML leaves the others as they were.
    seeds = np.random.SeedSequence(section.seed)
    communities: dict[str, np.ndarray] = {}
    data = HeteroData()
    for node_type, nodes in section.nodes.items():
        rng = _generator(seeds, node_type)
        ids = np.arange(nodes.num_nodes, dtype=np.int64)
        communities[node_type] = rng.permutation(ids * section.num_communities // nodes.num_nodes)
        classes = _classes(rng, communities[node_type], section)
        data[node_type].num_nodes = nodes.num_nodes
        if nodes.features:
            data[node_type].x = torch.from_numpy(_features(rng, classes, nodes.features, section))
        if node_type == target:
            data[node_type].y = torch.from_numpy(classes)
            if section.target_kind == "numbers":
                y = classes.astype(np.float32) / np.float32(section.num_classes)
                if nodes.features:
                    y += data[node_type].x[:, 0].numpy() * np.float32(0.1)
                data[node_type].y = torch.from_numpy(y)
    for relation, edges in section.edges.items():
        src, name, dst = parse_edge_type(relation)
        for end in (src, dst):
            if end not in communities:
                raise ExperimentError(
                    f'data.edges."{relation}": expected node types out of {sorted(communities)}, got {end!r}'
                )
        rng = _generator(seeds, relation)
        pair = _edges(rng, (src, name, dst), edges, communities[src], communities[dst], section)
        data[src, name, dst].edge_index = torch.from_numpy(pair)
        if edges.reverse:
            data[dst, f"rev_{name}", src].edge_index = torch.from_numpy(np.ascontiguousarray(pair[::-1]))
    return data


def _generator(seeds: np.random.SeedSequence, name: str) -> np.random.Generator:
    words = np.frombuffer(name.encode().ljust(-(-len(name.encode()) // 4) * 4, b"\0"), dtype="<u4")
    child = np.random.SeedSequence(seeds.entropy, spawn_key=tuple(int(word) for word in words))
    return np.random.Generator(np.random.PCG64(child))


def _classes(rng: np.random.Generator, community: np.ndarray, section: GeneratedData) -> np.ndarray:
    """The class of each node, int64 [N]: `class % num_communities == community % num_classes`."""
    first = community % section.num_classes
    # Classes first, first + K, first + 2K, ... below num_classes.
    choices = (section.num_classes - 1 - first) // section.num_communities + 1
    return first + section.num_communities * (rng.integers(0, 2**32, len(first)) % choices)


def _features(rng: np.random.Generator, classes: np.ndarray, width: int, section: GeneratedData) -> np.ndarray:
    """`centre[class] + noise`, float32 [N, width]."""
    centres = _near_normal(rng, (section.num_classes, width))
    x = np.empty((len(classes), width), dtype=np.float32)
    for start in range(0, len(classes), _FEATURE_ROWS):
        rows = slice(start, start + _FEATURE_ROWS)
        noise = _near_normal(rng, x[rows].shape)
        noise *= np.float32(section.noise)
        np.add(noise, centres[classes[rows]], out=x[rows])
    return x


def _near_normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Sums of four random bytes, centred and scaled to unit variance, float32.

    Unlike numpy's normal draws they need no logarithm, whose last bit differs between machines; and are faster.
    """
    sums = np.frombuffer(rng.bytes(4 * int(np.prod(shape))), dtype="<u4").astype(np.uint32)
    # Two bytes at a time: each 16-bit lane holds at most 510.
    lanes = (sums & np.uint32(0x00FF00FF)) + ((sums >> np.uint32(8)) & np.uint32(0x00FF00FF))
    total = (lanes & np.uint32(0xFFFF)) + (lanes >> np.uint32(16))
    values = total.astype(np.float32)
    values -= np.float32(_BYTE_SUM_MEAN)
    values *= np.float32(1.0 / _BYTE_SUM_STD)
    return values.reshape(shape)


class _End:
    """One end of a relation: its nodes ranked, and drawn with probability `rank ** -exponent`."""

    def __init__(self, rng: np.random.Generator, community: np.ndarray, exponent: float, num_communities: int) -> None:
        num_nodes = len(community)
        rank = rng.permutation(num_nodes)
        self.nodes = np.lexsort((rank, community))
        # Integers: sums are exact, and the draws below need no float.
        weight = np.rint(_WEIGHT_SCALE * np.arange(1, num_nodes + 1, dtype=np.float64) ** -exponent / num_nodes)
        weight = np.maximum(weight.astype(np.int64), 1)
        self.sums = np.concatenate([[0], np.cumsum(weight[rank[self.nodes]])])
        first = np.searchsorted(community[self.nodes], np.arange(num_communities + 1))
        # A type with fewer nodes than communities: a community without nodes borrows those of the next one that has.
        filled = np.flatnonzero(np.diff(first))
        lender = filled[np.minimum(np.searchsorted(filled, np.arange(num_communities)), len(filled) - 1)]
        self.low = self.sums[first[lender]]
        self.high = self.sums[first[lender + 1]]

    def draw(self, rng: np.random.Generator, num: int) -> np.ndarray:
        return self._at(rng.integers(0, self.sums[-1], num))

    def draw_in(self, rng: np.random.Generator, communities: np.ndarray) -> np.ndarray:
        return self._at(rng.integers(self.low[communities], self.high[communities]))

    def _at(self, point: np.ndarray) -> np.ndarray:
        return self.nodes[np.searchsorted(self.sums, point, side="right") - 1]


def _edges(
    rng: np.random.Generator,
    edge_type: EdgeType,
    edges: GeneratedEdges,
    src_community: np.ndarray,
    dst_community: np.ndarray,
    section: GeneratedData,
) -> np.ndarray:
    """`num_edges` different pairs, int64 [2, num_edges], sorted."""
    num_src, num_dst = len(src_community), len(dst_community)
    loops = min(num_src, num_dst) if edge_type[0] == edge_type[2] else 0
    if edges.num_edges > num_src * num_dst - loops:
        raise ExperimentError(
            f'data.edges."{",".join(edge_type)}".num_edges: there can be at most {num_src * num_dst - loops} '
            f"(multi-edges and self loops are not made), got {edges.num_edges}"
        )
    communities = section.num_communities
    src = _End(rng, src_community, edges.exponent[0], communities)
    dst = _End(rng, dst_community, edges.exponent[1], communities)
    # Shares of 2**32, as draws are integers.
    homophily = round(section.homophily * 2**32) if communities > 1 else 2**32
    pairs = np.empty(0, dtype=np.int64)
    for _ in range(_POWER_LAW_ROUNDS):
        num = (edges.num_edges - len(pairs)) * 21 // 20 + 16
        sources = src.draw(rng, num)
        community = src_community[sources]
        away = rng.integers(0, 2**32, num) >= homophily
        community = (community + away * (1 + rng.integers(0, 2**32, num) % max(communities - 1, 1))) % communities
        drawn = sources * num_dst + dst.draw_in(rng, community)
        pairs = _add(rng, pairs, drawn, edges.num_edges, num_dst if loops else None)
        if len(pairs) == edges.num_edges:
            break
    # So dense that the power law keeps drawing what is there: the rest is uniform.
    while len(pairs) < edges.num_edges:
        if num_src * num_dst <= _COMPLEMENT_PAIRS:
            drawn = np.setdiff1d(np.arange(num_src * num_dst), pairs, assume_unique=True)
        else:
            drawn = rng.integers(0, num_src * num_dst, edges.num_edges - len(pairs) + 16)
        pairs = _add(rng, pairs, drawn, edges.num_edges, num_dst if loops else None)
    return np.stack(np.divmod(pairs, num_dst))


def _add(
    rng: np.random.Generator, pairs: np.ndarray, drawn: np.ndarray, num_edges: int, loop_width: int | None
) -> np.ndarray:
    """The union of both, sorted, without self loops; of the new ones only as many as are wanted."""
    if loop_width is not None:
        drawn = drawn[drawn // loop_width != drawn % loop_width]
    new = np.setdiff1d(drawn, pairs)
    surplus = len(pairs) + len(new) - num_edges
    if surplus > 0:
        new = np.delete(new, rng.choice(len(new), surplus, replace=False))
    return np.sort(np.concatenate([pairs, new]))
