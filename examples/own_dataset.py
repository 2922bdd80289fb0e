"""A data set of your own: a function that returns a `HeteroData` (or `Data`). Used by `examples/own.yaml`.

Here: customers buy products; is a customer a dealer? Dealers buy in bulk, that is, products of few kinds.
"""

from __future__ import annotations

import torch
from torch_geometric.data import HeteroData


def customers_and_products(num_customers: int = 600, num_products: int = 120, seed: int = 0) -> HeteroData:
    """Customers with a label `y` (1: dealer), products, and who bought what, both ways round.

    The split comes from the experiment (`data.split`); masks of the data set's own would be `train_mask`, `val_mask`
    and `test_mask` of the node type, with `split: {by: masks}`.
    """
    generator = torch.Generator().manual_seed(seed)
    kind = torch.randint(0, 6, (num_products,), generator=generator)
    dealer = torch.rand(num_customers, generator=generator) < 0.4
    bought = []
    for customer in range(num_customers):
        choice = torch.arange(num_products)
        if dealer[customer]:
            choice = choice[kind == torch.randint(0, 3, (), generator=generator)]
        basket = choice[torch.randperm(len(choice), generator=generator)[:8]]
        bought.append(torch.stack([torch.full_like(basket, customer), basket]))

    data = HeteroData()
    data["customer"].x = torch.randn(num_customers, 4, generator=generator)
    data["customer"].y = dealer.long()
    data["product"].x = torch.nn.functional.one_hot(kind, 6).float()
    data["customer", "bought", "product"].edge_index = torch.cat(bought, dim=1)
    data["product", "bought_by", "customer"].edge_index = torch.cat(bought, dim=1).flip(0)
    return data
