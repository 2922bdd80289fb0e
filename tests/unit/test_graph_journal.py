"""What is taken over from a dead process, and what is not."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

from disttrain.config import Partition
from disttrain.graph import partitioner
from disttrain.graph.files import digest_file
from disttrain.graph.journal import Journal, finished_bytes
from disttrain.graph.landing import landing
from disttrain.graph.verify import verify
from tests.graphs import zoo

IDENTITY = {"fingerprint": "f", "settings": {"parts": 2}}


def finish(journal: Journal, name: str, content: bytes) -> None:
    path = journal.directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    journal.add_file(name, digest_file(path))


def filled(directory: Path, sizes: tuple[int, ...] = (10, 20, 30)) -> Journal:
    directory.mkdir(exist_ok=True)
    journal = Journal(directory, IDENTITY)
    for number, size in enumerate(sizes):
        finish(journal, f"nodes/{number}.npy", bytes(size))
    assert journal.note("cut", lambda: {"total": 0.25}) == {"total": 0.25}
    finish(journal, ".work/part.npy", b"cut")
    return journal


def names(directory: Path) -> set[str]:
    return {path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()}


def test_what_was_finished_is_there_again(tmp_path: Path):
    first = filled(tmp_path)
    again = Journal(tmp_path, IDENTITY)
    assert again.files == first.files
    assert list(again.finished) == ["nodes/0.npy", "nodes/1.npy", "nodes/2.npy"]
    assert again.note("cut", lambda: pytest.fail("was noted")) == {"total": 0.25}
    assert finished_bytes(tmp_path, IDENTITY) == 63
    assert finished_bytes(tmp_path, {**IDENTITY, "fingerprint": "g"}) == 0


def test_files_without_a_line_are_removed(tmp_path: Path):
    filled(tmp_path)
    for name in ("nodes/torn.npy", "edges/0/row.npy", ".work/stream-1/neighbours", "manifest.json.partial"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    Journal(tmp_path, IDENTITY)
    assert names(tmp_path) == {
        *(f"nodes/{number}.npy" for number in range(3)), ".work/part.npy", ".work/journal.jsonl",
    }  # fmt: skip
    assert not (tmp_path / "edges").exists()


def test_files_that_are_gone_or_of_another_size_do_not_count(tmp_path: Path):
    filled(tmp_path)
    (tmp_path / "nodes/0.npy").unlink()
    with (tmp_path / "nodes/1.npy").open("ab") as file:
        file.write(b"1")
    again = Journal(tmp_path, IDENTITY)
    assert list(again.finished) == ["nodes/2.npy"]
    assert not (tmp_path / "nodes/1.npy").exists()
    finish(again, "nodes/0.npy", b"anew")
    assert Journal(tmp_path, IDENTITY).files["nodes/0.npy"]["bytes"] == 4


def test_of_a_torn_journal_the_whole_lines_count(tmp_path: Path):
    filled(tmp_path)
    path = tmp_path / ".work/journal.jsonl"
    content = path.read_bytes()
    ends = [place + 1 for place, byte in enumerate(content) if byte == ord("\n")]
    for size in range(ends[0], len(content)):
        path.write_bytes(content[:size])
        (tmp_path / "nodes").mkdir(exist_ok=True)
        for number in range(3):
            (tmp_path / f"nodes/{number}.npy").write_bytes(bytes(10 * number + 10))
        found = Journal(tmp_path, IDENTITY)
        whole = sum(end <= size for end in ends)
        assert len(found.finished) == min(whole - 1, 3), size
        # What follows is written after the last whole line.
        finish(found, "nodes/more.npy", b"x")
        assert "nodes/more.npy" in Journal(tmp_path, IDENTITY).files


def test_a_changed_line_ends_the_journal(tmp_path: Path):
    filled(tmp_path)
    path = tmp_path / ".work/journal.jsonl"
    content = path.read_bytes()
    path.write_bytes(content.replace(b'"bytes": 20', b'"bytes": 21'))
    assert list(Journal(tmp_path, IDENTITY).finished) == ["nodes/0.npy"]


def test_of_something_else_nothing_is_kept(tmp_path: Path):
    filled(tmp_path)
    assert Journal(tmp_path, {**IDENTITY, "settings": {"parts": 3}}).files == {}
    assert names(tmp_path) == {".work/journal.jsonl"}


def dead(target: Path, number: int, sizes: tuple[int, ...]) -> Path:
    partial = target.parent / f"{target.name}.partial-elsewhere-{number}"
    filled(partial, sizes)
    (partial / ".lock").touch()
    return partial


def test_of_several_dead_the_one_that_is_furthest_is_taken_and_the_living_is_left(tmp_path: Path):
    target = tmp_path / "p"
    little, most, living = dead(target, 1, (5,)), dead(target, 2, (5, 50)), dead(target, 3, (5, 500))
    lock = os.open(living / ".lock", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with landing(target, 0, IDENTITY) as partial:
        assert partial == most
        assert living.exists()
        assert not little.exists()
    assert sorted(names(target)) == ["nodes/0.npy", "nodes/1.npy"]
    os.close(lock)
    with landing(tmp_path / "q", 0, IDENTITY) as partial:
        assert names(partial) == {".lock"}


def interrupted(target: Path, settings: Partition, fingerprint: str = "f") -> None:
    def stop(line: str) -> None:
        if line.startswith("writing edge type 3"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        partitioner.partition(zoo(), {}, {}, settings, settings.parts, target, fingerprint, stop)  # type: ignore


@pytest.mark.parametrize(
    ("change", "fingerprint"),
    [({}, "g"), ({"parts": 2}, "f"), ({"seed": 1}, "f"), ({"method": "fennel"}, "f"), ({"passes": 3}, "f")],
)
def test_other_data_and_settings_begin_anew(change: dict[str, Any], fingerprint: str, tmp_path: Path):
    first = Partition(parts=3, method="ldg")
    interrupted(tmp_path / "p", first)
    lines: list[str] = []
    other = first.model_copy(update=change)
    partitioner.partition(zoo(), {}, {}, other, other.parts, tmp_path / "p", fingerprint, lines.append)  # type: ignore
    assert lines[0].startswith("cutting")
    assert verify(tmp_path / "p") == []
    assert [path.name for path in tmp_path.iterdir()] == ["p"]


def test_another_version_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    settings = Partition(parts=3, method="ldg")
    interrupted(tmp_path / "p", settings)
    monkeypatch.setattr(partitioner, "__version__", "99")
    lines: list[str] = []
    partitioner.partition(zoo(), {}, {}, settings, 3, tmp_path / "p", "f", lines.append)
    assert lines[0].startswith("cutting")


def test_a_smaller_disk_is_enough_for_what_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Room is asked for what is not there yet."""
    import shutil
    from collections import namedtuple

    settings = Partition(parts=3, method="ldg")
    interrupted(tmp_path / "p", settings)
    (partial,) = tmp_path.iterdir()
    done = sum(path.stat().st_size for path in partial.rglob("*") if path.suffix == ".npy")
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 0, 60_000))
    assert done > 60_000
    partitioner.partition(zoo(), {}, {}, settings, 3, tmp_path / "p", "f", lambda line: None)
    assert verify(tmp_path / "p") == []
