"""Graphs of a collection as PyG's objects, one each, for transforms that want them.

Cost: the attributes of all graphs of a mini-batch are copied at once, as for a batch, and each graph gets views of its
part; the objects themselves are built without PyG's constructors, which cost several times that.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.data.storage import BaseStorage, EdgeStorage, GlobalStorage, NodeStorage

from .collated import Collated, Key, Store
from .columns import Column, Mapping, Numbers, Objects, Sequence, Sparse
from .ragged import Ragged

_EMPTY: dict[type, dict[str, Any]] = {
    Data: {name: value for name, value in vars(Data()).items() if name != "_store"},
    HeteroData: {
        name: value
        for name, value in vars(HeteroData()).items()
        if name not in ("_global_store", "_node_store_dict", "_edge_store_dict")
    },
}
"""What an object of PyG has beside its storages."""


def graphs_of(collated: Collated, ids: np.ndarray, own_class: Any = None) -> list[Any]:
    """The graphs of these numbers as `Data` or `HeteroData`, each with values of its own: they may be changed.

    What each holds is what PyG's `separate` makes of an `InMemoryDataset`.

    Args:
        own_class: the user's own, whose objects they shall be; made without arguments, as there.
    """
    contents = {key: _contents(store, ids) for key, store in collated.stores.items()}
    if collated.heterogeneous:
        made: list[Any] = [
            _heterogeneous({key: each[n] for key, each in contents.items()}, own_class) for n in range(len(ids))
        ]
    else:
        made = [_homogeneous(content, own_class) for content in contents[None]]
    if own_class is not None:
        for graph in made:
            _unstack(graph)
    return made


def _unstack(graph: Any) -> None:
    """Tensors that the user's own rules stack (`__cat_dim__` is None) without the axis along which they are."""
    for store in graph.stores:
        for name, value in store._mapping.items():
            if isinstance(value, Tensor) and value.dim() and graph.__cat_dim__(name, value, store) is None:
                store._mapping[name] = value.squeeze(0)


def _contents(store: Store, ids: np.ndarray) -> list[dict[str, Any]]:
    """For each graph, attribute -> value."""
    contents: list[dict[str, Any]] = [{} for _ in range(len(ids))]
    for name, column in store.columns.items():
        for content, value in zip(contents, values_of(column, ids)):
            if value is not None:  # PyG's storages hold no None
                content[name] = value
    if store.says_num_nodes:
        assert store.num_nodes is not None
        for content, count in zip(contents, store.num_nodes[ids].tolist()):
            content["num_nodes"] = count
    return contents


def values_of(column: Column, ids: np.ndarray) -> Iterator[Any]:
    """Each graph's value."""
    if isinstance(column, Ragged):
        yield from column.parts(ids)
    elif isinstance(column, Numbers):
        yield from column.values[ids].tolist()
    elif isinstance(column, Objects):
        yield from replace(column, mixed=False).take(ids)
    elif isinstance(column, Mapping):
        parts = {name: list(values_of(inner, ids)) for name, inner in column.columns.items()}
        yield from ({name: values[n] for name, values in parts.items()} for n in range(len(ids)))
    elif isinstance(column, Sequence):
        yield from (list(parts) for parts in zip(*(values_of(inner, ids) for inner in column.columns)))
    else:
        assert isinstance(column, Sparse)
        yield from (column.take(ids[n : n + 1]) for n in range(len(ids)))


def _homogeneous(content: dict[str, Any], own_class: Any) -> Data:
    if own_class is not None:
        own: Data = own_class()
        vars(own)["_store"] = _storage(GlobalStorage, own, {**own._store._mapping, **content})
        return own
    graph = Data.__new__(Data)
    held: dict[str, Any] = vars(graph)
    held.update(_EMPTY[Data])
    held["_store"] = _storage(GlobalStorage, graph, content)
    return graph


def _heterogeneous(contents: dict[Key, dict[str, Any]], own_class: Any) -> HeteroData:
    graph = HeteroData.__new__(HeteroData) if own_class is None else own_class()
    held: dict[str, Any] = vars(graph)
    if own_class is None:
        held.update(_EMPTY[HeteroData])
    else:
        contents = {**contents, None: {**graph._global_store._mapping, **contents.get(None, {})}}
    nodes: dict[str, NodeStorage] = {}
    edges: dict[Any, EdgeStorage] = {}
    held["_global_store"] = _storage(BaseStorage, graph, contents.get(None, {}))
    held["_node_store_dict"], held["_edge_store_dict"] = nodes, edges
    for key, content in contents.items():
        if isinstance(key, str):
            nodes[key] = _storage(NodeStorage, graph, content, key)
        elif key is not None:
            edges[key] = _storage(EdgeStorage, graph, content, key)
    return graph


def _storage(kind: Any, graph: Any, content: dict[str, Any], key: Key = None) -> Any:
    storage = kind.__new__(kind)
    storage.__dict__.update(_mapping=content, _parent=weakref.ref(graph))
    if key is not None:
        storage.__dict__["_key"] = key
    return storage
