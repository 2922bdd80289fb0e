"""From a node's vectors after each layer to its embedding."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import JumpingKnowledge

from .. import config


class Readout(nn.Module):
    """The last vector, or all of them by jumping knowledge (https://arxiv.org/abs/1806.03536); of unit length if asked.

    Only the nodes that are asked for take part: blocks compute them in every layer, others in the first ones only.
    """

    def __init__(self, settings: config.Layered) -> None:
        super().__init__()
        self.kind, self.l2_normalize = settings.jumping_knowledge, settings.l2_normalize
        self.out_channels = settings.hidden * (settings.layers if self.kind == "cat" else 1)
        if self.kind == "lstm":
            # PyG's LSTM is layers * channels / 2 wide in each direction, which has to be at least one.
            self.lstm = JumpingKnowledge("lstm", channels=settings.hidden, num_layers=max(2, settings.layers))

    def forward(self, states: Sequence[Tensor]) -> Tensor:
        """states: one [N, hidden] per layer. Returns [N, out_channels]."""
        if self.kind == "cat":
            out = torch.cat(tuple(states), dim=-1)
        elif self.kind == "max":
            out = torch.stack(tuple(states)).amax(dim=0)
        elif self.kind == "lstm":
            out = self._lstm(states)
        else:
            out = states[-1]
        return functional.normalize(out, dim=-1) if self.l2_normalize else out

    def _lstm(self, states: Sequence[Tensor]) -> Tensor:
        # Recurrent layers have no kernels for every precision and device, and none for no rows at all.
        with torch.autocast(states[0].device.type, enabled=False):
            states = [state.float() for state in states]
            if states[0].size(0):
                return self.lstm(states)
            return states[-1] + sum(parameter.sum() * 0.0 for parameter in self.lstm.parameters())
