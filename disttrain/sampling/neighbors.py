"""Distributed neighbour sampling: seeds in, a subgraph out, two exchanges a hop whatever the number of types."""

from __future__ import annotations

from collections.abc import Sequence
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
from .drawable import drawable_edges
from .fanout import Fanout, fanout_rules, fanout_table
from .hop import NO_TREES, NOBODY, Asked, Frontier, Hop
from .kind import PLAIN, Kind
from .memory import BLOCKS
from .owners import numbers_of
from .relation import OneHop, Relation
from .request import make_request, read_request, starts
from .route import Route
from .subgraph import EdgeTable, NodeTable, Subgraph
from .temporal import NEVER, comparable, own_times, time_keys
from .trees import Trees, join_sources, make_tree_request, read_tree_request, split_nodes


class NeighborSampler(BaseSampler):
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
        disjoint: grow a tree of its own from each seed.
        kind: weights and times to draw by; times imply `disjoint`.
        one_hop: what draws in place of the kernels, see `one_hop.sample_one_hop`.

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
        disjoint: bool = False,
        kind: Kind = PLAIN,
        one_hop: OneHop | None = None,
    ) -> None:
        self.graph, self.route = graph, route
        self.edge_types = list(graph.schema.edges)
        self.fanouts = fanout_table(fanout, self.edge_types)
        self.rules = fanout_rules(fanout, self.edge_types)
        self.replace, self.run_seed, self.kind = replace, run_seed, kind
        self.disjoint = disjoint or kind.time_attr is not None
        self.places_of = frozenset(places_of)
        self._one_hop = one_hop
        counts = [n.count for n in graph.schema.nodes.values()] + [e.count for e in graph.schema.edges.values()]
        self._dtype = np.dtype(np.int32 if max(counts, default=0) < 2**31 else np.int64)
        self._num_nodes = {t: n.count for t, n in graph.schema.nodes.items()}
        self._batch = {t: self._node_table(n) for t, n in self._num_nodes.items()}
        self._bounds = {t: book.bounds for t, book in graph.topology_books.items()}
        self._range = {t: book.range_of(graph.machine) for t, book in graph.topology_books.items()}
        self._relations = [self._relation(number, edge_type) for number, edge_type in enumerate(self.edge_types)]
        self.set_epoch(0)
        self._asking: list[Trees] = []
        """The trees of the batch that each machine is making."""

    def _node_table(self, num_nodes: int) -> NodeTable:
        return NodeTable(2**62, np.dtype(np.int64)) if self.disjoint else NodeTable(num_nodes, self._dtype)

    def _relation(self, number: int, edge_type: EdgeType) -> Relation:
        graph, (low, high) = self.graph, self._range[edge_type[2]]
        csc = graph.csc(edge_type)
        return Relation(
            number,
            edge_type,
            low,
            high,
            (np.asarray(csc.colptr[low : high + 1]), np.asarray(csc.row), np.asarray(csc.edge_id)),
            np.asarray(graph.original_ids(edge_type[2])[low:high]),
            drawable_edges(graph, self.route, edge_type, self.kind) if self.kind != PLAIN else None,
            replace=self.replace,
            latest=self.kind.latest,
            one_hop=self._one_hop,
        )

    @property
    def edge_permutation(self) -> None:
        """Edge ids are original ones already (PyG asks for this)."""
        return None

    def set_epoch(self, epoch: int) -> None:
        """Of the draws of `sample_from_nodes`, whose calls are the steps of the epoch, from 0 on."""
        self._epoch, self._step = epoch, 0

    def sample_from_nodes(self, index: NodeSamplerInput) -> HeteroSamplerOutput:
        """PyG's interface: seeds are `index.node` (int64 [num_seeds], in partition order), of one type. A collective.

        Where neighbours have times, those of the seeds are `index.time`, else the attribute `seed_time` of each.

        Returns:
            All node and edge types, and what `sample` drew as the last entry of `metadata`.
        """
        node_type, seeds = index.input_type, index.node.numpy()
        assert node_type is not None
        times = None
        if index.time is not None:
            times = time_keys(comparable(index.time.numpy(), self.kind.floating))
        elif self.kind.seed_time is not None:
            times = self._times_of(node_type, seeds, self.kind.seed_time)
        if times is not None and (times == NEVER).any():
            raise ValueError(f"seed {seeds[times == NEVER][0]} of {node_type} (in partition order) has no time")
        drawn = self.sample(node_type, seeds, epoch=self._epoch, step=self._step, times=times)
        self._step += 1
        return HeteroSamplerOutput(
            node={t: torch.from_numpy(ids.astype(np.int64)) for t, ids in drawn.nodes.items()},
            row={e: torch.from_numpy(edges[0]) for e, edges in drawn.edge_index.items()},
            col={e: torch.from_numpy(edges[1]) for e, edges in drawn.edge_index.items()},
            edge={e: torch.from_numpy(ids) for e, ids in drawn.edge_id.items()},
            batch={t: torch.from_numpy(trees) for t, trees in drawn.tree.items()} if self.disjoint else None,
            num_sampled_nodes=drawn.num_nodes,
            num_sampled_edges=drawn.num_edges,
            metadata=(index.input_id, index.time, drawn),
        )

    def sample_from_edges(self, index: EdgeSamplerInput, neg_sampling: NegativeSampling | None = None) -> NoReturn:
        """Edges as seeds belong to link prediction, which there is no task for yet.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("NeighborSampler takes nodes as seeds (sample_from_nodes), not edges")

    def sample(
        self,
        node_type: str,
        seeds: np.ndarray,
        *,
        epoch: int,
        step: int,
        original: np.ndarray | None = None,
        times: np.ndarray | None = None,
    ) -> Subgraph:
        """Draw the neighbourhood of `seeds` (partition-order ids). A collective: every machine takes part.

        Args:
            seeds: distinct, unless they grow trees of their own. Then nothing depends on `step`.
            original: their original ids. Trees need them: where they are not given, they are asked for.
            times: their times, as keys (see `temporal.time_keys`).

        Raises:
            ValueError: a seed comes twice.
            PeerError: another machine failed, or did not answer in time.
        """
        batch = self._batch
        trees = self._trees(node_type, seeds, original, times) if self.disjoint else None
        self._sow(node_type, seeds)
        edges = {edge_type: EdgeTable() for edge_type in self.edge_types}
        num_nodes = {t: [ids.count] for t, ids in batch.items()}
        begin = dict.fromkeys(batch, 0)
        for hop, rules in enumerate(self.rules):
            frontier = {t: self._frontier(t, ids.ids[begin[t] : ids.count]) for t, ids in batch.items()}
            step_of_draws = 0 if self.disjoint else step
            keys = [
                np.uint64(kernels.stream_key(self.run_seed, epoch, step_of_draws, hop, r.number))
                for r in self._relations
            ]
            self._expand(Hop(hop, rules, keys, trees, frontier), begin, edges)
            for t, ids in batch.items():
                begin[t] += len(frontier[t].ids)
                num_nodes[t].append(ids.count - begin[t])
        nodes = {t: self._frontier(t, ids.take()) for t, ids in batch.items()}
        return Subgraph(
            nodes={t: found.ids for t, found in nodes.items()},
            num_nodes=num_nodes,
            edge_index={e: found.index for e, found in edges.items()},
            edge_id={e: found.edge_id for e, found in edges.items()},
            edge_place={e: found.place for e, found in edges.items()},
            num_edges={e: found.per_hop for e, found in edges.items()},
            tree={t: found.trees.astype(np.int64) for t, found in nodes.items()} if self.disjoint else {},
        )

    def _times_of(self, node_type: str, seeds: np.ndarray, seed_time: str) -> np.ndarray:
        own = self.graph.derived(  # for all batches: a pass over all own nodes
            ("seed times", node_type, seed_time, self.kind.floating),
            lambda: own_times(self.graph, node_type, seed_time, self.kind.floating),
        )
        bounds = self.graph.node_books[node_type].bounds
        return numbers_of(seeds, bounds, own, self.route, f"fetching {seed_time} of {node_type}")

    def _trees(self, node_type: str, seeds: np.ndarray, original: np.ndarray | None, times: np.ndarray | None) -> Trees:
        if original is None:
            book = self.graph.node_books[node_type]
            own = np.asarray(self.graph.original_ids(node_type)[slice(*book.range_of(self.graph.machine))], np.int64)
            original = numbers_of(seeds, book.bounds, own, self.route, "fetching the original ids of seeds")
        return Trees.of(np.asarray(original, np.int64), times)

    def _sow(self, node_type: str, seeds: np.ndarray) -> None:
        table = self._batch[node_type]
        if self.disjoint:
            table.add(np.arange(len(seeds), dtype=np.int64) * self._num_nodes[node_type] + seeds)
            return
        table.add(seeds.astype(self._dtype))
        if table.count != len(seeds):
            table.take()
            raise ValueError(f"seeds must be distinct, got {len(seeds)} with {len(np.unique(seeds))} different ones")

    def _frontier(self, node_type: str, nodes: np.ndarray) -> Frontier:
        if not self.disjoint:
            return Frontier(nodes, NO_TREES)
        found = Frontier(BLOCKS.empty(len(nodes), self._dtype), BLOCKS.empty(len(nodes), self._dtype))
        split_nodes(nodes, max(self._num_nodes[node_type], 1), found.ids, found.trees)
        return found

    def _expand(self, hop: Hop, begin: dict[str, int], edges: dict[EdgeType, EdgeTable]) -> None:
        """Draw one hop of all relations."""
        me = self.route.machine
        active = [r for r in self._relations if hop.rules[r.number].most != 0]
        inbox, asked = self._ask(hop, active)
        cursor = starts(asked.inbox_sizes)
        draws, remote = [], []
        for relation in active:
            frontier = hop.frontier[relation.dst]
            grown = (hop.trees, frontier.trees) if hop.trees is not None else None
            draw = relation.look_up(frontier.ids, hop.rules[relation.number], hop.keys[relation.number], grown)
            per_machine = np.zeros(self.route.num_machines, np.int64)
            if asked.any_for(relation.dst):
                draw.total += kernels.remote_counts(
                    frontier.ids, self._bounds[relation.dst], me, inbox, cursor, per_machine, draw.counts
                )
            draws.append(draw)
            remote.append(per_machine)
        for relation, draw, per_machine in zip(active, draws, remote, strict=True):
            edge_type = relation.edge_type
            with_places = edge_type in self.places_of
            row, column, edge_id, place = edges[edge_type].add(draw.total, with_places)
            if not draw.total:
                continue
            if not with_places:
                place = BLOCKS.empty(draw.total, np.int64)
            frontier = hop.frontier[relation.dst]
            relation.draw_places(draw, place)
            if per_machine.any():
                kernels.take_answers(
                    frontier.ids,
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
            if hop.trees is not None:
                join_sources(draw.counts, frontier.trees, self._num_nodes[relation.src], row)
            kernels.repeat_destinations(draw.counts, begin[relation.dst], column)
            sources = self._batch[relation.src]
            sources.make_room(draw.total)
            sources.count = kernels.relabel(row, sources.table, sources.mask, sources.ids, sources.count)
        for relation in self._relations:
            if hop.rules[relation.number].most == 0:
                edges[relation.edge_type].add(0, False)

    def _ask(self, hop: Hop, active: list[Relation]) -> tuple[np.ndarray, Asked]:
        """One request, one answer: what the frontier's remote nodes drew, for all relations.

        A request holds, per node type, how many ids follow, then the ids; where there are trees, see
        `make_tree_request`, with the trees in the head of the first hop's. An answer holds, per active relation, a
        count for each id of its destination type; then, per active relation, neighbours, edge ids and (if wanted)
        places.
        """
        route, me = self.route, self.route.machine
        if self.graph.draws_alone:
            machines = route.num_machines
            return np.empty(0, self._dtype), Asked([], np.zeros((0, machines), np.int64), np.zeros(machines, np.int64))
        types = list(dict.fromkeys(r.dst for r in active))
        ids, bounds = [hop.frontier[t].ids for t in types], [self._bounds[t] for t in types]
        if hop.trees is None:
            request = make_request(ids, bounds, me, route.num_machines, self._dtype)
            message, sizes, counts = request.message, request.sizes, request.counts
        else:
            head = hop.trees.words(self._dtype) if hop.number == 0 else np.empty(0, self._dtype)
            of = [hop.frontier[t].trees for t in types]
            message, sizes, counts = make_tree_request(ids, of, bounds, me, route.num_machines, head)
            if hop.number == 0:
                self._asking = [NOBODY] * route.num_machines
        received, received_sizes = route.exchange(message, sizes, f"the sampling request of hop {hop.number}")

        answers = []
        at = 0
        for machine in range(route.num_machines):
            asker = received[at : at + received_sizes[machine]]
            at += int(received_sizes[machine])
            answers.append(self._answer(machine, asker, types, hop, active) if len(asker) else asker)
        answer_sizes = np.array([len(a) for a in answers], np.int64)
        what = f"the sampling answer of hop {hop.number}"
        inbox, inbox_sizes = route.exchange(np.concatenate(answers), answer_sizes, what)
        return inbox, Asked(types, counts, inbox_sizes)

    def _answer(
        self, machine: int, request: np.ndarray, types: list[str], hop: Hop, active: list[Relation]
    ) -> np.ndarray:
        """Draw what one other machine asks for."""
        if hop.trees is None:
            wanted = read_request(request, len(types))
            grown = dict.fromkeys(types)
        else:
            head, wanted, of = read_tree_request(request, len(types))
            if hop.number == 0:
                self._asking[machine] = Trees.read(head)
            grown = {t: (self._asking[machine], trees) for t, trees in zip(types, of, strict=True)}
        ids = dict(zip(types, wanted, strict=True))
        draws = [
            relation.look_up(
                ids[relation.dst], hop.rules[relation.number], hop.keys[relation.number], grown[relation.dst]
            )
            for relation in active
        ]
        fields = [3 if r.edge_type in self.places_of else 2 for r in active]
        num_counts = sum(len(draw.counts) for draw in draws)
        length = num_counts + sum(f * draw.total for f, draw in zip(fields, draws, strict=True))
        answer = BLOCKS.empty(length, self._dtype)
        if draws:  # in a hop where nothing is drawn, trees are told all the same
            np.concatenate([draw.counts for draw in draws], out=answer[:num_counts])
        at = num_counts
        for relation, draw, num_fields in zip(active, draws, fields, strict=True):
            total = draw.total
            if total:
                places = BLOCKS.empty(total, np.int64)
                relation.draw_places(draw, places)
                sources, edge_ids = answer[at : at + total], answer[at + total : at + 2 * total]
                kernels.gather_edges(places, relation.row, relation.edge_id, sources, edge_ids)
                if num_fields == 3:
                    answer[at + 2 * total : at + 3 * total] = places
            at += num_fields * total
        return answer
