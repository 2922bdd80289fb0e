"""Types are called what their owners like."""

from __future__ import annotations

import pytest
from torch import nn

from disttrain.config import ExperimentError
from disttrain.models.module_dict import ModuleDict


def test_any_name_will_do() -> None:
    modules = ModuleDict()
    keys = ["training", "_modules", "forward", "type", "a.b", "a b", "<x>", ("a", "to", "b"), ("a", "a.b", "training")]
    for key in keys:
        modules[key] = nn.Identity()
    assert list(modules.keys()) == keys
    assert all(key in modules for key in keys)


def test_names_that_would_share_a_module_are_refused() -> None:
    modules = ModuleDict()
    modules["a.b"] = nn.Identity()
    with pytest.raises(ExperimentError, match="'a#b' and another type are both called 'a#b'"):
        modules["a#b"] = nn.Identity()
