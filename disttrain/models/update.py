"""What happens to a node type's new vectors at the end of each layer: norm, activation, dropout, and the way around."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import BatchNorm

from .. import config

_ACTIVATIONS = {
    "relu": functional.relu,
    "elu": functional.elu,
    "leaky_relu": functional.leaky_relu,
    "gelu": functional.gelu,
}


class Update(nn.Module):
    """`dropout(activation(norm(new + own)))`, the node's own vector only with `residual`."""

    def __init__(self, settings: config.Layered, in_channels: int) -> None:
        """in_channels: width of the vectors before the layer; those after it are `settings.hidden` wide."""
        super().__init__()
        hidden = settings.hidden
        self.residual: nn.Module | None = None
        if settings.residual:
            same = in_channels == hidden
            self.residual = nn.Identity() if same else nn.Linear(in_channels, hidden, bias=False)
        self.norm: nn.Module | None = None
        if settings.norm == "layer":
            self.norm = nn.LayerNorm(hidden)
        elif settings.norm == "batch":
            # Fewer than two rows have no variance: then the running statistics serve.
            self.norm = BatchNorm(hidden, allow_single_element=True)
        self.activation = _ACTIVATIONS.get(settings.activation)
        self.dropout = settings.dropout

    def forward(self, new: Tensor, own: Tensor) -> Tensor:
        """new: [N, hidden]; own: [N, in_channels], the same nodes before the layer. Returns [N, hidden]."""
        if self.residual is not None:
            new = new + self.residual(own)
        if self.norm is not None:
            new = self.norm(new)
        if self.activation is not None:
            new = self.activation(new)
        return functional.dropout(new, self.dropout, self.training) if self.dropout > 0 else new
