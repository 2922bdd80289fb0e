"""What one machine asks of the others: for each of several kinds of ids, those that the other one owns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from . import kernels


@dataclass(frozen=True)
class Request:
    """Ids sorted by owner. To each machine goes how many ids of each kind follow, then these, kind by kind."""

    message: np.ndarray
    """All machines' parts, in the order of machines; nothing for the own one."""
    sizes: np.ndarray
    """int64 [machines]: how long each part is."""
    counts: np.ndarray
    """int64 [kinds, machines]: how many ids of each kind go to each machine."""


def make_request(
    ids: Sequence[np.ndarray], bounds: Sequence[np.ndarray], me: int, num_machines: int, dtype: np.dtype
) -> Request:
    """Sort out which of the ids other machines than `me` own.

    Args:
        ids: per kind; the ids of one machine keep their order.
        bounds: per kind, as in `PartitionBook`.
        dtype: of the message.
    """
    counts = np.zeros((len(ids), num_machines), np.int64)
    if num_machines > 1:
        for kind, (wanted, book) in enumerate(zip(ids, bounds)):
            kernels.count_remote(wanted, book, me, counts[kind])
    request, cursor = address(counts, me, dtype)
    if num_machines > 1:
        for wanted, book in zip(ids, bounds):
            kernels.write_remote(wanted, book, me, cursor, request.message)
    return request


def address(counts: np.ndarray, me: int, dtype: np.dtype) -> tuple[Request, np.ndarray]:
    """A request of `counts` [kinds, machines] ids, all but the ids themselves.

    Returns:
        The request, and where in its message the ids for each machine go, int64 [machines].
    """
    num_kinds, num_machines = counts.shape
    if num_machines == 1:
        return Request(np.empty(0, dtype), np.zeros(1, np.int64), counts), np.zeros(1, np.int64)
    sizes = counts.sum(axis=0) + num_kinds
    sizes[me] = 0
    message = np.empty(int(sizes.sum()), dtype)
    cursor = starts(sizes)
    for machine in range(num_machines):
        if machine != me:
            message[cursor[machine] : cursor[machine] + num_kinds] = counts[:, machine]
            cursor[machine] += num_kinds
    return Request(message, sizes, counts), cursor


def read_request(part: np.ndarray, num_kinds: int) -> list[np.ndarray]:
    """The ids of each kind that another machine's part of its message asks for."""
    ends = num_kinds + np.cumsum(part[:num_kinds], dtype=np.int64)
    return [part[end - part[kind] : end] for kind, end in enumerate(ends)]


def starts(sizes: np.ndarray) -> np.ndarray:
    """int64: where each of several consecutive parts begins."""
    return np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
