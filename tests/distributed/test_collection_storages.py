"""A run is the same from each storage of its collection, bit for bit; and a collection goes to PyG and back."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import OnDiskDataset

from disttrain import cli
from disttrain.collection.collated import collate
from disttrain.collection.files import content_digest
from disttrain.collection.pyg_dataset import write_dataset
from disttrain.config import Experiment, ExperimentError
from disttrain.refusal import Leave
from disttrain.train import job
from disttrain.world import World
from examples.lay_out_data import lay_out
from tests import collections_of_graphs
from tests.agents import REPOSITORY
from tests.distributed.test_graph_tasks import losses, small
from tests.ranks import run_ranks

STORAGES: dict[str, dict[str, Any]] = {
    "mmap": {}, "memory": {}, "hybrid": {}, "ondisk": {}, "ondisk cached": {"cache": "1 MiB"}, "auto": {},
    "mmap transformed": {"transforms": ["Constant", "tests.collections_of_graphs:noise"]},
    "ondisk transformed": {"transforms": ["Constant", "tests.collections_of_graphs:noise"], "cache": "1 MiB"},
}  # fmt: skip


def train(world: World, directory: str, function: str) -> dict[str, Any]:
    found = {}
    for name, more in STORAGES.items():
        if function == "pairs" and "transformed" in name:
            continue
        model = {"model": {"kind": "custom", "module": "tests.collections_of_graphs:Pairs"}}
        experiment = small(directory, f"{function} {name}", world.size, **(model if function == "pairs" else {}))
        changes = {"function": f"tests.collections_of_graphs:{function}", "storage": name.split()[0], **more}
        data = {**experiment.data.model_dump(), **changes}
        found[name] = job.run(Experiment.model_validate({**experiment.model_dump(), "data": data}), world)
    return found


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_loss_is_the_same_bit_for_bit(tmp_path: Path, ranks: int) -> None:
    for function in ("one_by_one", "pairs")[:ranks]:
        found, *_ = run_ranks(train, ranks, str(tmp_path), function, timeout=120)
        straight = losses(tmp_path, f"{function} mmap")
        assert len(straight) > 3
        for name in found:
            curve = losses(tmp_path, f"{function} {name}")
            if "transformed" in name:
                assert curve == losses(tmp_path, f"{function} mmap transformed") != straight, name
            else:
                assert curve == straight, name
            assert found[name]["test"] == found["mmap transformed" if "transformed" in name else "mmap"]["test"]
        assert found["mmap"]["cache_hit_rate"] is None
        assert 0.3 < found["ondisk cached"]["cache_hit_rate"] < 1, "each rank keeps what it has had"


def test_to_pyg_and_back(tmp_path: Path) -> None:
    for function in ("rings", "pairs", "named"):
        collated = collate(getattr(collections_of_graphs, function)(), "here")
        write_dataset(collated, tmp_path / function)
        found = OnDiskDataset(str(tmp_path / function), log=False)
        assert len(found) == len(collated) and {path.name for path in (tmp_path / function).iterdir()} == {"processed"}
        assert content_digest(collate((found[n] for n in range(len(found))), "there")) == content_digest(collated)
        found.close()
    with pytest.raises(
        ExperimentError, match="is not empty and would be overwritten; remove it, or name another, --to"
    ):
        write_dataset(collate(collections_of_graphs.rings(), "here"), tmp_path / "rings")


def test_the_command_of_the_page(
    tmp_path: Path,
    real_data: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lay_out(real_data("tu-MUTAG"), tmp_path / "data")
    text = (REPOSITORY / "docs" / "collections.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^    python -m disttrain (convert .*)$", text, re.MULTILINE)
    (opened,) = re.findall(r'OnDiskDataset\("(.*)"\)', text)
    (tmp_path / "configs").symlink_to(REPOSITORY / "configs")
    monkeypatch.chdir(tmp_path)
    assert cli.run([*shlex.split(command), f"data.root={tmp_path}/data/tu"]) == 0
    assert f"188 graphs in {opened}" in capsys.readouterr().out
    found: Any = OnDiskDataset(opened, log=False)
    assert len(found) == 188 and found[0].x.shape[1] == 7
    labels = torch.cat([graph.y for graph in found.multi_get(range(188))])
    assert np.bincount(labels.numpy()).tolist() == [63, 125]
    found.close()
    with pytest.raises(Leave):
        cli.run(["convert", str(REPOSITORY / "examples" / "own.yaml"), "--to", str(tmp_path / "no")])
    assert "one graph is no collection" in capsys.readouterr().err
