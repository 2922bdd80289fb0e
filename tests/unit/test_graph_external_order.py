"""Rows sorted in buckets on the disk are those that NumPy sorts in memory."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disttrain.graph import blocks as blocks_module
from disttrain.graph.external_order import ExternalOrder, bucket_bounds
from disttrain.graph.order import count_keys, starts_of


def in_blocks(array: np.ndarray, rows: int) -> list[np.ndarray]:
    return [array[start : start + rows] for start in range(0, len(array), rows)]


@settings(deadline=None, max_examples=60)
@given(
    num_rows=st.integers(0, 300),
    num_keys=st.integers(1, 40),
    hub=st.floats(0, 1),
    rows_at_once=st.integers(1, 320),
    block=st.integers(1, 320),
    seed=st.integers(0, 99),
)
def test_stable_sort(num_rows: int, num_keys: int, hub: float, rows_at_once: int, block: int, seed: int):
    rng = np.random.default_rng(seed)
    keys = np.where(rng.random(num_rows) < hub, 0, rng.integers(0, num_keys, num_rows)).astype(np.int32)
    wide = rng.normal(size=(num_rows, 3, 2)).astype(np.float32)
    expected = np.argsort(keys, kind="stable")
    starts = starts_of(count_keys(keys, num_keys))
    with tempfile.TemporaryDirectory() as folder:
        order = ExternalOrder(starts, in_blocks(keys, block), Path(folder), rows_at_once)
        ids = np.arange(num_rows)
        found = [np.empty(0, np.int64), *order.apply(in_blocks(ids, block + 1), np.dtype(np.int64))]
        assert np.array_equal(np.concatenate(found), expected)
        found = [wide[:0], *order.apply(in_blocks(wide, block), wide.dtype, (3, 2))]
        assert np.array_equal(np.concatenate(found), wide[expected])
        order.close()
        assert list(Path(folder).iterdir()) == []


@pytest.mark.parametrize(
    ("counts", "bounds"),
    [
        ([], [0]),
        ([0, 0], [0, 2]),
        ([3, 3, 3], [0, 1, 2, 3]),
        ([2, 2, 2, 2], [0, 2, 4]),
        # A key with more rows than are sorted at once is a bucket of its own.
        ([1, 9, 1, 1, 0], [0, 1, 2, 5]),
    ],
)
def test_buckets(counts: list[int], bounds: list[int]):
    starts = starts_of(np.array(counts, dtype=np.int64))
    assert bucket_bounds(starts, 4).tolist() == bounds


def test_a_failing_column_leaves_no_file(tmp_path: Path):
    keys = np.arange(50) % 7
    order = ExternalOrder(starts_of(count_keys(keys, 7)), [keys], tmp_path, 10)

    def failing():
        yield keys[:10]
        raise OSError("no space")

    before = sorted(tmp_path.iterdir())
    with pytest.raises(OSError, match="no space"):
        list(order.apply(failing(), keys.dtype))
    assert sorted(tmp_path.iterdir()) == before
    order.close()
    assert list(tmp_path.iterdir()) == []


def test_id_blocks_are_of_one_kind(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(blocks_module, "_BLOCK_BYTES", 64)
    for ids in (np.arange(40, dtype=np.int32)[::2], np.arange(20, dtype=np.uint16) * 2, np.arange(0, 40, 2)):
        found = list(blocks_module.id_blocks(ids))
        assert [len(block) for block in found] == [8, 8, 4]
        assert all(block.dtype == np.int64 and block.flags.c_contiguous for block in found)
        assert np.concatenate(found).tolist() == list(range(0, 40, 2))
