"""docs/faults.md has a row for each fault that is caused on purpose, and says what is said."""

from __future__ import annotations

import re

import pytest

from ..agents import REPOSITORY
from ..fault_table import ALL

ROWS = dict(
    re.findall(r"^\| `([a-z0-9-]+)` \| (.*) \| .*\|$", (REPOSITORY / "docs" / "faults.md").read_text(), re.MULTILINE)
)


def test_every_fault_has_a_row_and_every_row_a_test() -> None:
    assert set(ROWS) == set(ALL)


@pytest.mark.parametrize("name", [name for name, says in ALL.items() if says])
def test_the_row_says_what_is_said(name: str) -> None:
    assert re.search(ALL[name][0], ROWS[name]), (ALL[name][0], ROWS[name])
