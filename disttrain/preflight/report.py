"""All that a preflight has found out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .facts import Facts
from .findings import Finding
from .peers import Try

Tries = list[tuple[int, Try]]
"""Each with the machine that has tried."""


class Report(NamedTuple):
    """All that was found out. Of rank 0."""

    ranks: Sequence[Facts]
    tries: Tries
    found: Sequence[Finding]
    seconds: float
