"""Checkpoints: whole ones come back exactly, torn ones are never read."""

from __future__ import annotations

import errno
import multiprocessing
import os
import pickle
import shutil
import signal
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING, Metadata

from disttrain.config import ExperimentError
from disttrain.stop import Stopped, StopRequest
from disttrain.train import checkpoint as checkpoint_module
from disttrain.train.checkpoint import CheckpointDirectory, TornCheckpoint, _SafeReader, newest_checkpoint
from disttrain.world import World

TENSORS = {
    "model/a": torch.randn(3, 4),
    "model/empty": torch.empty(0, 5),
    "model/count": torch.tensor(7),
    "model/half": torch.randn(2).half(),
    "model/flag": torch.tensor([True, False]),
    "optimizer/a.b/step": torch.tensor(3.0),
}


@pytest.fixture
def checkpoints(tmp_path: Path) -> CheckpointDirectory:
    directory = CheckpointDirectory(tmp_path / "run" / "checkpoints")
    directory.prepare()
    return directory


def test_what_is_saved_comes_back(checkpoints: CheckpointDirectory):
    name = checkpoints.save(12, TENSORS, {"epoch": 1, "loss": 0.1 + 0.2, "best": float("inf")})
    assert checkpoints.names() == [name] == ["step-0000000012"]
    assert checkpoints.read_state(name) == {"epoch": 1, "loss": 0.1 + 0.2, "best": float("inf")}
    found = checkpoints.read_tensors(name)
    assert found.keys() == TENSORS.keys()
    for key, tensor in TENSORS.items():
        assert found[key].dtype == tensor.dtype
        assert torch.equal(found[key], tensor)


def test_a_stop_while_torch_reads_or_writes_ends_as_a_stop(
    checkpoints: CheckpointDirectory, monkeypatch: pytest.MonkeyPatch
):
    name = checkpoints.save(12, TENSORS, {})
    read, write = _SafeReader.read_data, FileSystemWriter.write_data

    def interrupted(work: Callable[..., Any]) -> Callable[..., Any]:
        def with_signal(*args: Any, **kwargs: Any) -> Any:
            os.kill(os.getpid(), signal.SIGTERM)
            return work(*args, **kwargs)

        return with_signal

    monkeypatch.setattr(_SafeReader, "read_data", interrupted(read))
    with pytest.raises(Stopped, match="stopped by SIGTERM"), StopRequest(at_once=True):
        checkpoints.read_tensors(name)
    monkeypatch.setattr(FileSystemWriter, "write_data", interrupted(write))
    with pytest.raises(Stopped, match="stopped by SIGTERM"), StopRequest(at_once=True):
        checkpoints.save(13, TENSORS, {})
    assert [entry.name for entry in checkpoints.directory.iterdir()] == [name], "and nothing is left behind"


def damage(path: Path, how: str) -> None:
    files = {"data": next(path.glob("*.distcp")), "metadata": path / ".metadata", "manifest": path / "manifest.json"}
    kind, _, name = how.partition(" ")
    file = files[name]
    if kind == "flip":
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    elif kind == "cut":
        file.write_bytes(file.read_bytes()[:-5])
    else:
        file.unlink()


@pytest.mark.parametrize(
    "how", [f"{kind} {name}" for kind in ("flip", "cut", "remove") for name in ("data", "metadata", "manifest")]
)
def test_a_damaged_one_is_passed_over_for_the_one_before(
    checkpoints: CheckpointDirectory, how: str, caplog: pytest.LogCaptureFixture
):
    checkpoints.save(1, TENSORS, {"step": 1})
    checkpoints.save(2, TENSORS, {"step": 2})
    damage(checkpoints.directory / "step-0000000002", how)
    assert checkpoints.newest_whole() == ("step-0000000001", {"step": 1})
    if how != "remove manifest":  # without one it is no checkpoint at all
        assert "step-0000000002" in caplog.text


def test_a_torn_one_is_replaced(checkpoints: CheckpointDirectory):
    name = checkpoints.save(1, TENSORS, {"try": 1})
    damage(checkpoints.directory / name, "cut data")
    checkpoints.save(1, TENSORS, {"try": 2})
    assert checkpoints.newest_whole() == (name, {"try": 2})


def test_one_of_the_same_name_is_replaced_without_a_moment_with_neither(
    checkpoints: CheckpointDirectory, monkeypatch: pytest.MonkeyPatch
):
    name = checkpoints.save(1, TENSORS, {"which": "first"})
    there: list[list[str]] = []

    def watched(path: Path, **_: object) -> None:
        there.append(checkpoints.names())
        remove(path, ignore_errors=True)

    remove = shutil.rmtree
    monkeypatch.setattr(shutil, "rmtree", watched)
    checkpoints.save(1, TENSORS, {"which": "second"})
    assert there == [[name], [name]]
    assert checkpoints.read_state(name) == {"which": "second"}
    assert [entry.name for entry in checkpoints.directory.iterdir()] == [name]


def test_where_names_cannot_be_exchanged_the_replaced_one_comes_back(
    checkpoints: CheckpointDirectory, monkeypatch: pytest.MonkeyPatch
):
    """NFS cannot; a process may be killed between the two renamings."""
    name = checkpoints.save(1, TENSORS, {"which": "first"})
    monkeypatch.setattr(checkpoint_module, "exchange", lambda *_: False)
    checkpoints.save(1, TENSORS, {"which": "second"})
    assert checkpoints.read_state(name) == {"which": "second"}
    os.replace(checkpoints.directory / name, checkpoints.directory / f".{name}.4711.replaced")
    checkpoints.prepare()
    assert checkpoints.read_state(name) == {"which": "second"}
    assert [entry.name for entry in checkpoints.directory.iterdir()] == [name]


def test_a_writer_that_dies_leaves_nothing_that_is_read(checkpoints: CheckpointDirectory, monkeypatch):
    checkpoints.save(1, TENSORS, {})
    target = checkpoints.directory / ".step-0000000002.123"
    shutil.copytree(checkpoints.directory / "step-0000000001", target)
    (target / "manifest.json").unlink()
    assert checkpoints.names() == ["step-0000000001"]
    checkpoints.prepare()
    assert not target.exists()


def write_and_die(directory: str, where: str) -> None:
    """A writer that is killed: with the tensors half written, before the manifest, or before it is put in place."""
    checkpoints = CheckpointDirectory(Path(directory))
    checkpoints.save(1, TENSORS, {"step": 1})

    def die(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    if where == "tensors":
        torch.save = die  # pyright: ignore[reportAttributeAccessIssue]
    elif where == "manifest":
        checkpoint_module._fingerprint = die  # pyright: ignore[reportAttributeAccessIssue]
    else:
        os.replace = die  # pyright: ignore[reportAttributeAccessIssue]
    checkpoints.save(2, TENSORS, {"step": 2})


@pytest.mark.parametrize("where", ["tensors", "manifest", "replace"])
def test_a_writer_that_is_killed_leaves_the_one_before(tmp_path: Path, where: str):
    writer = multiprocessing.get_context("spawn").Process(target=write_and_die, args=(str(tmp_path), where))
    writer.start()
    writer.join(60)
    assert writer.exitcode == -signal.SIGKILL
    checkpoints = CheckpointDirectory(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    assert checkpoints.newest_whole() == ("step-0000000001", {"step": 1})
    checkpoints.prepare()
    assert [entry.name for entry in tmp_path.iterdir()] == ["step-0000000001"]


def test_the_newest_and_the_best_stay(checkpoints: CheckpointDirectory):
    for step in (1, 2, 3, 4, 5):
        checkpoints.save(step, {}, {})
    checkpoints.prune(keep=2, best=["step-0000000002"])
    assert checkpoints.names() == ["step-0000000005", "step-0000000004", "step-0000000002"]


def test_metadata_cannot_run_anything(checkpoints: CheckpointDirectory, tmp_path: Path):
    name = checkpoints.save(1, TENSORS, {})

    class Evil:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "touched",))

    (checkpoints.directory / name / ".metadata").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(TornCheckpoint, match="must not name"):
        checkpoints.read_tensors(name)
    assert not (tmp_path / "touched").exists()


def test_metadata_as_an_older_python_writes_it(checkpoints: CheckpointDirectory, monkeypatch: pytest.MonkeyPatch):
    """3.11.0 to 3.11.3 pickle the members of an Enum as attributes of it; no other attribute can be had that way."""
    monkeypatch.setattr(Enum, "__reduce_ex__", lambda self, protocol: (getattr, (type(self), self._name_)))
    name = checkpoints.save(1, TENSORS, {})
    file = checkpoints.directory / name / ".metadata"
    assert b"getattr" in file.read_bytes()
    read = checkpoints.read_tensors(name)
    assert read.keys() == TENSORS.keys()
    assert all(torch.equal(read[key], TENSORS[key]) for key in TENSORS)
    for what in ((_MEM_FORMAT_ENCODING, "__init__"), (_MEM_FORMAT_ENCODING, "mro"), (Metadata, "__init__")):
        file.write_bytes(pickle.dumps(Attribute(*what)))
        with pytest.raises(TornCheckpoint, match="must not name an attribute"):
            checkpoints.read_tensors(name)


class Attribute:
    def __init__(self, *what: object) -> None:
        self.what = what

    def __reduce__(self):
        return getattr, self.what


def test_a_full_disk_is_said(checkpoints: CheckpointDirectory, monkeypatch: pytest.MonkeyPatch):
    checkpoints.save(1, TENSORS, {})

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint_module, "_write_manifest", full)
    with pytest.raises(ExperimentError, match=r"disk is full .* MiB free"):
        checkpoints.save(2, TENSORS, {})
    monkeypatch.setattr("torch.distributed.checkpoint.filesystem.os.fsync", full)
    with pytest.raises(ExperimentError, match="disk is full"):
        checkpoints.save(2, TENSORS, {})
    monkeypatch.undo()
    assert [entry.name for entry in checkpoints.directory.iterdir()] == ["step-0000000001"]


def test_that_none_is_whole_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    checkpoints = CheckpointDirectory(tmp_path)
    assert checkpoints.newest_whole() is None
    assert not caplog.text
    name = checkpoints.save(1, {"w": torch.zeros(2)}, {})
    (tmp_path / name / ".metadata").unlink()
    assert checkpoints.newest_whole() is None
    assert "lacks its file .metadata" in caplog.text
    with (
        World.start(device="cpu", threads=1) as world,
        pytest.raises(ExperimentError, match=r"none of the checkpoints in .* can be read .* --fresh"),
    ):
        newest_checkpoint(world, checkpoints)
