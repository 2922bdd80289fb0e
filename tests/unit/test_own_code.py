"""What is shown of an error in the user's own code: their lines, and what was done with them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from disttrain.config import PythonData
from disttrain.data.graphs import GraphSource
from disttrain.own_code import OwnCodeError, traceback_of
from tests.collections_of_graphs import rings


def boom(count: int = 30) -> Iterator[Any]:
    for number, graph in enumerate(rings(count)):
        if number == 17:
            raise ValueError("bad molecule: C1CC")
        yield graph


def refuses(graph: Any) -> bool:
    return bool(1 / (graph.num_nodes - 3))


@pytest.mark.parametrize(
    ("settings", "line", "said"),
    [
        ({"function": f"{__name__}:boom"}, "ValueError: bad molecule", "asked for graph 17: ValueError: bad molecule"),
        (
            {"function": "tests.collections_of_graphs:rings", "pre_filter": f"{__name__}:refuses"},
            "ZeroDivisionError",
            "graph 0: data.pre_filter[0] tests.unit.test_own_code:refuses failed on this graph: ZeroDivisionError",
        ),
    ],
)
def test_one_traceback_that_begins_in_the_users_code(settings: dict[str, Any], line: str, said: str) -> None:
    source = GraphSource(PythonData.model_validate({"source": "python", **settings}))
    with pytest.raises(OwnCodeError) as failed:
        list(source.graphs())
    shown = traceback_of(failed.value).splitlines()
    assert shown[0] == "Traceback (most recent call last):" and shown.count(shown[0]) == 1
    assert "test_own_code.py" in shown[1] and not [row for row in shown if "disttrain/data/" in row]
    assert [row for row in shown[:-1] if row.startswith(line)]
    assert shown[-1].startswith("RuntimeError: ") and said in shown[-1]


def test_other_errors_are_shown_whole() -> None:
    with pytest.raises(ValueError) as failed:
        list(boom())
    assert traceback_of(failed.value).splitlines()[-1] == "ValueError: bad molecule: C1CC"
    assert traceback_of(OwnCodeError("alone")).endswith("OwnCodeError: alone")
