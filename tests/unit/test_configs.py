"""The experiments in `configs/` and `examples/` are complete, and every setting in them does something."""

from __future__ import annotations

from pathlib import Path

import pytest

from disttrain.config.file import read_experiment
from disttrain.config.ignored import ignored_settings

REPOSITORY = Path(__file__).resolve().parents[2]
FILES = sorted([*REPOSITORY.glob("configs/*.yaml"), *REPOSITORY.glob("examples/*.yaml")])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_it_loads_and_nothing_in_it_is_idle(path: Path) -> None:
    experiment = read_experiment(path)
    assert ignored_settings(experiment) == []
    assert path.read_text().startswith("# "), "the first line says what it is for"


def test_each_kind_of_model_has_one() -> None:
    kinds = {read_experiment(path).model.kind for path in FILES}
    assert kinds == {"hetero_conv", "rgcn", "rgat", "hgt", "gin", "gine", "gps", "custom"}
