"""Files that have not changed are not read again; those that have are, whatever their times."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from disttrain.config import ExperimentError
from disttrain.data.known_files import digest_of_files

LONG_AGO = 1_000_000_000


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two of them, as if they had been there for long."""
    monkeypatch.setattr("disttrain.data.known_files._SECONDS", 0.0)
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
        os.utime(tmp_path / name, (LONG_AGO, LONG_AGO))
    return [str(tmp_path / name) for name in ("a", "b")]


def test_only_what_has_changed_is_read(tmp_path: Path, files: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    known = tmp_path / "known.json"
    straight = digest_of_files(files, None)
    assert digest_of_files(files, known) == straight and known.exists()
    reads: list[str] = []

    def read(digest: object, names: list[str]) -> None:
        reads.extend(names)

    with monkeypatch.context() as patch:
        patch.setattr("disttrain.data.known_files.add_files", read)
        assert digest_of_files(files, known) == straight and reads == []
    Path(files[0]).write_text("c")  # as many bytes; and the times are put back
    os.utime(files[0], (LONG_AGO, LONG_AGO))
    changed = digest_of_files(files, known)
    assert changed != straight and changed == digest_of_files(files, None)
    assert digest_of_files(files[::-1], known) == digest_of_files(files[::-1], None)


def test_what_is_remembered_may_be_damaged_or_not_writable(tmp_path: Path, files: list[str]) -> None:
    straight = digest_of_files(files, None)
    (tmp_path / "known.json").write_text("{")
    assert digest_of_files(files, tmp_path / "known.json") == straight
    assert digest_of_files(files, tmp_path / "nowhere" / "known.json") == straight
    with pytest.raises(ExperimentError, match="there is no file"):
        digest_of_files([*files, str(tmp_path / "gone")], tmp_path / "known.json")


def test_what_has_just_changed_is_not_remembered(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    digest_of_files([str(tmp_path / "a")], tmp_path / "known.json")
    assert not (tmp_path / "known.json").exists()
