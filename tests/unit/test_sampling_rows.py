"""Rows come from the own range, the cache or another machine's message, whole or in fp16; hot rows are chosen."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from disttrain.graph.schema import Wants
from disttrain.sampling import row_kernels
from disttrain.sampling.cache import choose_rows, fill_index, index_bytes
from disttrain.sampling.columns import taken_names
from disttrain.sampling.memory import BlockPool

NO_INDEX = np.empty((0, 2), np.uint64)


def _index(ids: list[int], num_ids: int) -> np.ndarray:
    index = np.zeros((-(-num_ids // 64), 2), np.uint64)
    assert index.nbytes == index_bytes(num_ids)
    fill_index(index, np.array(ids, np.int64))
    return index


def _locate(ids: np.ndarray, bounds: np.ndarray, me: int, index: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    places, per_owner = np.empty(len(ids), np.int64), np.zeros(len(bounds) - 1, np.int64)
    hits = row_kernels.locate(ids, bounds, me, index, places, per_owner)
    return places, per_owner, hits


def test_rows_come_from_the_own_table_the_cache_or_the_owners_message():
    bounds = np.array([0, 4, 9, 12])
    own = np.arange(10, dtype=np.uint64).reshape(5, 2) + 100
    cached = np.array([[70, 71], [72, 73]], np.uint64)
    ids = np.array([5, 0, 11, 4, 1, 10, 3], np.int32)
    places, per_owner, hits = _locate(ids, bounds, 1, _index([3, 11], 12))
    assert per_owner.tolist() == [2, 0, 1] and hits == 2
    assert places.tolist() == [1, row_kernels.REMOTE, -2, 0, row_kernels.REMOTE, row_kernels.REMOTE - 2, -1]
    inbox = np.arange(8, dtype=np.uint64)
    out = np.zeros((7, 2), np.uint64)
    row_kernels.collect_rows(places, own, cached, inbox, np.array([0, -1, 4]), out)
    assert out.tolist() == [[102, 103], [0, 1], [72, 73], [100, 101], [2, 3], [4, 5], [70, 71]]
    message = np.empty(3, np.int64)
    row_kernels.write_wanted(ids, places, np.array([0, -1, 2]), message)
    assert message.tolist() == [0, 1, 10]


@pytest.mark.parametrize("word", [np.uint64, np.uint32, np.uint8])
@pytest.mark.parametrize("row_bytes", [8, 64, 512, 72, 192])
@pytest.mark.parametrize("begin", [0, 8])
def test_rows_are_the_same_whole_lines_or_not_aligned_or_not(word, row_bytes, begin):
    rng = np.random.default_rng(row_bytes)
    width = row_bytes // word().itemsize
    bounds = np.array([0, 50, 120])
    rows = rng.integers(0, 256, (120, row_bytes), dtype=np.uint8).view(word)
    ids = rng.permutation(120)[:90].astype(np.int32)
    hot = np.arange(0, 50, 3)
    places, per_owner, hits = _locate(ids, bounds, 1, _index(hot.tolist(), 120))
    asked = ids[(ids < 50) & (ids % 3 != 0)]
    assert hits == np.isin(ids, hot).sum() > 0 and per_owner.tolist() == [len(asked), 0]
    inbox = np.concatenate([np.zeros(8 // word().itemsize, word), rows[asked].reshape(-1)])
    block = BlockPool().empty(1 << 17, np.uint8)
    assert block.ctypes.data % 64 == 0
    out = block[begin : begin + 90 * row_bytes].view(word).reshape(90, width)
    row_kernels.collect_rows(places, rows[50:], rows[hot], inbox, np.array([8 // word().itemsize, 0]), out)
    assert (out == rows[ids]).all()


@pytest.mark.parametrize("num_ids", [1, 63, 64, 65, 1000])
def test_the_index_finds_every_cached_id_and_no_other(num_ids):
    rng = np.random.default_rng(num_ids)
    hot = np.sort(rng.permutation(num_ids)[: (num_ids + 1) // 2])
    # The own range is the empty one behind all ids.
    bounds = np.array([0, num_ids, num_ids])
    places, per_owner, hits = _locate(np.arange(num_ids), bounds, 1, _index(hot.tolist(), num_ids))
    assert hits == len(hot) and per_owner.tolist() == [num_ids - len(hot), 0]
    expected = np.full(num_ids, row_kernels.REMOTE)
    expected[hot] = -1 - np.arange(len(hot))
    assert places.tolist() == expected.tolist()


def test_halves_are_those_of_numpy():
    every = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16).view(np.float16)
    rng = np.random.default_rng(0)
    bits = every.astype(np.float32).view(np.uint32)
    bits = np.concatenate([bits, *(bits + near for near in (1, 0xFFF, 0x1000, 0x1001))])
    bits = np.concatenate([bits, rng.integers(0, 1 << 32, 1 << 18, dtype=np.uint64).astype(np.uint32)])
    with np.errstate(over="ignore", invalid="ignore"):
        expected = bits.view(np.float32).astype(np.float16)
    known = ~np.isnan(expected)
    halves = np.empty((1, len(bits)), np.uint16)
    row_kernels.halve_rows(bits[None], halves)
    assert np.isnan(halves[0].view(np.float16)[~known]).all()
    assert (halves[0][known] == expected[known].view(np.uint16)).all()
    picked = np.empty_like(halves)
    row_kernels.pick_halved(np.array([7], np.int32), 7, bits[None], picked)
    assert (picked == halves).all()

    # The same row from all three places, rounded alike.
    out = np.empty((3, len(bits)), np.uint32)
    places = np.array([0, -1, row_kernels.REMOTE - 1])
    row_kernels.collect_halved(places, bits[None], halves, halves[0], np.zeros(2, np.int64), out)
    with np.errstate(invalid="ignore"):
        whole = expected.astype(np.float32)
    for row in out.view(np.float32):
        assert np.isnan(row[~known]).all() and (row[known].view(np.uint32) == whole[known].view(np.uint32)).all()


@pytest.mark.parametrize("width", [1, 16, 40, 64])
@pytest.mark.parametrize("begin", [0, 8])
def test_halved_rows_are_the_same_in_whole_lines_or_not_aligned_or_not(width, begin):
    rng = np.random.default_rng(width)
    bounds = np.array([0, 50, 120])
    rows = (rng.normal(size=(120, width)) * 10.0 ** rng.integers(-9, 6, (120, width))).astype(np.float32)
    with np.errstate(over="ignore"):
        halves = rows.astype(np.float16)
    ids = rng.permutation(120)[:90].astype(np.int32)
    hot = np.arange(0, 50, 3)
    places, _, _ = _locate(ids, bounds, 1, _index(hot.tolist(), 120))
    asked = ids[(ids < 50) & (ids % 3 != 0)]
    inbox = np.empty(len(asked) * width, np.uint16)
    row_kernels.pick_halved(asked, 0, rows.view(np.uint32), inbox.reshape(-1, width))
    assert (inbox == halves[asked].view(np.uint16).reshape(-1)).all()
    out = BlockPool().empty(1 << 17, np.uint8)[begin : begin + 90 * 4 * width].view(np.uint32).reshape(90, width)
    row_kernels.collect_halved(
        places, rows[50:].view(np.uint32), halves[hot].view(np.uint16), inbox, np.zeros(2, np.int64), out
    )
    assert (out.view(np.float32) == halves[ids].astype(np.float32)).all()


def test_nothing_is_lost_when_threads_count_at_a_time():
    counters = np.zeros(10, np.uint32)
    ids = np.repeat(np.arange(10, dtype=np.int32), 20_000)
    bounds = np.array([0, 4, 10])
    threads = [
        threading.Thread(target=row_kernels.count_remote_ids, args=(ids, bounds, 0, np.uint32(w), counters))
        for w in (1, 2, 3, 4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counters.tolist() == [0] * 4 + [200_000] * 6


def test_rows_are_chosen_by_what_they_save():
    wide, narrow = np.array([0, 9, 3, 5, 3], np.uint32), np.array([4, 0, 9, 9], np.uint32)

    def chosen(num_bytes: int) -> list[list[int]]:
        return [ids.tolist() for ids in choose_rows([wide, narrow], [100, 8], num_bytes)]

    assert chosen(0) == chosen(16 + 7) == [[], []]
    # A narrow row saves more for its bytes, as the id is not asked for either: 9 * 12 / 8 against 9 * 104 / 100.
    assert chosen(16 + 8) == [[], [2]]
    assert chosen(16 + 16) == [[], [2, 3]]
    assert chosen(32 + 16 + 99) == [[], [0, 2, 3]]
    assert chosen(32 + 16 + 100) == [[1], [2, 3]]
    assert chosen(32 + 24 + 300) == [[1, 2, 3], [0, 2, 3]], "of the two asked for three times, the first"
    assert chosen(10**9) == [[1, 2, 3, 4], [0, 2, 3]], "what nobody asks for is not kept"


def test_a_choice_never_takes_more_than_it_may():
    rng = np.random.default_rng(0)
    counters = [rng.poisson(1.0, n).astype(np.uint32) for n in (1000, 70, 5)]
    sizes, best = [520, 8, 0], sum(int((c > 0).sum()) * s for c, s in zip(counters, [520, 8, 0]))
    for num_bytes in (100, 1000, 20_000, 100_000, best + 2000):
        chosen = choose_rows(counters, sizes, num_bytes)
        taken = sum(
            len(ids) * s + (index_bytes(len(c)) if len(ids) else 0) for ids, s, c in zip(chosen, sizes, counters)
        )
        assert taken <= num_bytes
        for ids, counts, size in zip(chosen, counters, sizes):
            others = np.setdiff1d(np.arange(len(counts)), ids)
            assert not len(ids) or not len(others) or counts[ids].min() >= counts[others].max()
            assert (np.diff(ids) > 0).all() and (size or not len(ids))
    assert taken == best + sum(index_bytes(n) for n in (1000, 70))


def test_names_that_batches_have_of_their_own_are_told():
    wants = Wants(nodes={"a": ("x", "batch")}, edges={("a", "to", "a"): ("weight", "src_degree", "x")})
    lines = taken_names(wants)
    assert [line.partition(" cannot")[0] for line in lines] == [
        'attribute "batch" of node type "a"',
        'attribute "src_degree" of "a,to,a"',
    ]
    assert taken_names(Wants(degrees=frozenset([("a", "to", "a")]))) == []
