"""What is shown of an error in the user's own code: their lines, and what was done with them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from disttrain import cli, own_code
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


OWN = """\
import torch
from torch_geometric.data import Data, HeteroData


def graph():
    data = Data(x=torch.randn(20, 3), y=torch.arange(20) % 2, edge_index=torch.arange(20).repeat(2, 1))
    return data


def fails():
    return deeper()


def deeper():
    raise ValueError("bad molecule: C1CC")


def handled():
    try:
        deeper()
    except ValueError as error:
        raise KeyError("what it had caught") from error


def divides(num_nodes):
    deeper()


class Builds(torch.nn.Module):
    def __init__(self, schema, target, out_channels):
        super().__init__()
        deeper()


class Runs(torch.nn.Module):
    def __init__(self, schema, target, out_channels):
        super().__init__()
        self.linear, self.target = torch.nn.Linear(3, out_channels), target

    def forward(self, batch):
        deeper()


class Changes:
    def __init__(self):
        deeper()
"""

EXPERIMENT = """\
run_dir: run
data: {source: python, function: "own_MODULE:graph", split: {by: ratio, train: 0.5, val: 0.25, test: 0.25}}
partition: {dir: parts}
task: {kind: node_classification}
model: {kind: hetero_conv, hidden: 4}
train: {epochs: 1, threads: 1, device: cpu}
"""


@pytest.mark.parametrize(
    ("overrides", "named", "first"),
    [
        (["data.function=own_MODULE:fails"], "data.function own_MODULE:fails", "in fails"),
        (["data.function=own_MODULE:handled"], "data.function own_MODULE:handled", "in handled"),
        (
            ["data.function=own_MODULE:fails", "task.kind=graph_classification", "model={kind: gin}", "partition={}"],
            "data.function own_MODULE:fails", "in fails",
        ),
        (["model={kind: custom, module: own_MODULE:Builds}"], "model.module own_MODULE:Builds", "in __init__"),
        (["model={kind: custom, module: own_MODULE:Runs}"], "model.module own_MODULE:Runs", "in forward"),
        (
            ["data.split={by: function, function: own_MODULE:divides}"],
            "data.split.function own_MODULE:divides", "in divides",
        ),
        (["data.transforms=[own_MODULE:Changes]"], "data.transforms[0] own_MODULE:Changes", "in __init__"),
    ],
)  # fmt: skip
def test_an_error_in_what_a_setting_names_begins_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overrides: list[str], named: str, first: str
) -> None:  # fmt: skip
    shown = shown_of(tmp_path, monkeypatch, OWN, overrides, named.replace(":", "_") + first)
    assert shown.lines[0] == f"{named.replace('MODULE', shown.module)} failed:"
    if first == "in handled":  # what the user's own code has caught is theirs
        assert "ValueError: bad molecule: C1CC" in shown.lines and shown.lines[-1] == "KeyError: 'what it had caught'"
        return
    assert shown.lines[1] == "Traceback (most recent call last):" and first in shown.lines[2]
    assert shown.lines[-1] == "ValueError: bad molecule: C1CC"
    files = [line for line in shown.lines if line.startswith('  File "')]
    assert len(files) == 2 and all(f"own_{shown.module}.py" in line for line in files)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("def graph(:\n", "SyntaxError: "),
        ("1 / 0\n", "ZeroDivisionError: "),
        ("import no_such_thing\n", "ModuleNotFound"),
    ],
)
def test_so_does_one_while_their_module_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, said: str
) -> None:
    shown = shown_of(tmp_path, monkeypatch, code, [], code)
    assert shown.lines[0] == f"data.function own_{shown.module}:graph failed:"
    assert len(shown.lines) <= 6 and shown.lines[-1].startswith(said)
    assert sum(line.startswith('  File "') for line in shown.lines) == 1


class Shown(NamedTuple):
    module: str
    lines: list[str]


def shown_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, overrides: list[str], case: str) -> Shown:
    """What a run shows that fails; each case has a module of its own."""
    module = hashlib.blake2b(case.encode(), digest_size=4).hexdigest()
    (tmp_path / f"own_{module}.py").write_text(code)
    (tmp_path / "x.yaml").write_text(EXPERIMENT.replace("MODULE", module))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(own_code, "_named", {})  # this file is named by other tests, and calls what leads to the error
    with pytest.raises(Exception) as failed:
        cli.run(["x.yaml", *(override.replace("MODULE", module) for override in overrides)])
    return Shown(module, traceback_of(failed.value).splitlines())


def test_other_errors_are_shown_whole() -> None:
    with pytest.raises(ValueError) as failed:
        list(boom())
    assert traceback_of(failed.value).splitlines()[-1] == "ValueError: bad molecule: C1CC"
    assert traceback_of(OwnCodeError("alone")).endswith("OwnCodeError: alone")
