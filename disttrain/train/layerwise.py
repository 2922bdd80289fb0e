"""Layer-wise inference: one layer after the other over the whole graph, each node once, with all its neighbours.

A sampled score is an estimate from drawn neighbours, and with L layers a node is computed again for each seed that has
it nearby. Here layer l of all nodes is computed from layer l - 1 of all nodes: what the model says with every
neighbour, at a cost that does not grow with the power of L. Only node types that can matter for the target take part,
and in the last layer only the nodes that are asked for. Each machine computes its own nodes; the vectors between layers
lie in files (see `scratch.py`), others' are fetched.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import HeteroData

from ..config import EdgeType, Evaluate, ExperimentError, Sampling, edge_type_name
from ..graph.graph import Graph
from ..graph.schema import Wants
from ..models import Block, blocks
from ..sampling import NeighborSampler, Route, RowExchange, Subgraph
from ..sampling.fanout import fanout_table
from ..sampling.kind import Kind
from ..world import World
from .contract import check_output
from .precision import Precision
from .scores import Scores, check_embedding
from .scratch import Scratch

_INPUT_BYTES = 64 << 20
"""Of attributes that are read at once."""

_PARTS = ("inputs", "layers", "readout", "head")


def check_layered(model: nn.Module) -> None:
    """Refuse a model that cannot be computed layer after layer.

    Raises:
        ExperimentError: says what it lacks.
    """
    lacking = [part for part in _PARTS if not callable(getattr(model, part, None))]
    if lacking:
        raise ExperimentError(
            f"evaluate.method is layerwise, which needs a model of inputs, layers, readout and head; this one has no "
            f"{', '.join(lacking)}. Set evaluate.method=sampled, or give your module the parts of "
            "disttrain/models/layered.py"
        )


class LayerwiseLoader:
    """The nodes of a split, to be scored layer-wise. All ranks make theirs in the same order.

    Args:
        node_type: of the nodes that are asked for.
        chosen: (low, high), the machine's own range, -> int [num_chosen], which of it, counted from `low`.
        sampling: its weights say which edges there are (not those of weight 0), and its fanouts which relations (not
            those of which no hop draws any).
        wants: what the model wants, and node attributes of `node_type` that the scores have to carry.
        halved: of the wanted ones, those that sampled batches have rounded to fp16; here they are too.
    """

    def __init__(
        self,
        world: World,
        graph: Graph,
        node_type: str,
        chosen: Callable[[int, int], np.ndarray],
        *,
        settings: Evaluate,
        sampling: Sampling,
        wants: Wants,
        carried: tuple[str, ...],
        halved: Wants | None = None,
    ) -> None:
        self.world, self.graph, self.node_type = world, graph, node_type
        self.settings, self.wants, self.carried = settings, wants, carried
        self.halved = halved or Wants()
        self._kind = Kind(weight_attr=sampling.weight_attr)
        self._fanout = all_or_none(sampling, list(graph.schema.edges))
        self._low = {t: book.range_of(graph.machine)[0] for t, book in graph.node_books.items()}
        self._high = {t: book.range_of(graph.machine)[1] for t, book in graph.node_books.items()}
        low, high = self._low[node_type], self._high[node_type]
        ids = low + np.asarray(chosen(low, high), dtype=np.int64)
        # In the user's order, so that keys are read from the front to the back.
        ids = ids[np.argsort(graph.original_ids(node_type)[ids])]
        self._seeds = self._batches(node_type, self._share(node_type, ids))
        what = "dividing the nodes among batches"
        self.num_seeds = sum(world.gather(len(ids) if world.leads_machine else 0, what))
        self.num_steps = max(world.gather(len(self._seeds), what)) if self.num_seeds else 0
        self.computed: dict[tuple[int, str], int] = {}
        """How many nodes of a type this rank has computed in each layer (0: the inputs), in the last pass."""

    def scores(
        self,
        model: Any,
        task: Any,
        precision: Precision,
        *,
        embeddings: bool = False,
        look: Callable[[], None] = lambda: None,
    ) -> Generator[Scores, None, None]:
        """One pass. Every rank iterates to the end.

        Args:
            model: in evaluation mode, see `check_layered`.
            look: called after each batch of all layers but the last; as often on every rank.

        Raises:
            ExperimentError: on every rank: no room for the vectors between layers.
            PeerError: another machine failed, or did not answer in time.
        """
        with self.world.exchange_groups(1) as groups, torch.no_grad():
            route = Route(self.world, groups[0] if groups else None)
            self.computed = {}
            states = self._inputs(model, precision)
            layers, kept = list(model.layers()), []
            places_of = [e for e, names in self.wants.edges.items() if names]
            sampler = NeighborSampler(self.graph, self._fanout, route, places_of=places_of, kind=self._kind)
            for number, layer in enumerate(layers[:-1], 1):
                pass_ = _Pass(self, layer, states, sampler, route, precision)
                states = self._layer(number, pass_, look)
                kept.append(states[self.node_type])
            pass_ = _Pass(self, layers[-1], states, sampler, route, precision)
            for step in range(self.num_steps):
                ids = self._seeds[step] if step < len(self._seeds) else np.empty(0, np.int64)
                last = pass_.compute(self.node_type, ids)[self.node_type]
                self._count(len(layers), self.node_type, len(ids))
                before = [_tensor(state, ids - self._low[self.node_type]) for state in kept]
                with precision.autocast():
                    embedding = model.readout([*(state.to(last.device) for state in before), last])
                    logits = model.head(embedding)
                check_output(logits, len(ids), task.out_channels)
                check_embedding(embedding, len(ids))
                yield Scores(logits, embedding if embeddings else None, self._asked_for(ids))

    def _asked_for(self, ids: np.ndarray) -> HeteroData:
        batch = HeteroData()
        store = batch[self.node_type]
        for name in self.carried:
            store[name] = torch.from_numpy(self.graph.node_attribute(self.node_type, name)[ids])
        store.n_id = torch.from_numpy(np.asarray(self.graph.original_ids(self.node_type)[ids], dtype=np.int64))
        store.input_id, store.batch_size, store.num_nodes = store.n_id, len(ids), len(ids)
        return batch.to(self.world.device)  # pyright: ignore[reportReturnType]

    def _inputs(self, model: Any, precision: Precision) -> dict[str, _State]:
        def compute(ids: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
            with precision.autocast():
                return model.inputs(self._attributes(ids))

        states = self._room(compute({}))
        for node_type, state in states.items():
            row = sum(self.graph.node_attribute(node_type, n)[:1].nbytes for n in self.wants.nodes.get(node_type, ()))
            rows = max(1, min(self.settings.batch_edges, _INPUT_BYTES // max(1, row)))
            low, high = self._low[node_type], self._high[node_type]
            for ids in _pieces(self._share(node_type, np.arange(low, high)), rows):
                state.put(ids - low, compute({node_type: ids})[node_type])
                self._count(0, node_type, len(ids))
        self.world.barrier("computing the inputs")
        return states

    def _attributes(self, ids: Mapping[str, np.ndarray]) -> HeteroData:
        """What `model.inputs` reads: all types, those without ids empty."""
        batch = HeteroData()
        for node_type in self.graph.schema.nodes:
            rows = ids.get(node_type, np.empty(0, np.int64))
            for name in self.wants.nodes.get(node_type, ()):
                values = torch.from_numpy(self.graph.node_attribute(node_type, name)[rows])
                batch[node_type][name] = _rounded(values, name in self.halved.nodes.get(node_type, ()))
            original = np.asarray(self.graph.original_ids(node_type)[rows], dtype=np.int64)
            batch[node_type].n_id, batch[node_type].num_nodes = torch.from_numpy(original), len(rows)
        return batch.to(self.world.device)  # pyright: ignore[reportReturnType]

    def _layer(self, number: int, pass_: _Pass, look: Callable[[], None]) -> dict[str, _State]:
        empty = np.empty(0, np.int64)
        states = self._room(pass_.compute(self.node_type, empty))
        batches = {t: self._batches(t, self._share(t, np.arange(self._low[t], self._high[t]))) for t in states}
        what = f"computing layer {number}"
        steps = self.world.gather({t: len(own) for t, own in batches.items()}, what)
        for node_type, state in states.items():
            for step in range(max(there[node_type] for there in steps)):
                ids = batches[node_type][step] if step < len(batches[node_type]) else empty
                out = pass_.compute(node_type, ids)
                state.put(ids - self._low[node_type], out[node_type])
                self._count(number, node_type, len(ids))
                look()
        self.world.barrier(what)  # before another machine's rank asks for rows that a rank of this one has computed
        return states

    def _room(self, like: Mapping[str, Tensor]) -> dict[str, _State]:
        """Room for the vectors of the machine's own nodes, as wide as those."""
        shapes = {
            t: ((self._high[t] - self._low[t], vectors.size(1)), _STORED[vectors.dtype]) for t, vectors in like.items()
        }
        scratch = Scratch(self.world, Path(self.settings.scratch or tempfile.gettempdir()), shapes)
        return {t: _State(scratch[t], vectors.dtype) for t, vectors in like.items()}

    def _share(self, node_type: str, ids: np.ndarray) -> np.ndarray:
        """This rank's part of some of its machine's own nodes: consecutive, of about the same cost as the others'."""
        world, cost = self.world, np.cumsum(self._cost(node_type, ids))
        total = cost[-1] if len(cost) else 0
        parts = np.arange(world.local_size + 1) * total / world.local_size
        bounds = np.searchsorted(cost, parts)
        bounds[-1] = len(ids)
        return ids[bounds[world.local_rank] : bounds[world.local_rank + 1]]

    def _cost(self, node_type: str, ids: np.ndarray) -> np.ndarray:
        """int64: one, and one for each edge that leads to a node."""
        cost = np.ones(len(ids), np.int64)
        for edge_type in self.graph.schema.edges:
            if edge_type[2] == node_type:
                colptr = self.graph.csc(edge_type).colptr
                cost += colptr[ids + 1] - colptr[ids]
        return cost

    def _batches(self, node_type: str, ids: np.ndarray) -> list[np.ndarray]:
        ends, limit = np.cumsum(self._cost(node_type, ids)), self.settings.batch_edges
        found, first = [], 0
        while first < len(ids):
            before = ends[first - 1] if first else 0
            last = max(first + 1, int(np.searchsorted(ends, before + limit, side="right")))
            found.append(ids[first:last])
            first = last
        return found

    def _count(self, layer: int, node_type: str, nodes: int) -> None:
        self.computed[layer, node_type] = self.computed.get((layer, node_type), 0) + nodes


def all_or_none(sampling: Sampling, edge_types: list[EdgeType]) -> dict[str, tuple[int]]:
    """Relation -> all its neighbours, or none where no hop draws any.

    Raises:
        ExperimentError: a relation is drawn from in some hops only: a node has one vector in a layer, in whatever hop
            it would be met.
    """
    table = fanout_table(sampling.eval_fanout or sampling.fanout, edge_types)
    for number, edge_type in enumerate(edge_types):
        hops = np.flatnonzero(table[:, number])
        if 0 < len(hops) < len(table):
            raise ExperimentError(
                "evaluate.method is layerwise, which takes all edges of a relation or none; of "
                f'"{edge_type_name(edge_type)}" neighbours are drawn in {len(hops)} of {len(table)} hops. Give it some '
                "in every hop, or in none (sampling.eval_fanout), or set evaluate.method=sampled"
            )
    return {edge_type_name(e): (-1 if table[:, n].any() else 0,) for n, e in enumerate(edge_types)}


_STORED = {
    torch.float64: np.dtype(np.float64),
    torch.float32: np.dtype(np.float32),
    torch.float16: np.dtype(np.float16),
    torch.bfloat16: np.dtype(np.int16),
}
"""How vectors lie on the disk; NumPy has no bfloat16."""


class _State:
    """The vectors of one machine's nodes of one type after one layer."""

    def __init__(self, array: np.ndarray, dtype: torch.dtype) -> None:
        self.array, self.dtype = array, dtype

    def put(self, rows: np.ndarray, vectors: Tensor) -> None:
        assert vectors.dtype == self.dtype, (vectors.dtype, self.dtype)
        plain = vectors.cpu().contiguous()
        self.array[rows] = (plain.view(torch.int16) if self.dtype == torch.bfloat16 else plain).numpy()

    def tensor(self, rows: np.ndarray) -> Tensor:
        """Rows that have been fetched, as the layer gave them."""
        return torch.from_numpy(rows).view(self.dtype)


def _tensor(state: _State, rows: np.ndarray) -> Tensor:
    return state.tensor(state.array[rows])


def _pieces(ids: np.ndarray, length: int) -> Iterator[np.ndarray]:
    for first in range(0, len(ids), length):
        yield ids[first : first + length]


class _Pass:
    """One layer, ready to be computed for any of the machine's nodes from the vectors of the layer before."""

    def __init__(
        self,
        loader: LayerwiseLoader,
        layer: Any,
        states: Mapping[str, _State],
        sampler: NeighborSampler,
        route: Route,
        precision: Precision,
    ) -> None:
        self.loader, self.layer, self.states, self.sampler, self.precision = loader, layer, states, sampler, precision
        graph, wants = loader.graph, loader.wants
        arrays: dict[str, list[np.ndarray]] = {}
        self._degrees: dict[str, list[tuple[Any, str]]] = {}
        for node_type in graph.schema.nodes:
            low, high = loader._low[node_type], loader._high[node_type]
            arrays[node_type] = [states[node_type].array] if node_type in states else []
            self._degrees[node_type] = []
            for edge_type in graph.schema.edges:
                if edge_type in wants.degrees and edge_type[0] == node_type:
                    arrays[node_type].append(graph.source_degrees(edge_type)[low:high].astype(np.int64))
                    self._degrees[node_type].append((edge_type, "src_degree"))
                if edge_type in wants.degrees and edge_type[2] == node_type:
                    arrays[node_type].append(np.diff(graph.csc(edge_type).colptr[low : high + 1]))
                    self._degrees[node_type].append((edge_type, "dst_degree"))
        self.rows = RowExchange(graph.node_books, arrays, route)

    def compute(self, node_type: str, ids: np.ndarray) -> dict[str, Tensor]:
        """The layer of some own nodes of one type; types of which none were asked for come back empty. A collective."""
        loader = self.loader
        drawn = self.sampler.sample(node_type, ids, epoch=0, step=0)
        rows = self.rows.fetch(drawn.nodes)
        batch, x = self._edges(drawn), {}
        for t, fetched in rows.items():
            if t in self.states:
                x[t] = self.states[t].tensor(fetched[0]).to(loader.world.device)
                fetched = fetched[1:]
            for (edge_type, name), degrees in zip(self._degrees[t], fetched, strict=True):
                batch[edge_type][name] = torch.from_numpy(degrees)
        batch = batch.to(loader.world.device)
        (block,) = blocks(batch, 1)  # pyright: ignore[reportArgumentType]
        assert isinstance(block, Block)
        with self.precision.autocast():
            return self.layer(x, block, batch)

    def _edges(self, drawn: Subgraph) -> HeteroData:
        batch, graph = HeteroData(), self.loader.graph
        for node_type, ids in drawn.nodes.items():
            batch[node_type].num_nodes = len(ids)
            batch[node_type].num_sampled_nodes = drawn.num_nodes[node_type]
        for edge_type, index in drawn.edge_index.items():
            store = batch[edge_type]
            store.edge_index = torch.from_numpy(index)
            store.num_sampled_edges = drawn.num_edges[edge_type]
            # An edge lives with its destination, so all of them are this machine's own.
            for name in self.loader.wants.edges.get(edge_type, ()):
                array = graph.edge_attribute(edge_type, name)
                values = torch.from_numpy(array[drawn.edge_place[edge_type]])
                store[name] = _rounded(values, name in self.loader.halved.edges.get(edge_type, ()))
        return batch


def _rounded(values: Tensor, halved: bool) -> Tensor:
    return values.half().float() if halved else values
