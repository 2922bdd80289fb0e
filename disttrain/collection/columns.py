"""What the graphs of a collection have under one name, and what a batch of them has there.

The kinds follow PyG's `collate`: tensors (`Ragged`), sparse matrices, Python numbers, mappings and lists of any of
these, and everything else, of which a batch has a list.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from .ragged import Ragged, numbered, offsets_of


class Column(Protocol):
    """One attribute of all graphs."""

    def take(self, ids: np.ndarray) -> Any:
        """The attribute of a batch of these graphs, in their order."""
        ...

    def batch_slices(self, ids: np.ndarray) -> Any:
        """Where each graph's part of that lies, as PyG's `separate` wants it."""
        ...

    def batch_increments(self, ids: np.ndarray) -> Any:
        """What was added to each graph's part, likewise; None: nothing ever is."""
        ...


@dataclass(frozen=True)
class Numbers:
    """A Python number of each graph; a batch has a tensor of them."""

    values: np.ndarray
    """bool, int64 or float64 [num_graphs]."""
    increments: np.ndarray | None = None
    """int64 [num_graphs]; see `Ragged.increments`."""

    def take(self, ids: np.ndarray) -> Tensor:
        value = torch.from_numpy(self.values[ids])
        if value.dtype == torch.float64:
            value = value.to(torch.get_default_dtype())
        moved = self.batch_increments(ids)
        return value.add_(moved) if len(ids) and int(moved[-1]) != 0 else value

    def batch_slices(self, ids: np.ndarray) -> Tensor:
        return torch.arange(len(ids) + 1)

    def batch_increments(self, ids: np.ndarray) -> Tensor:
        increments = np.zeros(len(ids), np.int64) if self.increments is None else self.increments[ids]
        return torch.from_numpy(offsets_of(increments)[:-1])


@dataclass(frozen=True)
class Objects:
    """Anything else that JSON can say: text, null, lists and mappings of such; a batch has a list of them."""

    text: np.ndarray
    """uint8: the JSON of all graphs, one after the other."""
    slices: np.ndarray
    """int64 [num_graphs + 1]"""
    mixed: bool = False
    """They are numbers, of different types: a batch has a tensor, whose type depends on which ones it has."""

    def take(self, ids: np.ndarray) -> Any:
        values = [json.loads(self.text[self.slices[i] : self.slices[i + 1]].tobytes()) for i in ids]
        return torch.tensor(values) if self.mixed else values

    def batch_slices(self, ids: np.ndarray) -> Tensor:
        return torch.arange(len(ids) + 1)

    def batch_increments(self, ids: np.ndarray) -> Any:
        return torch.zeros(len(ids), dtype=torch.int64) if self.mixed else None


@dataclass(frozen=True)
class Sparse:
    """A sparse matrix of each graph, COO or CSR; a batch has one, of the graphs' below one another, or along the
    diagonal (adjacency matrices)."""

    layout: str
    """coo or csr"""
    diagonal: bool
    rows: Ragged
    """int64: coo: the row of each value; csr: how many values each row has."""
    columns: Ragged
    """int64: the column of each value."""
    values: Ragged
    shapes: np.ndarray
    """int64 [num_graphs, 2]"""
    coalesced: np.ndarray
    """bool [num_graphs]; of coo."""

    def take(self, ids: np.ndarray) -> Tensor:
        rows, columns, values = self.rows.take(ids), self.columns.take(ids), self.values.take(ids)
        shapes = self.shapes[ids]
        place = numbered(self.columns.sizes(ids))
        above, left = (torch.from_numpy(offsets_of(shapes[:, axis])[:-1]) for axis in (0, 1))
        width = shapes[:, 1].sum() if self.diagonal else shapes[:, 1].max(initial=0)
        size = (int(shapes[:, 0].sum()), int(width), *values.shape[1:])
        if self.diagonal:
            columns = columns + left[place]
        if self.layout == "csr":
            pointer = torch.from_numpy(offsets_of(rows.numpy()))
            return torch.sparse_csr_tensor(pointer, columns, values, size, check_invariants=False)
        coalesced = True if self.coalesced[ids].all() else None
        index = torch.stack([rows + above[place], columns])
        return torch.sparse_coo_tensor(index, values, size, is_coalesced=coalesced, check_invariants=False)

    def batch_slices(self, ids: np.ndarray) -> Tensor:
        axes = [0, 1] if self.diagonal else [0]
        return torch.from_numpy(np.stack([offsets_of(self.shapes[ids, axis]) for axis in axes], axis=1))

    def batch_increments(self, ids: np.ndarray) -> None:
        return None


@dataclass(frozen=True)
class Mapping:
    """A mapping of each graph, all with the same keys."""

    columns: dict[str, Column]

    def take(self, ids: np.ndarray) -> dict[str, Any]:
        return {name: column.take(ids) for name, column in self.columns.items()}

    def batch_slices(self, ids: np.ndarray) -> dict[str, Any]:
        return {name: column.batch_slices(ids) for name, column in self.columns.items()}

    def batch_increments(self, ids: np.ndarray) -> dict[str, Any]:
        return {name: column.batch_increments(ids) for name, column in self.columns.items()}


@dataclass(frozen=True)
class Sequence:
    """A list of tensors of each graph, all of the same length."""

    columns: list[Column]

    def take(self, ids: np.ndarray) -> list[Any]:
        return [column.take(ids) for column in self.columns]

    def batch_slices(self, ids: np.ndarray) -> list[Any]:
        return [column.batch_slices(ids) for column in self.columns]

    def batch_increments(self, ids: np.ndarray) -> list[Any]:
        return [column.batch_increments(ids) for column in self.columns]


def batch_and_ptr(column: Column, ids: np.ndarray) -> tuple[Any, Any]:
    """Of each part of a batch's attribute the place of its graph, and where each graph's parts begin: what PyG's
    `follow_batch` adds. None, None of what has no such parts."""
    if isinstance(column, Ragged):
        sizes = column.sizes(ids)
        return numbered(sizes), torch.from_numpy(offsets_of(sizes))
    if isinstance(column, Mapping):
        pairs = {name: batch_and_ptr(inner, ids) for name, inner in column.columns.items()}
        return {name: batch for name, (batch, _) in pairs.items()}, {name: ptr for name, (_, ptr) in pairs.items()}
    if isinstance(column, Sequence):
        both = [batch_and_ptr(inner, ids) for inner in column.columns]
        return [batch for batch, _ in both], [ptr for _, ptr in both]
    if isinstance(column, Sparse):
        return None, None
    ones = np.ones(len(ids), np.int64)
    return numbered(ones), torch.from_numpy(offsets_of(ones))
