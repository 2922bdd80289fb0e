"""Disjoint sampling: a tree of its own grows from each seed of a batch.

A node of a tree is one number, tree * num_nodes + node, so that the tables which merge the nodes of a batch keep trees
apart by themselves. What a tree draws depends on its seed (original id, and time where there are times), not on the
batch; a seed that comes several times in a batch grows different trees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..machine_code import compiled
from . import kernels
from .kernels import advance, mix, owner_of
from .request import starts
from .temporal import NEVER


@dataclass(frozen=True)
class Trees:
    """The seeds of a batch, as much as drawing needs of them."""

    keys: np.ndarray
    """uint64 [num_seeds], of their draws."""
    limits: np.ndarray
    """int64 [num_seeds]: no time later than that, see `temporal.time_keys`."""

    @staticmethod
    def of(original: np.ndarray, times: np.ndarray | None) -> Trees:
        """From original ids and (where there are times) time keys, both int64 [num_seeds]."""
        limits = np.full(len(original), NEVER - 1, np.int64) if times is None else np.minimum(times, NEVER - 1)
        return Trees(_tree_keys(original, limits, _occurrences(original, limits)), limits)

    def words(self, dtype: np.dtype) -> np.ndarray:
        """How it travels in a message of integers."""
        return np.concatenate([self.keys.view(np.int64), self.limits]).view(dtype)

    @staticmethod
    def read(words: np.ndarray) -> Trees:
        numbers = words.copy().view(np.int64)  # a copy is aligned
        half = len(numbers) // 2
        return Trees(numbers[:half].view(np.uint64), numbers[half:])


def _occurrences(original: np.ndarray, limits: np.ndarray) -> np.ndarray:
    """int64: which time it is that a seed comes, from 0 on."""
    order = np.lexsort((limits, original))
    first = np.ones(len(order), np.bool_)
    first[1:] = (np.diff(original[order]) != 0) | (np.diff(limits[order]) != 0)
    at = np.arange(len(order))
    occurrences = np.empty(len(order), np.int64)
    occurrences[order] = at - np.maximum.accumulate(np.where(first, at, 0))
    return occurrences


@compiled
def _tree_keys(original, limits, occurrences):
    keys = np.empty(len(original), np.uint64)
    for i in range(len(original)):
        key = mix(advance(np.uint64(original[i])))
        key = mix(advance(key ^ np.uint64(limits[i])))
        keys[i] = mix(advance(key ^ np.uint64(occurrences[i])))
    return keys


@compiled
def split_nodes(nodes, num_nodes, ids, trees):
    """Take tree * num_nodes + id apart."""
    for i in range(len(nodes)):
        tree = nodes[i] // num_nodes
        trees[i] = tree
        ids[i] = nodes[i] - tree * num_nodes


@compiled
def join_sources(counts, trees, num_nodes, sources):
    """Sources belong to the tree of their destination: counts[i] of them to trees[i]. In place."""
    n = 0
    for i in range(len(counts)):
        first = np.int64(trees[i]) * num_nodes
        for _ in range(counts[i]):
            sources[n] += first
            n += 1


@compiled
def _write_remote_of(ids, values, bounds, me, cursor, message):
    low, high = bounds[me], bounds[me + 1]
    for i in range(len(ids)):
        v = ids[i]
        if not low <= v < high:
            owner = owner_of(v, bounds)
            message[cursor[owner]] = values[i]
            cursor[owner] += 1


def make_tree_request(
    ids: Sequence[np.ndarray],
    trees: Sequence[np.ndarray],
    bounds: Sequence[np.ndarray],
    me: int,
    num_machines: int,
    head: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """As `make_request`, with the tree of each id, and `head` before everything.

    To each machine goes: how long the head is, the head, how many ids of each kind follow, the ids of each kind, and
    their trees.

    Returns:
        The message, the sizes of its parts, and int64 [kinds, machines]: how many ids go where.
    """
    counts = np.zeros((len(ids), num_machines), np.int64)
    for kind, (wanted, book) in enumerate(zip(ids, bounds)):
        kernels.count_remote(wanted, book, me, counts[kind])
    sizes = 2 * counts.sum(axis=0) + len(ids) + 1 + len(head)
    sizes[me] = 0
    message = np.empty(int(sizes.sum()), head.dtype)
    cursor = starts(sizes)
    for machine in range(num_machines):
        if machine != me:
            before = np.concatenate([[len(head)], head, counts[:, machine]])
            message[cursor[machine] : cursor[machine] + len(before)] = before
            cursor[machine] += len(before)
    for wanted, book in zip(ids, bounds):
        kernels.write_remote(wanted, book, me, cursor, message)
    for wanted, of, book in zip(ids, trees, bounds):
        _write_remote_of(wanted, of, book, me, cursor, message)
    return message, sizes, counts


def read_tree_request(part: np.ndarray, num_kinds: int) -> tuple[np.ndarray, list[np.ndarray], list[np.ndarray]]:
    """Head, ids of each kind, and their trees."""
    head, rest = part[1 : 1 + part[0]], part[1 + part[0] :]
    counts, rest = rest[:num_kinds], rest[num_kinds:]
    pieces = np.split(rest, np.cumsum(np.concatenate([counts, counts]), dtype=np.int64)[:-1]) if num_kinds else []
    return head, pieces[:num_kinds], pieces[num_kinds:]
