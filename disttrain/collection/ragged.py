"""A tensor attribute of all graphs: one array, and where each graph's part of it lies."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .ranges import add_to_ranges, copy_ranges, number_ranges

_WORDS = {8: np.uint64, 4: np.uint32}


@dataclass(frozen=True)
class Ragged:
    """The parts of all graphs, concatenated along one axis as PyG's `collate` does."""

    values: np.ndarray
    """[rows of all graphs, ...], C-contiguous: the axis of the rows comes first, so that files of them grow at the end
    (`edge_index` is [num_edges, 2]). Of a type that NumPy lacks (bfloat16), its bits."""
    slices: np.ndarray
    """int64 [num_graphs + 1]: graph i has the rows `slices[i]` to `slices[i + 1] - 1`."""
    axis: int
    """That of the rows in the tensors of graphs and batches."""
    dtype: str
    """torch's name: "float32"."""
    increments: np.ndarray | None = None
    """int64 [num_graphs, ...]: by how much each graph moves those after it in a batch (PyG's `__inc__`); None: by 0."""

    @classmethod
    def of(
        cls, whole: np.ndarray, sizes: np.ndarray, axis: int, dtype: str, increments: np.ndarray | None = None
    ) -> Ragged:
        """Args:
        whole: the graphs' tensors put together along `axis`.
        sizes: int64 [num_graphs]: how many rows each has.
        """
        values = np.ascontiguousarray(np.moveaxis(whole, axis, 0))
        return cls(values, offsets_of(sizes), axis, dtype, increments)

    @property
    def shape(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Of the tensors of graphs: the axes before that of the rows, and those after it."""
        return self._before, self._after

    @cached_property
    def unmoved(self) -> Ragged:
        """The same, by the numbers that each graph has for itself."""
        return self if self.increments is None else replace(self, increments=None)

    def parts(self, ids: np.ndarray) -> tuple[Tensor, ...]:
        """Each graph's tensor, of one copy of all."""
        # Without the bookkeeping of views for autograd, which has no part in it.
        return torch.unsafe_split_with_sizes(self.unmoved.take(ids), self.sizes(ids).tolist(), self.axis)

    def take(self, ids: np.ndarray) -> Tensor:
        """The value of a batch of these graphs, in their order; as PyG's `collate` makes it.

        Cost: that of copying the rows; nothing per graph but two additions.
        """
        starts, sizes = self._ranges(ids)
        shape = (*self._before, int(sizes.sum()), *self._after)
        out = np.empty(shape, self.values.dtype)
        if out.size:
            words = out.reshape(prod(self._before), -1).view(self._words.dtype)
            copy_ranges(self._words, starts, sizes, self._width, words)
        value = torch.from_numpy(out)
        if value.dtype != self.torch_dtype:
            value = value.view(self.torch_dtype)
        return value if self.increments is None or not len(ids) else self._incremented(value, ids, sizes)

    def sizes(self, ids: np.ndarray) -> np.ndarray:
        """int64: how many rows each graph has."""
        return self._ranges(ids)[1]

    def batch_slices(self, ids: np.ndarray) -> Tensor:
        """int64 [len(ids) + 1]: where each graph's rows lie in the batch."""
        return torch.from_numpy(offsets_of(self.sizes(ids)))

    def batch_increments(self, ids: np.ndarray) -> Tensor:
        """By how much each graph's values were moved, int64 [len(ids), ...]."""
        if self.increments is None:
            return torch.zeros(len(ids), dtype=torch.int64)
        return torch.from_numpy(_running(self.increments[ids]))

    @cached_property
    def torch_dtype(self) -> torch.dtype:
        return getattr(torch, self.dtype)

    @property
    def _before(self) -> tuple[int, ...]:
        return self.values.shape[1 : 1 + self.axis]

    @property
    def _after(self) -> tuple[int, ...]:
        return self.values.shape[1 + self.axis :]

    @cached_property
    def _words(self) -> np.ndarray:
        """[words] over the same memory."""
        words = np.asarray(self.values).reshape(-1).view(_WORDS.get(self._word_bytes, np.uint8))
        words.flags.writeable = False
        return words

    @cached_property
    def _row_bytes(self) -> int:
        return prod(self._after) * self.values.itemsize

    @cached_property
    def _word_bytes(self) -> int:
        return next((size for size in _WORDS if self._row_bytes % size == 0), 1)

    @cached_property
    def _width(self) -> int:
        return self._row_bytes // self._word_bytes

    def _ranges(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        starts = self.slices[ids]
        return starts, self.slices[ids + 1] - starts

    def _incremented(self, value: Tensor, ids: np.ndarray, sizes: np.ndarray) -> Tensor:
        assert self.increments is not None
        moved = _running(self.increments[ids])
        if moved.ndim == 1 and moved[-1] == 0:
            return value
        # One number for each graph leaves the type as it is, several are a tensor that has a say in it.
        dtype = torch.result_type(value, torch.empty(moved.shape[1:], dtype=torch.int64))
        planes = _per_plane(moved, self._before, len(self.values.shape))
        if planes is None:
            parts = value.split(sizes.tolist(), dim=self.axis)
            return torch.cat([part + torch.from_numpy(by) for part, by in zip(parts, moved)], dim=self.axis)
        if value.dtype == dtype == torch.int64:
            if value.numel():
                flat = value.numpy().reshape(prod(self._before), -1)
                add_to_ranges(flat, sizes, prod(self._after), planes)
            return value
        by = torch.from_numpy(planes).repeat_interleave(torch.from_numpy(sizes), dim=1)
        by = by.reshape(*(self._before if len(planes) > 1 else [1] * self.axis), -1, *[1] * len(self._after))
        return (value.to(dtype) + by).to(dtype)


def _per_plane(moved: np.ndarray, before: tuple[int, ...], dims: int) -> np.ndarray | None:
    """The numbers to add, int64 [planes, graphs], where they are one for each plane; None: they differ within it."""
    shape = moved.shape[1:]
    planes = prod(before)
    if prod(shape) == 1 and len(shape) <= dims:
        return np.repeat(moved.reshape(1, -1), planes, axis=0)
    if len(shape) == dims and shape[: len(before)] == before and prod(shape) == planes:
        return np.ascontiguousarray(moved.reshape(len(moved), planes).T)
    return None


def _running(increments: np.ndarray) -> np.ndarray:
    """The sum of all before it, for each."""
    moved = np.zeros(increments.shape, np.int64)
    np.cumsum(increments[:-1], axis=0, out=moved[1:])
    return moved


def offsets_of(sizes: np.ndarray) -> np.ndarray:
    """int64 [len(sizes) + 1]: where each of consecutive parts begins, and where the last one ends."""
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return offsets


def numbered(sizes: np.ndarray) -> Tensor:
    """int64 [sizes.sum()]: for each row of a batch the place of its graph, PyG's `batch`."""
    return torch.from_numpy(number_ranges(sizes))


def bits_of(tensor: Tensor) -> np.ndarray:
    """A dense tensor as a NumPy array; its bits where NumPy has no such type."""
    try:
        return tensor.numpy()
    except TypeError:
        as_bits: Any = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.element_size()]
        return tensor.view(as_bits).numpy()
