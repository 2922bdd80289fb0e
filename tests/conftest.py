"""What all tests share: real data sets, where they are at hand, and a server that starts ranks fast."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from disttrain.world import World

from .preloaded import Preloaded

settings.register_profile("disttrain", deadline=None, derandomize=True)
settings.load_profile("disttrain")

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def real_data() -> Callable[[str], Path]:
    """`real_data(name)` is the folder of a real data set; the test is skipped where it is not at hand.

    Looked for in `$DISTTRAIN_DATA`, else in `shared/data` beside the repository.
    """

    def find(name: str) -> Path:
        root = Path(os.environ.get("DISTTRAIN_DATA") or REPOSITORY.parent / "shared" / "data")
        folder = root / name
        if not folder.is_dir():
            pytest.skip(f"the data set {name!r} is not in {root}; DISTTRAIN_DATA names another folder")
        return folder

    return find


@pytest.fixture(scope="session")
def server() -> Iterator[Preloaded]:
    """Starts torchrun agents and ranks that need not import torch again. Each process that runs tests has its own."""
    with Preloaded() as server:
        yield server


@pytest.fixture
def world() -> Iterator[World]:
    """Of one rank."""
    with World.start(device="cpu", threads=1) as world:
        yield world


@pytest.fixture
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody pulls the plug: quicker."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
