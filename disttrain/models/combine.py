"""Combination across relations: the vectors that several relations send to one node type become one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn


class Combine(nn.Module):
    """Combine the messages of R relations: [N, hidden] each -> [N, hidden].

    `sum`, `mean` and `max` are element-wise over all relations that lead to the type; a relation without an edge at a
    node counts there with what its convolution gives for no neighbours (its bias), as in PyG's `HeteroConv`.
    `attention` weighs relations per node by `softmax_r(q . tanh(W m_r + b))`, the semantic attention of HAN
    (https://arxiv.org/abs/1903.07293) but for each node by itself, so that a node's vector does not depend on which
    others share its mini-batch; there, relations without an edge at a node are left out. `cat` puts them side by side
    and multiplies by a matrix.
    """

    def __init__(self, kind: Literal["sum", "mean", "max", "attention", "cat"], hidden: int, relations: int) -> None:
        super().__init__()
        self.kind = kind
        if kind == "attention":
            self.score = nn.Sequential(nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 1, bias=False))
        elif kind == "cat":
            self.linear = nn.Linear(relations * hidden, hidden)

    def forward(self, messages: Sequence[Tensor], pointers: Sequence[Tensor]) -> Tensor:
        """Args:
        messages: one [N, hidden] per relation, at least one.
        pointers: one [N + 1] per relation: where each node's edges begin and end.
        """
        if self.kind == "attention":
            return self._attention(torch.stack(tuple(messages), dim=1), pointers)
        if self.kind == "cat":
            return self.linear(torch.cat(tuple(messages), dim=-1))
        if self.kind == "max":
            return messages[0] if len(messages) == 1 else torch.stack(tuple(messages)).amax(dim=0)
        total = messages[0]
        for message in messages[1:]:
            total = total + message
        return total / len(messages) if self.kind == "mean" else total

    def _attention(self, messages: Tensor, pointers: Sequence[Tensor]) -> Tensor:
        present = torch.stack([pointer[1:] > pointer[:-1] for pointer in pointers], dim=1)
        score = self.score(messages).squeeze(-1).float()
        # The lowest finite number and not -inf: a node that no relation reaches would give 0/0.
        score = score.masked_fill(~present, torch.finfo(torch.float32).min)
        weight = torch.softmax(score, dim=1) * present
        return (weight.unsqueeze(-1).to(messages.dtype) * messages).sum(dim=1)
