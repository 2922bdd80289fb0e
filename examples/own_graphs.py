"""A collection of your own: a function that returns a list of graphs. Used by `examples/own_graphs.yaml`.

Here: groups of people and who knows whom. Do they all know each other through one person?
"""

from __future__ import annotations

import torch
from torch_geometric.data import Data
from torch_geometric.utils import to_undirected


def groups(count: int = 400, seed: int = 0) -> list[Data]:
    """Groups of 8 to 20 people, each with a label `y` (1: through one person) and a name of its own.

    Of many graphs, write `yield` instead: they are taken one at a time. Whatever each graph has is kept; what the model
    has not asked for stays at home. People have no features here: the experiment makes some of their degrees.
    """
    generator = torch.Generator().manual_seed(seed)
    found = []
    for number in range(count):
        size = int(torch.randint(8, 21, (), generator=generator))
        people, through_one = torch.arange(size), number % 2
        # Everybody knows the first one, or the next two in a circle; and some know somebody else besides.
        first = torch.stack([people[1:], torch.zeros(size - 1, dtype=torch.long)])
        circle = torch.stack([people.repeat(2), torch.cat([people + 1, people + 2]) % size])
        besides = torch.randint(0, size, (2, size // 2), generator=generator)
        besides = besides[:, besides[0] != besides[1]]
        edges = torch.cat([first if through_one else circle, besides], dim=1)
        edge_index = to_undirected(edges, num_nodes=size)
        found.append(Data(edge_index=edge_index, num_nodes=size, y=through_one, name=f"group {number}"))
    return found
