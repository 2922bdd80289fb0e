"""Blocks are shared by what is not alive at the same time, and by nothing else."""

from __future__ import annotations

import numpy as np
import torch

from disttrain.sampling.memory import BlockPool


def test_what_is_alive_never_shares_memory():
    pool = BlockPool()
    arrays = [pool.empty((1000, 40), np.float32) for _ in range(5)]
    for number, array in enumerate(arrays):
        array[:] = number
    assert all((array == number).all() for number, array in enumerate(arrays))


def test_what_died_leaves_its_memory():
    pool = BlockPool()
    first = pool.empty(100_000, np.int64)
    address = first.ctypes.data
    assert pool.empty(100_000, np.int64).ctypes.data != address
    del first
    second = pool.empty((100_001, 2), np.float32)
    assert second.ctypes.data == address and second.shape == (100_001, 2) and second.dtype == np.float32


def test_views_and_tensors_keep_it():
    pool = BlockPool()
    tensor = torch.from_numpy(pool.empty((300, 300), np.float32)).t()[1:].view(-1, 30 * 10)[3]
    view = pool.empty(90_000, np.float32).reshape(300, 300)[5]
    others = [pool.empty((300, 300), np.float32) for _ in range(3)]
    addresses = {other.ctypes.data for other in others}
    assert len(addresses) == 3
    for other in others:
        begin = other.ctypes.data
        assert not begin <= tensor.data_ptr() < begin + other.nbytes
        assert not begin <= view.ctypes.data < begin + other.nbytes


def test_small_and_empty_ones_come_from_the_allocator():
    pool = BlockPool()
    assert pool.empty((0, 7), np.int64).shape == (0, 7)
    assert pool.empty(3, np.uint8).base is None
