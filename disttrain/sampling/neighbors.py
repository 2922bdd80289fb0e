"""Distributed neighbour sampling: seeds in, a subgraph out, two exchanges a hop whatever the number of types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
import torch
from torch_geometric.sampler import (
    BaseSampler,
    EdgeSamplerInput,
    HeteroSamplerOutput,
    NegativeSampling,
    NodeSamplerInput,
)

from ..config import EdgeType
from ..graph.graph import Graph
from . import kernels
from .fanout import Fanout, fanout_table
from .memory import BLOCKS
from .request import make_request, read_request, starts
from .route import Route
from .subgraph import EdgeTable, NodeTable, Subgraph


@dataclass(frozen=True)
class _Relation:
    """What drawing from one relation needs, cut to the own range of destinations."""

    number: int
    src: str
    dst: str
    colptr: np.ndarray
    row: np.ndarray
    edge_id: np.ndarray


class DistNeighborSampler(BaseSampler):
    """Draws the neighbourhood of seeds from a graph that is spread over machines.

    The same (run seed, epoch, step) and seeds give the same subgraph, in original ids and in order, however the graph
    is cut and whoever asks. A destination's neighbours are drawn by the machine that owns it; per hop, one request and
    one answer carry all relations. Where the topology is replicated each machine draws for itself, and nothing is sent.
    One instance serves one thread.

    Cost: about 10 microseconds of CPU a seed at fanouts [10, 5]; 4 bytes a node of working memory (types of up to 16
    million nodes; for larger ones 8 bytes a node of the batch).

    Args:
        graph: the opened partition directory.
        fanout: neighbours per hop, -1 all, 0 none; one list, or one per relation `"src,rel,dst"` and `"default"`.
        route: the line to the other machines.
        replace: draw with replacement.
        run_seed: seed of all draws.
        places_of: relations whose edges' places in the CSC are wanted (to fetch edge attributes).

    Raises:
        ExperimentError: the fanout does not fit the graph.
    """

    def __init__(
        self,
        graph: Graph,
        fanout: Fanout,
        route: Route,
        *,
        replace: bool = False,
        run_seed: int = 0,
        places_of: Sequence[EdgeType] = (),
    ) -> None:
        self.graph, self.route = graph, route
        self.edge_types = list(graph.schema.edges)
        self.fanouts = fanout_table(fanout, self.edge_types)
        self.replace, self.run_seed = replace, run_seed
        self.places_of = frozenset(places_of)
        counts = [n.count for n in graph.schema.nodes.values()] + [e.count for e in graph.schema.edges.values()]
        self._dtype = np.dtype(np.int32 if max(counts, default=0) < 2**31 else np.int64)
        self._batch = {t: NodeTable(n.count, self._dtype) for t, n in graph.schema.nodes.items()}
        self._bounds = {t: book.bounds for t, book in graph.topology_books.items()}
        self._range = {t: book.range_of(graph.machine) for t, book in graph.topology_books.items()}
        self._original = {t: np.asarray(graph.original_ids(t)[slice(*self._range[t])]) for t in self._range}
        self._relations = []
        for number, (src, _, dst) in enumerate(self.edge_types):
            low, high = self._range[dst]
            csc = graph.csc(self.edge_types[number])
            colptr = np.asarray(csc.colptr[low : high + 1])
            self._relations.append(_Relation(number, src, dst, colptr, np.asarray(csc.row), np.asarray(csc.edge_id)))
        self._picks, self._seen = kernels.scratch_for(int(self.fanouts.max(initial=1)))

    @property
    def edge_permutation(self) -> None:
        """Edge ids are original ones already (PyG asks for this)."""
        return None

    def sample_from_nodes(self, index: NodeSamplerInput, epoch: int = 0, step: int = 0) -> HeteroSamplerOutput:
        """PyG's interface: seeds are `index.node` (int64 [num_seeds], partition order, distinct), of one type."""
        assert index.input_type is not None
        drawn = self.sample(index.input_type, index.node.numpy(), epoch=epoch, step=step)
        return HeteroSamplerOutput(
            node={t: torch.from_numpy(ids.astype(np.int64)) for t, ids in drawn.nodes.items()},
            row={e: torch.from_numpy(edges[0]) for e, edges in drawn.edge_index.items()},
            col={e: torch.from_numpy(edges[1]) for e, edges in drawn.edge_index.items()},
            edge={e: torch.from_numpy(ids) for e, ids in drawn.edge_id.items()},
            num_sampled_nodes=drawn.num_nodes,
            num_sampled_edges=drawn.num_edges,
            metadata=(index.input_id, index.time),
        )

    def sample_from_edges(self, index: EdgeSamplerInput, neg_sampling: NegativeSampling | None = None) -> NoReturn:
        """Edges as seeds belong to link prediction, which there is no task for yet.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("DistNeighborSampler takes nodes as seeds (sample_from_nodes), not edges")

    def sample(self, node_type: str, seeds: np.ndarray, *, epoch: int, step: int) -> Subgraph:
        """Draw the neighbourhood of `seeds` (partition-order ids, distinct). A collective: every machine takes part.

        Raises:
            ValueError: a seed comes twice.
            PeerError: another machine failed, or did not answer in time.
        """
        batch = self._batch
        batch[node_type].add(seeds.astype(self._dtype))
        if batch[node_type].count != len(seeds):
            batch[node_type].take()
            raise ValueError(f"seeds must be distinct, got {len(seeds)} with {len(np.unique(seeds))} different ones")
        edges = {edge_type: EdgeTable() for edge_type in self.edge_types}
        num_nodes = {t: [ids.count] for t, ids in batch.items()}
        begin = dict.fromkeys(batch, 0)
        for hop, fanouts in enumerate(self.fanouts):
            frontier = {t: ids.ids[begin[t] : ids.count] for t, ids in batch.items()}
            keys = [np.uint64(kernels.stream_key(self.run_seed, epoch, step, hop, r.number)) for r in self._relations]
            self._expand(hop, fanouts, keys, frontier, begin, edges)
            for t, ids in batch.items():
                begin[t] += len(frontier[t])
                num_nodes[t].append(ids.count - begin[t])
        return Subgraph(
            nodes={t: ids.take() for t, ids in batch.items()},
            num_nodes=num_nodes,
            edge_index={e: found.index for e, found in edges.items()},
            edge_id={e: found.edge_id for e, found in edges.items()},
            edge_place={e: found.place for e, found in edges.items()},
            num_edges={e: found.per_hop for e, found in edges.items()},
        )

    def _expand(
        self,
        hop: int,
        fanouts: np.ndarray,
        keys: list[np.uint64],
        frontier: dict[str, np.ndarray],
        begin: dict[str, int],
        edges: dict[EdgeType, EdgeTable],
    ) -> None:
        """Draw one hop of all relations."""
        me = self.route.machine
        active = [r for r in self._relations if fanouts[r.number] != 0]
        inbox, asked = self._ask(hop, fanouts, keys, active, frontier)
        cursor = starts(asked.inbox_sizes)
        draws, remote = [], []
        for relation in active:
            ids = frontier[relation.dst]
            draw = self._look_up(relation, ids, fanouts, keys)
            per_machine = np.zeros(self.route.num_machines, np.int64)
            if asked.any_for(relation.dst):
                draw.total += kernels.remote_counts(
                    ids, self._bounds[relation.dst], me, inbox, cursor, per_machine, draw.counts
                )
            draws.append(draw)
            remote.append(per_machine)
        for relation, draw, per_machine in zip(active, draws, remote, strict=True):
            edge_type = self.edge_types[relation.number]
            with_places = edge_type in self.places_of
            row, column, edge_id, place = edges[edge_type].add(draw.total, with_places)
            if not draw.total:
                continue
            if not with_places:
                place = BLOCKS.empty(draw.total, np.int64)
            self._draw_places(relation, draw, fanouts, place)
            if per_machine.any():
                kernels.take_answers(
                    frontier[relation.dst],
                    self._bounds[relation.dst],
                    draw.begins,
                    draw.counts,
                    inbox,
                    cursor.copy(),
                    per_machine,
                    with_places,
                    place,
                    row,
                    edge_id,
                )
                cursor += per_machine * (3 if with_places else 2)
            kernels.gather_edges(place, relation.row, relation.edge_id, row, edge_id)
            if with_places:
                kernels.uncomplement(place)
            kernels.repeat_destinations(draw.counts, begin[relation.dst], column)
            sources = self._batch[relation.src]
            sources.make_room(draw.total)
            sources.count = kernels.relabel(row, sources.table, sources.mask, sources.ids, sources.count)
        for relation in self._relations:
            if fanouts[relation.number] == 0:
                edges[self.edge_types[relation.number]].add(0, False)

    def _draw_places(self, relation: _Relation, draw: _Draw, fanouts: np.ndarray, places: np.ndarray) -> None:
        replace = self._with_replacement(relation, fanouts)
        kernels.draw_places(
            draw.begins, draw.degrees, draw.counts, draw.states, replace, self._picks, self._seen, places
        )

    def _with_replacement(self, relation: _Relation, fanouts: np.ndarray) -> bool:
        """All neighbours (-1) are each taken once, with replacement or without."""
        return self.replace and fanouts[relation.number] > 0

    def _look_up(self, relation: _Relation, ids: np.ndarray, fanouts: np.ndarray, keys: list[np.uint64]) -> _Draw:
        """What drawing for the own ones among `ids` needs."""
        low, high = self._range[relation.dst]
        begins, degrees = BLOCKS.empty(len(ids), np.int64), BLOCKS.empty(len(ids), np.int64)
        counts, states = BLOCKS.empty(len(ids), np.int32), BLOCKS.empty(len(ids), np.uint64)
        total = kernels.look_up(
            ids,
            low,
            high,
            relation.colptr,
            self._original[relation.dst],
            keys[relation.number],
            fanouts[relation.number],
            self._with_replacement(relation, fanouts),
            begins,
            degrees,
            counts,
            states,
        )
        return _Draw(begins, degrees, counts, states, total)

    def _ask(
        self,
        hop: int,
        fanouts: np.ndarray,
        keys: list[np.uint64],
        active: list[_Relation],
        frontier: dict[str, np.ndarray],
    ) -> tuple[np.ndarray, _Asked]:
        """One request, one answer: what the frontier's remote nodes drew, for all relations.

        A request holds, per node type, how many ids follow, then the ids. An answer holds, per active relation, a count
        for each id of its destination type; then, per active relation, neighbours, edge ids and (if wanted) places.
        """
        route, me = self.route, self.route.machine
        if self.graph.draws_alone:
            machines = route.num_machines
            return np.empty(0, self._dtype), _Asked([], np.zeros((0, machines), np.int64), np.zeros(machines, np.int64))
        types = list(dict.fromkeys(r.dst for r in active))
        ids, bounds = [frontier[t] for t in types], [self._bounds[t] for t in types]
        request = make_request(ids, bounds, me, route.num_machines, self._dtype)
        received, received_sizes = route.exchange(request.message, request.sizes, f"the sampling request of hop {hop}")

        answers = []
        at = 0
        for machine in range(route.num_machines):
            asker = received[at : at + received_sizes[machine]]
            at += int(received_sizes[machine])
            answers.append(self._answer(asker, types, fanouts, keys, active) if len(asker) else asker)
        answer_sizes = np.array([len(a) for a in answers], np.int64)
        inbox, inbox_sizes = route.exchange(np.concatenate(answers), answer_sizes, f"the sampling answer of hop {hop}")
        return inbox, _Asked(types, request.counts, inbox_sizes)

    def _answer(
        self, request: np.ndarray, types: list[str], fanouts: np.ndarray, keys: list[np.uint64], active: list[_Relation]
    ) -> np.ndarray:
        """Draw what one other machine asks for."""
        ids = dict(zip(types, read_request(request, len(types)), strict=True))
        draws = [self._look_up(relation, ids[relation.dst], fanouts, keys) for relation in active]
        fields = [3 if self.edge_types[r.number] in self.places_of else 2 for r in active]
        num_counts = sum(len(draw.counts) for draw in draws)
        length = num_counts + sum(f * draw.total for f, draw in zip(fields, draws, strict=True))
        answer = BLOCKS.empty(length, self._dtype)
        np.concatenate([draw.counts for draw in draws], out=answer[:num_counts])
        at = num_counts
        for relation, draw, num_fields in zip(active, draws, fields, strict=True):
            total = draw.total
            if total:
                places = BLOCKS.empty(total, np.int64)
                self._draw_places(relation, draw, fanouts, places)
                sources, edge_ids = answer[at : at + total], answer[at + total : at + 2 * total]
                kernels.gather_edges(places, relation.row, relation.edge_id, sources, edge_ids)
                if num_fields == 3:
                    answer[at + 2 * total : at + 3 * total] = places
            at += num_fields * total
        return answer


@dataclass
class _Draw:
    """What drawing for a frontier needs, see `kernels.look_up`; `total` is the sum of the counts."""

    begins: np.ndarray
    degrees: np.ndarray
    counts: np.ndarray
    states: np.ndarray
    total: int


@dataclass(frozen=True)
class _Asked:
    """What was asked for in a hop: ids per type and machine, and how much came back from each machine."""

    types: list[str]
    per_machine: np.ndarray
    inbox_sizes: np.ndarray

    def any_for(self, node_type: str) -> bool:
        return node_type in self.types and bool(self.per_machine[self.types.index(node_type)].any())
