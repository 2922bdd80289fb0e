"""From the vectors of a graph's nodes to the graph's: the aggregations of `aggregate.py`, a graph as destination."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch_geometric.data.storage import NodeStorage

from .. import config
from ..config import ExperimentError
from .aggregate import Aggregate
from .neighbours import Edges


class Pooling(nn.Module):
    """[N, channels] -> [num_graphs, out_channels]; a graph without nodes gets zeros. In fp32 whatever the precision."""

    def __init__(self, pooling: config.Pooling, channels: int, nodes_per_graph: float) -> None:
        """nodes_per_graph: the mean over all graphs, for `degree_scaler`.

        Raises:
            ExperimentError: its arguments do not fit the width.
        """
        super().__init__()
        try:
            self.aggregate = Aggregate(config.pools(pooling), channels, mean_degree=nodes_per_graph)
        except ExperimentError as error:
            raise ExperimentError(f"model.pooling: {error}") from None
        self.out_channels = self.aggregate.out_channels

    def forward(self, x: Tensor, nodes: NodeStorage) -> Tensor:
        """nodes: of the batch; `batch` (ascending) and `ptr` say whose each node is."""
        with torch.autocast(x.device.type, enabled=False):
            every = torch.arange(x.size(0), device=x.device)
            return self.aggregate(x.float(), Edges(every, nodes.batch, nodes.ptr))
