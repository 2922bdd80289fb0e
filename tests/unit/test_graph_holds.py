"""What a machine holds of a partition directory, and what it lacks."""

from __future__ import annotations

from pathlib import Path

import pytest

from disttrain.config import ExperimentError
from disttrain.graph.holds import HOLDS, Holds, Piece, num_bytes


def test_gaps_are_what_no_piece_covers() -> None:
    holds = Holds("m", {"a": [Piece(20, 30, ""), Piece(0, 10, ""), Piece(30, 35, "")], "b": []})
    assert holds.missing({"a": ((0, 40),)}) == {"a": ((10, 20), (35, 40))}
    assert holds.missing({"a": ((0, 10), (22, 33))}) == {}
    assert holds.missing({"a": ((5, 12), (34, 36))}) == {"a": ((10, 12), (35, 36))}
    assert holds.missing({"b": ((3, 5),), "c": ()}) == {"b": ((3, 5),), "c": ()}
    assert num_bytes({"a": ((10, 20), (35, 40)), "b": ()}) == 15


def test_files_that_are_lost_are_not_held(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    (tmp_path / "b").write_bytes(b"123")
    pieces = {name: [Piece(0, 3, "")] for name in "abcd"}
    entries = {name: {"bytes": 5} for name in "abc"}
    assert Holds("m", pieces).without_lost_files(tmp_path, entries) == Holds("m", {"a": pieces["a"]})


def test_what_was_written_is_read_and_damage_is_refused(tmp_path: Path) -> None:
    assert Holds.read(tmp_path) is None
    holds = Holds("m", {"a": [Piece(0, 10, "ff")]})
    holds.write(tmp_path)
    assert Holds.read(tmp_path) == holds
    text = (tmp_path / HOLDS).read_text()
    for damaged in (text.replace("10", "11"), text[:-9], "[]", "{}"):
        (tmp_path / HOLDS).write_text(damaged)
        with pytest.raises(ExperimentError, match="what the directory holds is not known"):
            Holds.read(tmp_path)
