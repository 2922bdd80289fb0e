"""The programs that docs/collections.md shows are run: a set of OGB (laid out as it is downloaded), a list in a file,
and a model of one's own."""

from __future__ import annotations

import gzip
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from disttrain import cli
from tests.collections_of_graphs import rings

from ..agents import REPOSITORY


def section(name: str) -> str:
    text = (REPOSITORY / "docs" / "collections.md").read_text(encoding="utf-8")
    return dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))[name]


def blocks(name: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", section(name), re.DOTALL)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the page's programs in `my_project`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for name in [name for name in sys.modules if name.split(".")[0] == "my_project"]:
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / "my_project").mkdir()
    (tmp_path / "my_project" / "sets.py").write_text(blocks("Sets of OGB, and lists in files", "python")[0])
    (tmp_path / "my_project" / "models.py").write_text(blocks("A model of your own", "python")[0])
    return tmp_path


def train(data: dict[str, Any], model: dict[str, Any]) -> None:
    settings = {
        "name": "shown", "data": data, "task": {"kind": "graph_classification", "metrics": ["accuracy"]},
        "model": model, "train": {"epochs": 1, "threads": 1, "device": "cpu"},
    }  # fmt: skip
    Path("shown.yaml").write_text(yaml.safe_dump(settings))
    assert cli.run(["shown.yaml"]) == 0


def test_a_list_in_a_file_and_a_model_of_ones_own(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save(rings(30), "molecules.pt")
    (model,) = blocks("A model of your own", "yaml")
    split = {"by": "ratio", "train": 0.6, "val": 0.4, "test": 0.0}
    source = {"function": "my_project.sets:of_file", "args": {"path": "molecules.pt"}, "reads": ["molecules.pt"]}
    train({"source": "python", **source, "split": split}, yaml.safe_load(model)["model"])
    said = capsys.readouterr().out
    assert "25 of 30 graphs have a label (5 have none, and are in no split): 2 classes" in said
    assert re.search(r"\d+ graphs/s in training", said) and "exchanged" not in said
    train({"source": "python", **source, "split": split}, yaml.safe_load(model)["model"])
    assert "a finished run: nothing to do" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")  # of its own code
def test_a_set_of_ogb(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("ogb.graphproppred")
    (text,) = blocks("Sets of OGB, and lists in files", "yaml")
    data = yaml.safe_load(text)["data"]
    root = project / data["args"]["root"] / data["args"]["name"].replace("-", "_")
    for folder in ("raw", "split/scaffold"):
        (root / folder).mkdir(parents=True)
    (root / "RELEASE_v1.txt").touch()
    files = {
        "raw/edge": "0,1\n1,2\n" * 8, "raw/num-node-list": "3\n" * 8, "raw/num-edge-list": "2\n" * 8,
        "raw/node-feat": "0,1\n2,1\n1,0\n" * 8, "raw/edge-feat": "0\n1\n" * 8, "raw/graph-label": "0\n1\n" * 4,
        "split/scaffold/train": "0\n1\n2\n3\n", "split/scaffold/valid": "4\n5\n", "split/scaffold/test": "7\n6\n",
    }  # fmt: skip
    for name, content in files.items():
        (root / f"{name}.csv.gz").write_bytes(gzip.compress(content.encode()))
    train(data, {"kind": "gine", "hidden": 4, "layers": 1})
    said = capsys.readouterr().out
    assert "8 of 8 graphs have a label: 2 classes; train 4, val 2, test 2" in said
