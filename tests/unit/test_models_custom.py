"""A user's own module and data set: the example builds, learns, and what does not fit is refused."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from disttrain import config
from disttrain.config import ExperimentError
from disttrain.models import build_model

from .small_batches import batch_of, random_graph, schema_of
from .test_models_hetero_conv import check_gradients, empty_of_edges

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setattr(sys, "path", [str(REPOSITORY), *sys.path])


def build(module: str, data: Any, target: str, **args: Any) -> nn.Module:
    model = config.CustomModel(kind="custom", module=module, args=args)
    return build_model(model, schema_of(data), target, 2, lambda node_type, name: None)


def test_the_example_builds_and_every_parameter_gets_a_gradient() -> None:
    from examples.own_dataset import customers_and_products

    data = customers_and_products(num_customers=60, num_products=30)
    model = build("examples.own_model:TypeSage", data, "customer", width=8)
    batch = batch_of(data, "customer", [3, 4, 5], layers=2, fanout=4)
    for part in (batch, empty_of_edges(batch), batch_of(data, "customer", [], layers=2)):
        out = model(part)
        assert out.shape == (part["customer"].batch_size, 2)
        check_gradients(model, out.sum())


class Plain(nn.Module):
    def __init__(self, schema: Any, target: str, out_channels: int) -> None:
        super().__init__()


def not_a_module(schema: Any, target: str, out_channels: int) -> str:
    return "no"


def test_a_module_without_wants_gets_all_features() -> None:
    data = random_graph(edge_attr=True)
    data["author"].x_cat = torch.zeros(20, 1, dtype=torch.int64)
    wants = build(f"{__name__}:Plain", data, "paper").wants
    assert not isinstance(wants, (torch.Tensor, nn.Module))
    assert wants.nodes == {"paper": ("x",), "author": ("x", "x_cat"), "venue": (), "island": ("x",)}
    assert set(wants.edges) == set(data.edge_types)
    assert not wants.degrees


@pytest.mark.parametrize(
    ("module", "args", "message"),
    [
        (f"{__name__}:Plain", {"width": 3}, "unexpected keyword argument 'width'"),
        (f"{__name__}:not_a_module", {}, "got str"),
        (f"{__name__}:Plainn", {}, 'did you mean "Plain"'),
    ],
)
def test_what_does_not_fit_is_refused(module: str, args: dict[str, Any], message: str) -> None:
    with pytest.raises(ExperimentError, match=message):
        build(module, random_graph(), "paper", **args)
