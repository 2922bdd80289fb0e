"""How many neighbours are drawn, how, and in batches of what size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt, WithJsonSchema, model_validator

from .counted import counted
from .section import RELATION_PATTERN, Bytes, Relation, Section

_MOST = 1_000_000


class Share(Section):
    """Neighbours by the node's number of them: `ratio` of its degree, rounded up, but `min` to `max` of them (and,
    without replacement, never more than there are)."""

    ratio: Annotated[float, Field(gt=0, le=1)]
    """Of the degree: in the relation, of edges that may be drawn (of a weight above 0, not later than the seed)."""
    min: Annotated[int, Field(ge=0, le=_MOST)] = 1
    max: Annotated[int, Field(ge=1, le=_MOST)] | None = None
    """Null: no bound."""

    @model_validator(mode="after")
    def _in_order(self) -> Share:
        if self.max is not None and self.max < self.min:
            raise ValueError(f"max is {self.max}, below min, which is {self.min}")
        return self


Fanout = Annotated[int, Field(ge=-1, le=_MOST)] | Share
_KEY = {"type": "string", "pattern": f"^default$|{RELATION_PATTERN}"}
Fanouts = tuple[Fanout, ...] | dict[Annotated[Relation | Literal["default"], WithJsonSchema(_KEY)], tuple[Fanout, ...]]


class Sampling(Section):
    fanout: Fanouts = (10, 5)
    """Neighbours per hop: -1 all, 0 none, `{ratio: 0.5, min: 1, max: 20}` by degree. One list for all relations, or a
    list per relation and `default`."""
    batch_size: PositiveInt = 512
    """Seeds per rank and step."""
    eval_batch_size: PositiveInt | None = None
    """Null: `batch_size`."""
    eval_fanout: Fanouts | None = None
    """Fanout when evaluating; null: `fanout`."""
    replace: bool = False
    """Draw with replacement."""
    weight_attr: str | None = None
    """Edge attribute by which neighbours are drawn: the chance of each is proportional to it, an edge of weight 0 is
    never drawn. Relations without it are drawn from evenly."""
    disjoint: bool = False
    """Grow a tree of its own from each seed: nodes of different seeds are never merged, and a seed's tree does not
    depend on the batch it is in. Batches carry `batch`, the seed that each node belongs to."""
    time_attr: str | None = None
    """Attribute of nodes, edges or both that holds times (whole or floating numbers). No neighbour whose time, or whose
    edge's time, is later than that of the seed is drawn, nor one whose time is missing. Types without it are not
    restricted. Implies `disjoint`."""
    seed_time: str | None = None
    """Attribute of the seeds' node type that holds their times; null: `time_attr`."""
    temporal_strategy: Literal["uniform", "last"] = "uniform"
    """Which of the neighbours that are not too late: evenly (or by weight) drawn ones, or the latest."""
    workers: Annotated[int, Field(ge=0)] = 1
    """Loader threads (or processes, see `worker_kind`) per rank; 0: the training thread makes batches."""
    worker_kind: Literal["auto", "threads", "processes"] = "auto"
    """Of a collection: what workers are. auto: processes where there are `data.transforms`, which run in Python and may
    draw at random, threads otherwise. Batches are the same."""
    start_method: Literal["forkserver", "spawn", "fork"] = "forkserver"
    """How worker processes come about. forkserver: forked from a process that has imported what they need and has no
    threads; spawn: each imports for itself; fork: from the rank, with its threads and all that they hold."""
    prefetch: PositiveInt = 4
    """Batches per worker that may wait, ready, for the trainer."""
    locality: bool = True
    """A rank's seeds come from its own machine's nodes first. false: a rank's seeds do not depend on the cut."""
    shuffle: bool = True
    drop_last: bool = False
    """Of a collection: leave out an epoch's last step where it is not full."""
    balance: Literal["none", "size"] = "none"
    """Of a collection: how the graphs of a step are divided among the ranks. none: dealt out one by one. size: such
    that all have about as many nodes and edges, and none waits for another. Which graphs a step has stays the same."""
    max_nodes: PositiveInt | None = None
    """Of a collection: nodes that a rank may have in a step. Where it or `max_edges` is given, that decides how many
    graphs there are in a step instead of `batch_size`: as many as fit; all steps and ranks have about as much."""
    max_edges: PositiveInt | None = None
    """Likewise edges; both may be given."""
    cache_bytes: Bytes = 0
    """With several machines: memory of each for the remote rows used most, e.g. "512 MiB". Results stay the same."""
    cache_epochs: PositiveInt = 1
    """Epochs that are drawn before training, without features, to find those rows."""
    feature_precision: Literal["exact", "fp16"] = "exact"
    """`fp16`: the model's float32 attributes are rounded to fp16, which halves what is sent and cached of them."""
    backend: Literal["auto", "numba", "pyg-lib"] = "auto"
    """What draws the neighbours. auto: numba. pyg-lib: that library's `dist_neighbor_sample`, where it is installed;
    its draws depend on the order of the calls, so runs do not repeat themselves."""

    def in_processes(self, transforms: bool) -> bool:
        """Whether workers of a collection are processes.

        Args:
            transforms: graphs go through some at each access.
        """
        if self.worker_kind == "auto":
            return transforms and self.workers > 0
        return self.worker_kind == "processes" and self.workers > 0

    @property
    def threads_only(self) -> bool:
        return self.worker_kind == "threads" and self.workers > 0

    @property
    def by_size(self) -> bool:
        """Batches of a collection are as large as `max_nodes` and `max_edges` say."""
        return self.max_nodes is not None or self.max_edges is not None

    @property
    def temporal(self) -> bool:
        return self.time_attr is not None

    @model_validator(mode="after")
    def _fits_together(self) -> Sampling:
        wrong = []
        if self.seed_time is not None and self.time_attr is None:
            wrong.append("seed_time is given, but no time_attr to hold against it; set time_attr")
        if self.backend == "pyg-lib":
            if self.time_attr is not None and self.weight_attr is not None:
                wrong.append(
                    "backend pyg-lib cannot draw by weight and time at once; choose backend numba, or one of both"
                )
            if any(isinstance(entry, Share) for entry in _entries(self.fanout, self.eval_fanout)):
                wrong.append("backend pyg-lib has no fanout by ratio; choose backend numba, or give numbers")
        if wrong:
            raise ValueError("; ".join(wrong))
        return self


def _entries(*fanouts: Any) -> list[Any]:
    lists = [hops for f in fanouts for hops in (f.values() if isinstance(f, dict) else [f]) if hops is not None]
    return [entry for hops in lists for entry in hops]


def shown_fanout(hops: Any) -> str:
    """A list of fanouts as YAML has it."""
    return f"[{', '.join(shown_entry(entry) for entry in hops)}]"


def shown_entry(entry: Any) -> str:
    """One of them: a number, a `Share`, or what such a one is in YAML."""
    values = entry.model_dump(exclude_defaults=True) if isinstance(entry, Share) else entry
    if isinstance(values, dict):
        return "{" + ", ".join(f"{key}: {value}" for key, value in values.items() if value is not None) + "}"
    return str(values)


def fanout_conflicts(layers: int, fanouts: Mapping[str, Any]) -> dict[tuple[str, ...], str]:
    """Fanouts that are not one per layer: their path within `sampling`, and what is wrong.

    Args:
        layers: of the model.
        fanouts: key in `sampling` -> a list, a list per relation, or None.
    """
    conflicts = {}
    for key, fanout in fanouts.items():
        for path, hops in (
            {(key, relation): hops for relation, hops in fanout.items()}
            if isinstance(fanout, dict)
            else {(key,): fanout}
        ).items():
            if hops is not None and len(hops) != layers:
                conflicts[path] = (
                    f"has {counted(len(hops), 'hop')} ({shown_fanout(hops)}), but model.layers is {layers}; "
                    "give one fanout per layer"
                )
    return conflicts
