"""One attribute of a saved graph, whatever it is, as a plain dense tensor of a type that files can hold."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from ..config import ExperimentError
from .scratch import Scratch

_BLOCK_BYTES = 1 << 25
_SPLITS = {"train": "train_mask", "val": "val_mask", "valid": "val_mask", "validation": "val_mask", "test": "test_mask"}

MASK_OF_INDEX = {
    f"{split}_{ending}": mask
    for split, mask in _SPLITS.items()
    for ending in ("idx", "index", "indices", "ids", "nid", "nodes")
}
"""Names under which the ids of a split's nodes are saved -> the mask that says the same."""


def rows_of(value: Any) -> int | None:
    """How many rows an attribute has; None for what is no array of numbers."""
    if isinstance(value, Tensor):
        return value.size(0) if value.dim() > 0 else None
    if isinstance(value, np.ndarray):
        return len(value) if value.ndim > 0 and value.dtype.kind in "biufc" else None
    return int(value.size(0)) if is_sparse_tensor(value) else None


def is_sparse_tensor(value: Any) -> bool:
    """Whether it is a `SparseTensor` of torch-sparse, which is not imported for the sake of this."""
    return type(value).__name__ == "SparseTensor" and hasattr(value, "coo")


def plain(value: Any, where: str, scratch: Scratch) -> tuple[Tensor, str | None]:
    """A dense, contiguous tensor of integers, booleans or floats on the CPU, and how it was made where it was not one.

    What has to be converted is converted block by block into a file; what has not shares memory with `value`.

    Raises:
        ExperimentError: complex, quantized or nested numbers; or the disk has no room for the dense form.
    """
    if isinstance(value, np.ndarray):
        if value.dtype.kind == "c":
            raise ExperimentError(f"{where}: expected real numbers, integers or booleans, got {value.dtype}")
        native = value if value.dtype.isnative else value.astype(value.dtype.newbyteorder("="))
        native = native if all(stride >= 0 for stride in native.strides) else native.copy()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that it is not writable; nobody writes to it
            value = torch.from_numpy(native)
    if isinstance(value, Tensor):
        if value.is_nested or value.is_quantized or value.is_complex():
            kind = "a nested tensor" if value.is_nested else str(value.dtype)
            raise ExperimentError(f"{where}: expected real numbers, integers or booleans, got {kind}")
        # EdgeIndex and Index of PyG are subclasses with checks of their own
        value = value.detach().cpu()
        value = value if type(value) is Tensor else value.as_subclass(Tensor)
    if not isinstance(value, Tensor) or value.layout != torch.strided:
        with sparse_without_warnings():
            return _dense(value, where, scratch)
    dtype = _file_dtype(value.dtype)
    if dtype != value.dtype:
        blocks = (value[rows].to(dtype).numpy() for rows in _blocks(len(value), value[:1].numel() * 4))
        converted = scratch.filled(tuple(value.shape), _numpy_dtype(dtype), blocks)
        return torch.from_numpy(converted), f"{where}: {_name(value.dtype)} became {_name(dtype)}"
    if not value.is_contiguous():
        blocks = (value[rows].numpy() for rows in _blocks(len(value), value[:1].numel() * value.element_size()))
        return torch.from_numpy(scratch.filled(tuple(value.shape), _numpy_dtype(dtype), blocks)), None
    return value, None


@contextmanager
def sparse_without_warnings() -> Iterator[None]:
    """PyTorch says of sparse tensors that they are young, which nobody can do anything about."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse", UserWarning)
        yield


def _file_dtype(dtype: torch.dtype) -> torch.dtype:
    """float32 for floats that NumPy does not have (bfloat16, float8); else the same."""
    ours = (torch.float16, torch.float32, torch.float64)
    return torch.float32 if dtype.is_floating_point and dtype not in ours else dtype


def _numpy_dtype(dtype: torch.dtype) -> np.dtype:
    return torch.empty(0, dtype=dtype).numpy().dtype


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _blocks(rows: int, row_bytes: int) -> Iterator[slice]:
    step = max(_BLOCK_BYTES // max(row_bytes, 1), 1)
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def _dense(value: Any, where: str, scratch: Scratch) -> tuple[Tensor, str]:
    """A sparse matrix, row block by row block."""
    if isinstance(value, Tensor) and (value.dim() != 2 or value.dense_dim() > 0):
        return plain(value.to_dense(), where, scratch)[0], f"{where}: sparse became dense"
    matrix, dtype = _scipy(value)
    if dtype.is_complex:
        raise ExperimentError(f"{where}: expected real numbers, integers or booleans, got {dtype}")
    kept = _numpy_dtype(_file_dtype(dtype))
    shape = (int(matrix.shape[0]), int(matrix.shape[1]))
    blocks = (
        matrix[rows.start : rows.stop].toarray().astype(kept, copy=False)
        for rows in _blocks(shape[0], shape[1] * kept.itemsize)
    )
    size = shape[0] * shape[1] * kept.itemsize
    how = f"{where}: sparse became dense ({size / 1e6:,.1f} MB)"
    return torch.from_numpy(scratch.filled(shape, kept, blocks)), how


def _scipy(value: Any) -> tuple[Any, torch.dtype]:
    """The same matrix in SciPy, which has neither half precision nor bfloat16, and the type of its values."""
    if is_sparse_tensor(value):
        row, col, values = value.coo()
        values = torch.ones(row.numel()) if values is None else values
        shape = tuple(value.sizes())
        indices = (row.cpu().numpy(), col.cpu().numpy())
    elif value.layout == torch.sparse_csr:
        values, shape = value.values(), tuple(value.shape)
        indices = None
    else:
        coo = (value if value.layout == torch.sparse_coo else value.to_sparse_coo()).coalesce()
        values, shape = coo.values(), tuple(value.shape)
        indices = tuple(coo.indices().numpy())
    dtype = values.dtype
    wide = values.float() if dtype.is_floating_point and dtype not in (torch.float32, torch.float64) else values
    numbers = wide.detach().cpu().numpy()
    if indices is None:
        ends = (value.col_indices().cpu().numpy(), value.crow_indices().cpu().numpy())
        return scipy.sparse.csr_matrix((numbers, *ends), shape=shape), dtype
    return scipy.sparse.csr_matrix((numbers, indices), shape=shape), dtype


def as_mask(value: Tensor, rows: int, where: str) -> tuple[Tensor, str | None]:
    """A split as booleans with a row per node: from zeros and ones likewise, or from the ids of its nodes.

    Raises:
        ExperimentError: it is neither.
    """
    if value.dtype == torch.bool and value.dim() > 0 and value.size(0) == rows:
        return value, None
    whole = not value.dtype.is_floating_point or bool((value == value.floor()).all())
    if value.dim() > 0 and value.size(0) == rows and whole and bool(((value == 0) | (value == 1)).all()):
        return value.bool(), f"{where}: zeros and ones became a mask"
    if value.dim() != 1 or not whole or value.dtype == torch.bool:
        raise ExperimentError(
            f"{where}: expected a mask with one row for each of {rows} nodes, or the ids of nodes; got "
            f"{_name(value.dtype)} of shape {tuple(value.shape)}"
        )
    if value.numel() and (int(value.min()) < 0 or int(value.max()) >= rows):
        raise ExperimentError(
            f"{where}: expected ids of nodes, 0 to {rows - 1}; they are {int(value.min())} to {int(value.max())}"
        )
    mask = torch.zeros(rows, dtype=torch.bool)
    mask[value.long()] = True
    return mask, f"{where}: ids of nodes became a mask"
