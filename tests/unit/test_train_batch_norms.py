"""Batch normalisation over ranks: outputs, gradients and running statistics are those of one rank with all rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch_geometric.nn
from torch import Tensor, nn

from disttrain.train.batch_norms import SharedBatchNorm, each_by_itself, share_batch_norms
from disttrain.world import World
from tests.ranks import run_ranks

ROWS = {
    "all": (5, 3, 4),
    "some have none": (7, 0, 5),
    "one each": (1, 1, 1),
    "one in all": (0, 1, 0),
    "none": (0, 0, 0),
}


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(3, 4), torch_geometric.nn.BatchNorm(4, allow_single_element=True), nn.ReLU(), nn.Linear(4, 2)
    )


def rows(count: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(7)
    return 3 + torch.randn(count, 3, generator=generator), torch.randn(count, 2, generator=generator)


def passed(module: nn.Module, x: Tensor, wanted: Tensor) -> dict[str, Any]:
    """Two steps forward and back, summed over ranks where there are some."""
    outputs = []
    for _ in range(2):
        outputs.append(module(x))
        ((outputs[-1] - wanted) ** 2).sum().backward()
    gradients = {name: p.grad for name, p in module.named_parameters()}
    return {"out": torch.cat(outputs).detach(), "gradients": gradients, "state": module.state_dict()}


def on_ranks(world: World) -> dict[str, Any]:
    found = {}
    for name, counts in ROWS.items():
        module = model()
        share_batch_norms(module, world)
        assert isinstance(module[1], SharedBatchNorm) and list(module.state_dict()) == list(model().state_dict())
        x, wanted = (part.split(counts)[world.rank] for part in rows(sum(counts)))
        result = passed(module, x, wanted)
        for gradient in result["gradients"].values():
            dist.all_reduce(gradient)
        with each_by_itself(module):
            if world.rank == 0:  # nobody is waited for
                module(x)
        result["evaluated"] = module.eval()(rows(4)[0]).detach()
        found[name] = result
    return found


def test_three_ranks_normalise_as_one() -> None:
    ranks = run_ranks(on_ranks, 3)
    for name, counts in ROWS.items():
        alone = model()
        x, wanted = rows(sum(counts))
        expected = passed(alone, x, wanted)
        outs = [part.view(2, -1, 2) for part in (rank[name]["out"] for rank in ranks)]
        torch.testing.assert_close(torch.cat(outs, dim=1).reshape(-1, 2), expected["out"], rtol=1e-4, atol=1e-4)
        for key, gradient in expected["gradients"].items():
            torch.testing.assert_close(ranks[0][name]["gradients"][key], gradient, rtol=1e-3, atol=1e-3)
        for key in ("1.module.running_mean", "1.module.running_var"):
            states = [rank[name]["state"][key] for rank in ranks]
            torch.testing.assert_close(states[1], expected["state"][key], rtol=1e-5, atol=1e-6)
            assert torch.equal(states[1], states[2])


def test_one_rank_keeps_what_it_has() -> None:
    module = model()
    with World.start(device="cpu", timeout=30) as world:
        share_batch_norms(module, world)
    assert isinstance(module[1], torch_geometric.nn.BatchNorm)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_computes_in_the_type_of_its_input(dtype: torch.dtype) -> None:
    assert run_ranks(_type, 2, dtype) == [dtype, dtype]


def _type(world: World, dtype: torch.dtype) -> torch.dtype:
    module = nn.Sequential(torch_geometric.nn.BatchNorm(4))
    share_batch_norms(module, world)
    return module(torch.ones(3, 4, dtype=dtype)).dtype
