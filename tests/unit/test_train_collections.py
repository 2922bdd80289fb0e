"""The collection of an experiment: made once, found again by what it is made from, and never taken half made."""

from __future__ import annotations

import fcntl
import importlib
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from torch_geometric.datasets import TUDataset

from disttrain.collection.graphs import Graphs
from disttrain.config import Experiment, ExperimentError
from disttrain.train.collections import collection_plan, prepare_collection
from disttrain.world import World


def raw_files(root: Path, labels: str = "1\n-1\n1\n-1\n") -> None:
    """Four graphs of two nodes and two edges each, as TUDataset has them."""
    raw = root / "SMALL" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    edges = [(2 * g + a, 2 * g + b) for g in range(4) for a, b in ((1, 2), (2, 1))]
    texts = {
        "A": "".join(f"{a}, {b}\n" for a, b in edges),
        "graph_indicator": "".join(f"{g}\n{g}\n" for g in range(1, 5)),
        "graph_labels": labels,
        "node_labels": "0\n1\n" * 4,
    }
    for name, text in texts.items():
        (raw / f"SMALL_{name}.txt").write_text(text)


def experiment(root: Path, **data: Any) -> Experiment:
    split = {"by": "stratified", "train": 0.5, "val": 0, "test": 0.5}
    source = {"source": "pyg", "dataset": "TUDataset", "root": str(root), "args": {"name": "SMALL"}, "split": split}
    return Experiment.model_validate(
        {"data": {**source, **data}, "task": {"kind": "graph_classification"}, "model": {"kind": "gin"}}
    )


def opened(root: Path, **data: Any) -> Graphs:
    with World.start(device="cpu", timeout=30) as world:
        return prepare_collection(experiment(root, **data), world)


def folders(root: Path) -> list[Path]:
    return sorted((root / "collections").glob("[!.]*"))


def test_it_is_made_once_and_then_needs_no_data_set(tmp_path: Path) -> None:
    raw_files(tmp_path)
    assert collection_plan(experiment(tmp_path))[0].startswith("collection: will be made in ")
    first = opened(tmp_path)
    assert len(first.collated) == 4 and first.masks["train_mask"].sum() == 2
    shutil.rmtree(tmp_path / "SMALL" / "processed")
    again = opened(tmp_path, split={"by": "folds", "folds": 2})
    assert again.manifest["fingerprint"] == first.manifest["fingerprint"]
    assert not (tmp_path / "SMALL" / "processed").exists(), "PyG's class was not asked"
    assert len(folders(tmp_path)) == 1
    assert collection_plan(experiment(tmp_path)) == [f"collection: is in {folders(tmp_path)[0]}, 4 graphs"]


def test_other_files_transforms_or_arguments_make_another(tmp_path: Path) -> None:
    raw_files(tmp_path)
    first = opened(tmp_path)
    constant = opened(tmp_path, pre_transforms=[{"Constant": {"value": 2.0}}])
    assert constant.schema.nodes["node"].attributes["x"].shape == (3,)
    assert first.schema.nodes["node"].attributes["x"].shape == (2,)
    raw_files(tmp_path, labels="1\n1\n1\n-1\n")  # PyG would go on with what it has processed
    changed = opened(tmp_path)
    assert changed.node_attribute("graph", "y").tolist() == [1, 1, 1, 0]
    assert len(folders(tmp_path)) == 3


def test_filters_and_transforms_of_ones_own_are_known_by_what_they_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    settings: dict[str, Any] = {
        "pre_filter": {"steps_of_mine:of_class": {"wanted": 1}}, "pre_transforms": ["steps_of_mine:scale"],
        "split": {"by": "ratio", "train": 1, "val": 0, "test": 0},
    }  # fmt: skip
    labels, features = [], []
    for factor in (2, 5):
        code = (
            "def of_class(graph, wanted):\n    return int(graph.y) == wanted\n"
            f"def scale(graph):\n    graph.x = {factor} * graph.x\n    return graph\n"
        )
        Path("steps_of_mine.py").write_text(code)
        sys.modules.pop("steps_of_mine", None)
        importlib.invalidate_caches()
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        graphs = opened(tmp_path, **settings)
        labels.append(graphs.node_attribute("graph", "y").tolist())
        features.append(graphs.schema.nodes["node"].attributes["x"].high)
    assert labels == [[1, 1], [1, 1]] and features == [2.0, 5.0]
    with pytest.raises(ExperimentError, match=r"data.pre_filter\[0\] Constant: expected a function of your own"):
        opened(tmp_path, pre_filter="Constant")
    with pytest.raises(ExperimentError, match="expected true or false back, got Data"):
        opened(tmp_path, pre_filter="steps_of_mine:scale")


def test_what_another_program_has_filtered_before_it_stored_it_is_processed_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw_files(tmp_path)
    TUDataset(str(tmp_path), "SMALL", pre_filter=lambda graph: int(graph.y) == 1)
    assert len(opened(tmp_path).collated) == 4
    assert "was made with another pre_filter; processing anew" in capsys.readouterr().out


def test_transforms_at_each_use_make_no_other_collection(tmp_path: Path) -> None:
    raw_files(tmp_path)
    plain, constant = opened(tmp_path), opened(tmp_path, transforms=[{"Constant": {"value": 2.0}}])
    assert len(folders(tmp_path)) == 1
    assert [each.schema.nodes["node"].attributes["x"].shape for each in (plain, constant)] == [(2,), (3,)]


def test_what_a_killed_process_left_is_not_taken_for_whole(tmp_path: Path) -> None:
    raw_files(tmp_path)
    opened(tmp_path)
    (whole,) = folders(tmp_path)
    partial = whole.with_name(f".making-{whole.name}")
    whole.rename(partial)
    (partial / "manifest.json").unlink()
    (partial / "0000.npy").write_bytes(b"half")
    assert len(opened(tmp_path).collated) == 4
    assert folders(tmp_path) == [whole] and not partial.exists(), "and it is cleared away"


def test_what_pyg_left_half_processed_is_processed_again(tmp_path: Path) -> None:
    raw_files(tmp_path)
    code = (
        "import os, torch, sys; from pathlib import Path; from tests.unit.test_train_collections import opened\n"
        "def half(data, path):\n"
        "    Path(path).write_bytes(b'half'); os._exit(9)\n"
        "import torch_geometric.io.fs as fs; fs.torch_save = half; opened(Path(sys.argv[1]))"
    )
    killed = subprocess.run([sys.executable, "-W", "ignore", "-c", code, str(tmp_path)], timeout=300, check=False)
    assert killed.returncode == 9
    assert any(path.read_bytes() == b"half" for path in (tmp_path / "SMALL" / "processed").iterdir())
    assert len(opened(tmp_path).collated) == 4
    assert not list((tmp_path / "collections").glob(".processing*"))


def test_damage_is_refused_with_what_to_do(tmp_path: Path) -> None:
    raw_files(tmp_path)
    opened(tmp_path)
    (whole,) = folders(tmp_path)
    os.truncate(whole / "0000.npy", 8)
    with pytest.raises(
        ExperimentError, match="0000.npy has 8 bytes, .* remove the directory, and the next run makes it"
    ):
        opened(tmp_path)


def test_two_at_once_make_it_one_after_the_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw_files(tmp_path)
    (tmp_path / "collections").mkdir()
    other = os.open(tmp_path / "collections" / ".lock", os.O_CREAT | os.O_RDWR)
    fcntl.flock(other, fcntl.LOCK_EX)
    threading.Timer(1.0, os.close, [other]).start()
    assert len(opened(tmp_path).collated) == 4
    assert "another process is making a collection in" in capsys.readouterr().out


def test_a_set_without_files_is_known_by_what_it_makes(tmp_path: Path) -> None:
    """PyG's `FakeDataset` draws at random: each start has a collection of its own."""
    source = {"dataset": "FakeDataset", "args": {"num_graphs": 6, "task": "graph", "avg_num_nodes": 5}}
    first = opened(tmp_path, **source)
    assert len(first.collated) == 6 and len(folders(tmp_path)) == 1
    with pytest.raises(ExperimentError, match="Planetoid|is one graph"):
        opened(tmp_path, dataset="FakeDataset", args={"num_graphs": 1})


def test_a_folder_of_ones_own(tmp_path: Path) -> None:
    raw_files(tmp_path / "data")
    opened(tmp_path / "data", store=str(tmp_path / "mine"))
    assert len(list((tmp_path / "mine").glob("TUDataset-*"))) == 1
    assert not (tmp_path / "data" / "collections").exists()


def test_whoever_holds_the_lock_and_is_silent_is_not_waited_for(tmp_path: Path) -> None:
    raw_files(tmp_path)
    (tmp_path / "collections").mkdir()
    with open(tmp_path / "collections" / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        silent = experiment(tmp_path).model_dump(mode="json")
        silent["train"]["timeout"] = 2
        with (
            World.start(device="cpu", timeout=30) as world,
            pytest.raises(ExperimentError, match="has shown no sign of life for 2 s"),
        ):
            prepare_collection(Experiment.model_validate(silent), world)
    assert len(opened(tmp_path).collated) == 4


MADE_UP = "tests.collections_of_graphs"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"function": f"{MADE_UP}:signs"}, r"of the graphs holds nothing but -1 and 1, and a negative number stands"),
        (
            {"function": f"{MADE_UP}:some_without_label"},
            r"only some of the graphs have it \(graph 0 has none, graph 1 has\); give it to all: NaN, or -1",
        ),
        (
            {"function": f"{MADE_UP}:some_without_label", "args": {"first": False}},
            r"graph 29 has no `y`, which graph 0 has; all need the same attributes \(a label that is not known is NaN",
        ),
        (
            {"function": f"{MADE_UP}:rings", "pre_filter": f"{MADE_UP}:passes_none"},
            f"data.pre_filter: {MADE_UP}:passes_none lets none of the 30 graphs of data.function {MADE_UP}:rings pass",
        ),
        ({"function": f"{MADE_UP}:empty"}, f"data.function {MADE_UP}:empty: it has no graphs"),
    ],
)  # fmt: skip
def test_labels_and_filters_that_leave_nothing_to_learn(tmp_path: Path, settings: Any, expected: str) -> None:
    source = {"source": "python", "store": str(tmp_path), "split": {"by": "ratio", "train": 1, "val": 0, "test": 0}}
    made = {
        "data": {**source, **settings}, "task": {"kind": "graph_classification"}, "model": {"kind": "gin"}
    }  # fmt: skip
    with World.start(device="cpu", timeout=30) as world, pytest.raises(ExperimentError, match=expected):
        prepare_collection(Experiment.model_validate(made), world)
