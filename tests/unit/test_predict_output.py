"""The folder of predictions: kept by one process, whole or not there; and columns for any number of rows."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from disttrain.config import ExperimentError
from disttrain.predict.output import PartFile, clear, prepare, take
from disttrain.predict.request import Request
from disttrain.predict.selection import parse_splits
from disttrain.predict.tally import Tally
from disttrain.tasks.columns import class_columns, label_set_columns, label_sets


@contextmanager
def no_room(size: int) -> Iterator[None]:
    """No file may grow beyond so many bytes: as on a full disk, without one."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def table(rows: int) -> pa.Table:
    noise = np.random.default_rng(0).random(rows)
    return pa.table({"id": np.arange(rows), "split": pa.array(["train"] * rows, pa.string()), "noise": noise})


def test_a_full_disk_leaves_nothing_and_is_said_at_the_end(tmp_path: Path) -> None:
    part = PartFile(tmp_path, 0, 1)
    with no_room(100_000):
        part.add(table(0))
        for _ in range(12):
            part.add(table(400_000))
        with pytest.raises(ExperimentError, match=r"predictions could not be written .* choose another --output"):
            part.finish()
    assert os.listdir(tmp_path) == []


def test_a_part_lands_whole_in_row_groups(tmp_path: Path) -> None:
    part = PartFile(tmp_path, 1, 3)
    for rows in (0, 1_500_000, 3, 1_500_000, 0):
        part.add(table(rows))
    part.finish()
    assert not list(tmp_path.glob("part-*"))
    entry = part.land()
    assert entry["name"] == "part-00001-of-00003.parquet" and os.listdir(tmp_path) == [entry["name"]]
    metadata = pq.read_metadata(tmp_path / entry["name"])
    assert entry["rows"] == metadata.num_rows == 3_000_003
    assert metadata.num_row_groups == 2
    assert entry["bytes"] == (tmp_path / entry["name"]).stat().st_size
    part.discard()  # since another rank's could not be put in place
    assert os.listdir(tmp_path) == []


def test_one_process_writes_to_a_folder(tmp_path: Path) -> None:
    with take(tmp_path / "out"), pytest.raises(ExperimentError, match="another process writes predictions"):
        take(tmp_path / "out")
    take(tmp_path / "out").close()


def test_what_is_there_stays_unless_it_is_to_be_replaced(tmp_path: Path) -> None:
    for name in ("_predictions.json", "part-00000-of-00001.parquet", ".part-00000-of-00001.parquet.h.1", "mine.txt"):
        (tmp_path / name).write_text("x")
    with pytest.raises(ExperimentError, match=r"holds predictions already \(_predictions.json, part-"):
        prepare(tmp_path, overwrite=False)
    prepare(tmp_path, overwrite=True)
    assert sorted(os.listdir(tmp_path)) == ["_predictions.json", "mine.txt", "part-00000-of-00001.parquet"]
    clear(tmp_path)
    assert os.listdir(tmp_path) == ["mine.txt"]


def test_words_of_the_command() -> None:
    assert parse_splits("all") == ("train", "val", "test", "rest")
    assert parse_splits("test, val") == ("val", "test")
    with pytest.raises(ExperimentError, match="did you mean `test`"):
        parse_splits("tset")
    words = {"checkpoint": "best", "output": None, "embeddings": None, "logits": False, "overwrite": False}
    with pytest.raises(ExperimentError, match="--split and --ids both"):
        Request.make("run", split="val", ids="x", **words)
    with pytest.raises(ExperimentError, match="expected best, last or step-N, got 'newest'"):
        Request.make("run", split=None, ids=None, **{**words, "checkpoint": "newest"})
    for empty, option in (({"output": ""}, "--output"), ({"split": ""}, "--split"), ({"ids": ""}, "--ids")):
        with pytest.raises(ExperimentError, match=f"{option} is empty"):
            Request.make("run", **{"split": None, "ids": None, **words, **empty})


def test_columns_have_one_schema_for_any_rows() -> None:
    names = ("low", "high")
    for make in (class_columns, label_set_columns):
        some = make(torch.tensor([[0.25, 0.75], [0.9, 0.1], [0.5, 0.5]], dtype=torch.float64), names)
        none = make(torch.zeros(0, 2, dtype=torch.float64), names)
        assert pa.table(some).schema == pa.table(none).schema
        assert list(some) == ["prediction", "prediction_name", "probabilities"]
    assert some["prediction"].to_pylist() == [[1], [0], []]
    assert some["prediction_name"].to_pylist() == [["high"], ["low"], []]
    labels = label_sets(np.array([[True, True], [False, True], [True, False]]), np.array([True, False, True]))
    assert labels.to_pylist() == [[0, 1], None, [0]]


def test_the_checksum_tells_which_rows_in_any_order() -> None:
    rows = np.random.default_rng(0).permutation(1000)
    parts = [Tally.checksum_of(part) for part in np.array_split(rows, 7)]
    assert np.bitwise_xor.reduce(parts) == Tally.checksum_of(np.arange(1000))
    assert Tally.checksum_of(np.append(rows, 3)) != Tally.checksum_of(rows)
    assert Tally.checksum_of(np.array([], np.int64)) == 0
