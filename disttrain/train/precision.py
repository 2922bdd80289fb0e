"""Mixed precision: autocast, the scaler of fp16 gradients, and modules that stay in fp32."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from ..config import ExperimentError

_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """How the forward pass computes (`autocast`) and how gradients are scaled (`scaler`, idle unless fp16).

    Parameters, gradients and the optimizer's state are fp32 always. The scaler skips a step where a gradient is not
    finite; as gradients are the same on all ranks, so are its decisions.

    Raises:
        ExperimentError: if the device cannot compute in it.
    """

    def __init__(self, precision: str, device: torch.device) -> None:
        if (
            precision == "bf16"
            and device.type == "cuda"
            and not torch.cuda.is_bf16_supported(including_emulation=False)
        ):
            name = torch.cuda.get_device_name(device)
            raise ExperimentError(f"train.precision is bf16, which {name} cannot do; set train.precision=fp16 or fp32")
        self.name = precision
        self._device_type = device.type
        self.scaler = torch.amp.GradScaler(device.type, enabled=precision == "fp16")

    def autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self._device_type, _TYPES.get(self.name), enabled=self.name in _TYPES)

    def state(self) -> dict[str, Any]:
        """JSON; empty unless fp16."""
        return self.scaler.state_dict()

    def restore(self, state: dict[str, Any]) -> None:
        if state:
            self.scaler.load_state_dict(state)


def to_fp32(value: Any) -> Any:
    """Low-precision tensors as fp32, also within tuples, lists and dicts; everything else as it is."""
    if isinstance(value, Tensor):
        return value.float() if value.dtype in (torch.float16, torch.bfloat16) else value
    if isinstance(value, dict):
        return {key: to_fp32(item) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(to_fp32, value))
    if isinstance(value, (tuple, list)):
        return type(value)(map(to_fp32, value))
    return value


def keep_fp32(model: nn.Module, names: Iterable[str], device: torch.device) -> None:
    """Make the named modules compute in fp32 whatever the precision: autocast is off in them, inputs come as fp32.

    A container without a forward of its own (`convs`) stands for the modules in it.

    Raises:
        ExperimentError: for a name that no module of the model has.
    """
    modules = dict(model.named_modules())
    chosen: dict[int, nn.Module] = {}
    for name in names:
        if name not in modules or name == "":
            near = difflib.get_close_matches(name, [n for n in modules if n], n=3, cutoff=0.5)
            top = [n for n, _ in model.named_children()]
            hint = f"did you mean {' or '.join(near)}?" if near else f"the model's parts are {', '.join(top)}"
            raise ExperimentError(f"train.fp32_layers: the model has no module {name!r}; {hint}")
        for module in _with_forward(modules[name]):
            chosen[id(module)] = module
    for module in chosen.values():
        _compute_in_fp32(module, device.type)


def _with_forward(module: nn.Module) -> list[nn.Module]:
    if isinstance(module, (nn.ModuleList, nn.ModuleDict)):
        return [inner for child in module.children() for inner in _with_forward(child)]
    return [module]


def _compute_in_fp32(module: nn.Module, device_type: str) -> None:
    forward = module.forward

    def in_fp32(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(device_type, enabled=False):
            return forward(*to_fp32(args), **to_fp32(kwargs))

    module.forward = in_fp32
