"""A layer of the graph transformer GPS (https://arxiv.org/abs/2205.12454), PyG's `GPSConv`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import GCNConv, GPSConv
from torch_geometric.nn.attention import PerformerAttention
from torch_geometric.nn.attention.performer import generalized_kernel, linear_attention

from .. import config
from .aggregate import nothing
from .graph_convs import convolve, norm_of


class GpsLayer(nn.Module):
    """`GPSConv`, also for graphs without nodes; a node's vector does not depend on who shares its mini-batch."""

    def __init__(self, settings: config.GpsModel, conv: Any) -> None:
        """conv: a convolution of PyG, of vectors as wide as `hidden`; None: attention only."""
        super().__init__()
        bias = settings.norm != "batch"  # see `graph_convs.Shape`
        norm, options = norm_of(settings.norm)
        self.conv: Any = GPSConv(
            settings.hidden, conv, heads=settings.heads, dropout=settings.dropout, act=settings.activation, norm=norm,
            norm_kwargs=options, attn_kwargs={"dropout": settings.attention_dropout, "bias": bias},
        )  # fmt: skip
        if settings.attention == "performer":
            self.conv.attn = _Performer(
                settings.hidden, settings.heads, attn_out_bias=bias, dropout=settings.attention_dropout
            )
        if conv is None:
            self.conv.norm1 = None  # it would stand after the convolution
        if not bias:
            self.conv.mlp[-2].bias = None

    def forward(self, x: Tensor, edge_index: Tensor, edge: Tensor | None, batch: Tensor) -> Tensor:
        """x: [N, hidden]; edge: what the convolution takes of the edges; batch: [N], ascending, whose each node is.

        Returns:
            [N, hidden]
        """
        if x.size(0) == 0:
            return self._of_nothing(x, edge_index, edge)
        # A graph without nodes would be a row of the attention with nothing to attend to: NaN, and so all gradients.
        _, batch = torch.unique_consecutive(batch, return_inverse=True)
        local = self.conv.conv
        more = {} if edge is None else {"edge_weight" if isinstance(local, GCNConv) else "edge_attr": edge}
        out = self.conv(x, edge_index, batch, **more)
        if edge_index.size(1) == 0 and local is not None:
            out = out + nothing(local, x, 1, 1) + (0.0 if edge is None else edge.sum() * 0.0)
        return out

    def _of_nothing(self, x: Tensor, edge_index: Tensor, edge: Tensor | None) -> Tensor:
        """`GPSConv` without its attention, which cannot do with no nodes at all. Its norms take their turns: where they
        are of all ranks, the others wait for them."""
        conv = self.conv
        out = x
        if conv.conv is not None:
            out = _normed(conv.norm1, convolve(conv.conv, x, edge_index, edge) + x)
        out = out + _normed(conv.norm2, x + nothing(conv.attn, x, 0, x.size(1)))
        return _normed(conv.norm3, out + conv.mlp(out))


def _normed(norm: nn.Module | None, x: Tensor) -> Tensor:
    return x if norm is None else norm(x)


class _Performer(PerformerAttention):
    """PyG's (2.8.1) lets the padding to the largest graph of the mini-batch take part in the sum of the weights; here
    it does not."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """x: [B, N, channels]; mask: bool [B, N], which nodes there are."""
        parts = (linear(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for linear in (self.q, self.k, self.v))
        q, k, v = parts
        matrix, kernel = self.fast_attn.projection_matrix, self.fast_attn.kernel
        assert isinstance(matrix, Tensor)
        q, k = generalized_kernel(q, matrix, kernel), generalized_kernel(k, matrix, kernel)
        if mask is not None:
            k = k * mask[:, None, :, None]
        out = linear_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.dropout(self.attn_out(out))
