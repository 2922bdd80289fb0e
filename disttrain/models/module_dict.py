"""Modules by node type or relation, whatever these are called."""

from __future__ import annotations

from typing import Final

from torch import nn
from torch_geometric.nn import module_dict

from ..config import ExperimentError


class ModuleDict(module_dict.ModuleDict):
    """PyG's, which takes relations and names with dots, but (2.8.1) fails for a type that is called `training`, and
    gives `a.b` and `a#b` one and the same module."""

    CLASS_ATTRS: Final[tuple[str, ...]] = (*module_dict.ModuleDict.CLASS_ATTRS, *vars(nn.ModuleDict()))  # pyright: ignore[reportGeneralTypeIssues]

    def __setitem__(self, key: str | tuple[str, ...], module: nn.Module) -> None:
        if key in self:
            name = self.to_internal_key(key)
            raise ExperimentError(f"{key!r} and another type are both called {name!r} in the model; rename one of them")
        super().__setitem__(key, module)
