"""Lists of nodes: ids twice, ids that there are not, text, nothing at all; of data with keys and without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from disttrain.config import ExperimentError
from disttrain.predict.ids import rows_of_ids
from disttrain.predict.keys import NodeKeys

ROWS = NodeKeys(("id",), None, node_type="user", num_nodes=7)
NAMES = ("007", "7", " 7", "a,b", 'say "hi"', "ü\u2028ü", "x\x85y")


@pytest.fixture
def names(tmp_path: Path) -> NodeKeys:
    pq.write_table(pa.table({"key": NAMES}), tmp_path / "keys.parquet")
    return NodeKeys(("name",), tmp_path / "keys.parquet", node_type="user")


def ids_file(tmp_path: Path, given: Any) -> Path:
    """Text, a table, or none at all."""
    if isinstance(given, pa.Table):
        path = tmp_path / "ids.parquet"
        pq.write_table(given, path)
    elif isinstance(given, str):
        path = tmp_path / ("ids.csv" if given.startswith(("id", "name")) else "ids.txt")
        path.write_bytes(given.encode())
    else:
        path = tmp_path / "nowhere.txt"
    return path


def rows_of(tmp_path: Path, keys: NodeKeys, given: Any) -> list[int]:
    return rows_of_ids(ids_file(tmp_path, given), keys).tolist()


@pytest.mark.parametrize(
    ("given", "rows"),
    [
        ("6\n0\n3\n", [0, 3, 6]),
        ("\ufeff6\r\n\r\n 0 \r\n3", [0, 3, 6]),
        ("id,other\n6,\n0,7\n", [0, 6]),
        (pa.table({"anything": [6.0, 0.0]}), [0, 6]),
        (pa.table({"id": ["6", "+0"], "other": [1, 1]}), [0, 6]),
    ],
)
def test_rows_of_data_without_keys(tmp_path: Path, given: Any, rows: list[int]) -> None:
    assert rows_of(tmp_path, ROWS, given) == rows


def test_text_keys_are_found_as_they_are(tmp_path: Path, names: NodeKeys) -> None:
    whole = list(range(len(NAMES)))
    assert rows_of(tmp_path, names, "\n".join(reversed(NAMES))) == whole
    assert rows_of(tmp_path, names, pa.table({"whatever": NAMES})) == whole
    assert rows_of(tmp_path, names, 'name\n"a,b"\n"say ""hi"""\n') == [3, 4]
    assert rows_of(tmp_path, names, pa.table({"name": [7]})) == [1], "the number 7 is not 007"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("3\n1\n3\n", "1 id more than once, leave each but once: '3'"),
        ("3\n+3\n", "1 id more than once"),
        (pa.table({"id": [1, 2, 1, 2, 1]}), "2 ids more than once"),
        ("7\n-1\n0\nx\n1.5\n1e0\n", '5 ids without a node of type "user"; ids are rows of the data, whole numbers'),
        ("99999999999999999999999\n", "1 id without a node"),
        (pa.table({"id": pa.array([None, 2], pa.int64())}), "1 id without a node .*: nothing"),
        ("", "the file names no node"),
        ("\n  \n\n", "the file names no node"),
        ("id,other\n", "the file names no node"),
        (pa.table({"id": pa.array([], pa.int64())}), "the file names no node"),
        ("identity\n3\n", "expected the column id, there is no id among identity"),
        (pa.table({"a": [1], "b": [2]}), "expected the column id, there is no id among a, b"),
        (None, "nowhere.txt cannot be read: .*No such file"),
    ],
)
def test_what_is_refused_of_rows(tmp_path: Path, given: Any, message: str) -> None:
    with pytest.raises(ExperimentError, match=rf"^--ids \S+ ?.*{message}"):
        rows_of(tmp_path, ROWS, given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("007\n7 \n0007\n", r"2 ids without a node of type \"user\", whose key is name \(VARCHAR\): '7 ', '0007'"),
        ("7\n 7\n7\n", "1 id more than once, leave each but once: '7'"),
        ("name\n", "the file names no node"),
    ],
)  # fmt: skip
def test_what_is_refused_of_text_keys(tmp_path: Path, names: NodeKeys, given: str, message: str) -> None:
    with pytest.raises(ExperimentError, match=message):
        rows_of(tmp_path, names, given)
