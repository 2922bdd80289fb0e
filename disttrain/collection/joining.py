"""Graph objects of one mini-batch put together: what `collate` makes of them, faster, and checked against what graphs
of this collection look like."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.data.storage import EdgeStorage

from ..config import ExperimentError, edge_type_name
from .collated import Collated, Key, Store
from .columns import Column, Numbers, Objects
from .gathering import Left, Place, gather_like
from .ragged import Ragged, bits_of

Names = Mapping[Key, Sequence[str]]
"""Of each type, the attributes that are wanted."""

_REVEAL_NODES = frozenset({"x", "feat", "pos", "batch", "node_type", "n_id"})
"""As PyG has it: the first of these attributes says how many nodes there are."""
_dtype = attrgetter("dtype")


def join(graphs: Sequence[Any], ids: np.ndarray, like: Collated, names: Names | None = None) -> Collated:
    """Put graphs together.

    Args:
        graphs: what transforms made of the graphs `ids`; at least one. They are not changed.
        like: graphs of the same collection after the same transforms. Attributes that it does not have are left out.
        names: the attributes that are wanted; None: all that `like` has.

    Raises:
        ExperimentError: a graph differs from `like` in a type, an attribute, or its type or width; names it.
    """
    expected = HeteroData if like.heterogeneous else Data
    for graph, number in zip(graphs, ids):
        if not isinstance(graph, expected):
            raise _differs(number, f"it is a {type(graph).__name__}, and the others are {expected.__name__}")
    made: dict[Key, Store] = {}
    for key, store in like.stores.items():
        try:
            storages = [_storage(graph, key) for graph in graphs]
        except KeyError:
            number = next(i for graph, i in zip(graphs, ids) if not _has(graph, key))
            raise _differs(number, f"it has no {_type_name(key)}") from None
        wanted = [name for name in store.columns if names is None or name in names.get(key, ())]
        made[key] = _Join(graphs, ids, key, storages, store).joined(wanted)
    return Collated(len(graphs), like.heterogeneous, made)


class _Join:
    """What the graphs have of one type."""

    def __init__(self, graphs: Sequence[Any], ids: np.ndarray, key: Key, storages: list[Any], like: Store) -> None:
        self.graphs, self.ids, self.key, self.storages, self.like = graphs, ids, key, storages, like
        self.contents: list[dict[str, Any]] = [storage.__dict__["_mapping"] for storage in storages]
        self.counts: list[int] | None = None
        self.plain = all(type(graph).__inc__ in (Data.__inc__, HeteroData.__inc__) for graph in graphs)
        """They have no rules of their own of how to move numbers."""

    def joined(self, names: Sequence[str]) -> Store:
        if self.like.num_nodes is not None:
            self.counts = self._num_nodes()
        columns: dict[str, Column] = {}
        for name in names:
            try:
                values = [content[name] for content in self.contents]
            except KeyError:
                number = next(i for content, i in zip(self.contents, self.ids) if name not in content)
                raise _differs(number, f"it has no {self._named(name)}") from None
            columns[name] = self._column(name, values, self.like.columns[name])
        counts = None if self.counts is None else np.array(self.counts, np.int64)
        return Store(columns, counts, self.like.says_num_nodes, self.like.numbers_nodes)

    def _column(self, name: str, values: list[Any], like: Column) -> Column:
        if isinstance(like, Ragged) and all(isinstance(value, Tensor) for value in values):
            return self._tensors(name, values, like)
        moves = "index" in name or name == "face" or not self.plain  # in a batch
        if isinstance(like, Numbers) and not moves and {*map(type, values)} == {_NUMBERS[like.values.dtype.kind]}:
            return Numbers(np.array(values, like.values.dtype))
        return self._any(name, values, like)

    def _tensors(self, name: str, values: list[Tensor], like: Ragged) -> Ragged:
        graph, storage = self.graphs[0], self.storages[0]
        axis = graph.__cat_dim__(name, values[0], storage)
        stacked = axis is None or values[0].dim() == 0
        axis = 0 if stacked else axis % values[0].dim() if isinstance(axis, int) else None
        dims = values[0].dim()
        dtypes = set(map(_dtype, values))
        fits = len(dtypes) == 1 and all([value.dim() == dims for value in values])
        whole = None
        if fits and axis is not None:
            plain = [value if type(value) is Tensor else value.as_subclass(Tensor) for value in values]
            try:
                whole = torch.stack(plain) if stacked else torch.cat(plain, dim=axis)
            except RuntimeError:
                whole = None  # shapes that do not go together, or a sparse matrix among them
        if whole is None or whole.layout != torch.strided or not _is_like(whole, axis, like):
            raise self._unlike(name, values, like)
        assert axis is not None
        sizes = [1] * len(values) if stacked else [value.size(axis) for value in values]
        whole = whole.detach().cpu().contiguous()
        increments = self._increments(name, values)
        return Ragged.of(bits_of(whole), np.array(sizes, np.int64), axis, like.dtype, increments)

    def _increments(self, name: str, values: list[Any]) -> np.ndarray | None:
        """By the rules of `Data` and `HeteroData`, without asking each graph where they are the plain ones."""
        if not self.plain or "batch" in name:
            found = [
                np.asarray(graph.__inc__(name, value, storage))
                for graph, value, storage in zip(self.graphs, values, self.storages)
            ]
            increments = np.stack(found).astype(np.int64)
            return increments if increments.any() or increments.ndim > 1 else None
        if isinstance(self.graphs[0], HeteroData):
            if "index" not in name or not isinstance(self.storages[0], EdgeStorage):
                return None
            ends = [storage.size() for storage in self.storages]
            return np.array(ends, np.int64).reshape(-1, 2, 1)
        return np.array(self.counts, np.int64) if "index" in name or name == "face" else None

    def _num_nodes(self) -> list[int]:
        """Of each graph; by the attribute that tells it in the first one."""
        first, graph = self.contents[0], self.graphs[0]
        tells = next((n for n, value in first.items() if n in _REVEAL_NODES and isinstance(value, Tensor)), None)
        tells = "num_nodes" if "num_nodes" in first else tells
        try:
            if tells == "num_nodes":
                return [int(content[tells]) for content in self.contents]
            if tells is not None and not any("num_nodes" in content for content in self.contents):
                axis = graph.__cat_dim__(tells, first[tells], self.storages[0])
                return [content[tells].size(axis) for content in self.contents]
        except (KeyError, AttributeError, TypeError):
            pass  # the graphs differ in what tells it
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Unable to accurately infer 'num_nodes'", UserWarning)
            return [int(storage.num_nodes or 0) for storage in self.storages]

    def _any(self, name: str, values: list[Any], like: Column) -> Column:
        """As `collate` does."""

        def place(n: int) -> Place:
            return Place(self.graphs[n], self.storages[n], int(self.ids[n]), self._named(name))

        try:
            gathering = gather_like(name, values[0], place(0))
            for n, value in enumerate(values):
                gathering.add(value, place(n))
            found = gathering.finished(lambda array: array)
        except Left as why:
            raise _differs(self.ids[0], f"{self._named(name)}: {why}") from None
        numbers = isinstance(found, Numbers) and isinstance(like, Objects) and like.mixed  # of one type, by chance
        if type(found) is not type(like) and not numbers:
            raise _differs(self.ids[0], f"{self._named(name)} is of another kind than in the others")
        return found

    def _unlike(self, name: str, values: list[Any], like: Ragged) -> ExperimentError:
        """Which one differs, and how."""
        before, after = like.shape
        shape = [str(size) for size in (*before, "...", *after)]
        for number, value in zip(self.ids, values):
            sparse = value.layout != torch.strided
            rows = value.unsqueeze(0) if value.dim() == 0 else value
            if sparse or str(value.dtype) != f"torch.{like.dtype}" or not _is_like(rows, like.axis, like):
                came = "a sparse matrix" if sparse else f"{str(value.dtype)[6:]} {list(value.shape)}"
                return _differs(
                    number, f"{self._named(name)} is {came}, and {like.dtype} [{', '.join(shape)}] in others"
                )
        return _differs(self.ids[0], f"{self._named(name)} is not put together as in others")

    def _named(self, name: str) -> str:
        return f"`{name}`" if self.key is None else f"`{name}` of {_type_name(self.key)}"


_NUMBERS: dict[str, type] = {"b": bool, "i": int, "f": float}


def _is_like(whole: Tensor, axis: int | None, like: Ragged) -> bool:
    return (
        axis is not None
        and axis == like.axis
        and str(whole.dtype) == f"torch.{like.dtype}"
        and (tuple(whole.shape[:axis]), tuple(whole.shape[axis + 1 :])) == like.shape
    )


def _storage(graph: Any, key: Key) -> Any:
    held = graph.__dict__
    if "_store" in held:
        return held["_store"]
    if key is None:
        return held["_global_store"]
    return held["_node_store_dict" if isinstance(key, str) else "_edge_store_dict"][key]


def _has(graph: Any, key: Key) -> bool:
    try:
        _storage(graph, key)
    except KeyError:
        return False
    return True


def _differs(number: int, how: str) -> ExperimentError:
    return ExperimentError(
        f"data.transforms: graph {number} is not like the others after them: {how}. All graphs have to have the same "
        "attributes, with the same types and widths"
    )


def _type_name(key: Key) -> str:
    if key is None:
        return "attributes of the graph"
    return f'node type "{key}"' if isinstance(key, str) else f'relation "{edge_type_name(key)}"'
