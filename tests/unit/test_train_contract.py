"""A model of the user's own that takes a batch for PyG's `Batch` is told what it is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch_geometric.data import HeteroData

from disttrain.config import ExperimentError
from disttrain.train.replicas import _Shell


def batch_of_graphs() -> HeteroData:
    batch: Any = HeteroData()
    batch["graph"].num_nodes = 1
    batch["node"].x = torch.ones(3, 2)
    batch["node", "edge", "node"].edge_index = torch.zeros(2, 1, dtype=torch.int64)
    return batch


class Asks(nn.Module):
    """Asks the batch for something."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.linear = kind, nn.Linear(2, 2)

    def forward(self, data: Any) -> Any:
        if self.kind == "own":
            return self.no_such_layer(data)  # pyright: ignore[reportCallIssue]
        return data["node"].pos if self.kind == "pos" else self.linear(data.x)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (
            "x",
            r"the batch has no `x` of its own \(test_train_contract.py, line \d+\): it is a HeteroData, .* node types "
            r'graph, node and the relations node,edge,node: take batch\["node"\].x, '
            r"batch\['node', 'edge', 'node'\].edge_index; .*docs/collections.md, \"A model of your own\"",
        ),
        ("pos", r"has no `pos` \(test_train_contract.py, line \d+\); name it in `self.wants`"),
    ],
)
def test_what_a_batch_has_not_is_refused_with_what_it_has(kind: str, expected: str) -> None:
    with pytest.raises(ExperimentError, match=expected):
        _Shell(Asks(kind))(batch_of_graphs())


def test_other_errors_go_their_way() -> None:
    with pytest.raises(AttributeError, match="no_such_layer"):
        _Shell(Asks("own"))(batch_of_graphs())
