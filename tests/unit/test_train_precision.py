"""Mixed precision on the CPU, and modules that stay in fp32."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from disttrain.config import ExperimentError
from disttrain.train.precision import Precision, keep_fp32, to_fp32
from tests.training import RowModel

CPU = torch.device("cpu")


class Spy(nn.Module):
    """Remembers the types of what it is given and of what it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.seen: list[torch.dtype] = []

    def forward(self, x: dict[str, tuple[torch.Tensor, ...]], *, index: torch.Tensor) -> torch.Tensor:
        out = self.linear(x["a"][0])
        self.seen += [x["a"][0].dtype, index.dtype, out.dtype]
        return out


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.spies = nn.ModuleList([Spy(), Spy()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for spy in self.spies:
            x = spy({"a": (self.first(x),)}, index=torch.arange(3))
        return x


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize(("names", "kept"), [((), ()), (("spies.1",), (1,)), (("spies",), (0, 1))])
def test_named_modules_compute_in_fp32(precision: str, names: tuple[str, ...], kept: tuple[int, ...]):
    model, low = Outer(), {"bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    before = list(model.state_dict())
    keep_fp32(model, names, CPU)
    with Precision(precision, CPU).autocast():
        model(torch.randn(3, 4))
    for number, spy in enumerate(model.spies):
        expected = torch.float32 if number in kept else low
        assert spy.seen == [expected, torch.int64, expected]
    assert list(model.state_dict()) == before


def test_fp32_has_no_autocast_and_no_scaler():
    precision = Precision("fp32", CPU)
    with precision.autocast():
        assert nn.Linear(2, 2)(torch.ones(1, 2)).dtype == torch.float32
    assert precision.state() == {}


def test_the_scalers_state_survives():
    precision, other = Precision("fp16", CPU), Precision("fp16", CPU)
    parameter = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    precision.scaler.scale(parameter.sum() * float("inf")).backward()
    precision.scaler.step(optimizer)
    precision.scaler.update()
    assert parameter.item() == 1.0  # skipped
    other.restore(precision.state())
    assert other.scaler.get_scale() == precision.scaler.get_scale() == 2.0**15


def test_an_unknown_module_is_refused_with_the_nearest():
    with pytest.raises(ExperimentError, match=r"no module 'conv.0'; did you mean convs.0"):
        keep_fp32(RowModel(), ("conv.0",), CPU)
    with pytest.raises(ExperimentError, match=r"parts are inputs, convs, norm, head"):
        keep_fp32(RowModel(), ("zzzz",), CPU)


def test_casting_reaches_into_structures():
    half = torch.ones(1, dtype=torch.float16)
    cast = to_fp32({"a": [half, (half, None)], "b": torch.ones(1, dtype=torch.int64), "c": "text"})
    assert cast["a"][0].dtype == cast["a"][1][0].dtype == torch.float32
    assert isinstance(cast["a"][1], tuple)
    assert cast["b"].dtype == torch.int64
