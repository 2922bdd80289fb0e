"""Matrix products of groups of rows, each group by a matrix of its own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch_geometric.typing
from torch import Tensor


def grouped_matmul(x: Tensor, sizes: Sequence[int], weight: Tensor) -> Tensor:
    """Multiply each group of rows by its matrix; with several heads, each head by its own.

    Args:
        x: [N, in], or [N, heads, in]: the rows of the first group, then those of the second, ...
        sizes: rows of each of G groups, N in all; groups may be empty.
        weight: [G, in, out], or [G, heads, in, out].

    Returns:
        [N, out], or [N, heads, out]; in the precision of autocast. Groups without rows give a zero gradient. One
        product of pyg-lib where that is installed, else one per group that has rows.
    """
    device = x.device.type
    if torch.is_autocast_enabled(device):
        x, weight = x.to(torch.get_autocast_dtype(device)), weight.to(torch.get_autocast_dtype(device))
    if x.dim() == 3:
        if torch_geometric.typing.WITH_SEGMM and x.size(0):
            heads = [grouped_matmul(x[:, head], sizes, weight[:, head]) for head in range(x.size(1))]
            return torch.stack(heads, dim=1)
        return _by_group(x.transpose(0, 1), sizes, weight, dim=1).transpose(0, 1)
    if torch_geometric.typing.WITH_SEGMM and x.size(0):
        pointer = torch.tensor([0, *sizes]).cumsum(0)
        return torch_geometric.typing.pyg_lib.ops.segment_matmul(x.contiguous(), pointer, weight)  # pyright: ignore
    return _by_group(x, sizes, weight, dim=0)


def _by_group(x: Tensor, sizes: Sequence[int], weight: Tensor, dim: int) -> Tensor:
    """x: [N, in] with dim 0, or [heads, N, in] with dim 1."""
    weights = weight.unbind(0)
    parts = x.split(list(sizes), dim=dim)
    products = [part @ matrix for part, matrix in zip(parts, weights, strict=True) if part.size(dim)]
    if products:
        return torch.cat(products, dim=dim)
    return x @ weight.sum(dim=0)  # no rows at all, but connected
