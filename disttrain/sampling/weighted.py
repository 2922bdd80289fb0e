"""Draws by weight: exact, in double precision, and a function of the draw's stream like all others.

Without replacement the law is that of successive draws, each proportional to the weights of what is left (Efraimidis
and Spirakis, "Weighted random sampling with a reservoir", 2006): each neighbour gets an exponential of rate weight, and
the smallest are taken. With replacement, a uniform number is looked up in the running sums of the weights.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from ..machine_code import compiled
from .kernels import mix

_LEAST = 2.0**-1022
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@compiled
def scale_weights(colptr, weights):
    """Divide the weights of each destination by a power of two, which is exact, so that the largest is in [0.5, 1):
    their sums neither overflow nor vanish, whatever other destinations have. In place; `colptr` begins at 0.
    """
    for v in range(len(colptr) - 1):
        largest = 0.0
        for p in range(colptr[v], colptr[v + 1]):
            largest = max(largest, weights[p])
        if largest > 0.0:
            exponent = int(np.floor(np.log2(largest))) + 1
            # In two steps: the power itself may be out of range.
            half = exponent // 2
            for p in range(colptr[v], colptr[v + 1]):
                # One that vanishes beside another is never drawn before it, but it is there.
                weights[p] = max(weights[p] * 2.0 ** (-half) * 2.0 ** (half - exponent), _LEAST)


@compiled
def running_sums(colptr, weights):
    """float64: at each edge, the sum of the weights of its destination up to and with it. `colptr` begins at 0."""
    sums = np.empty(len(weights), np.float64)
    for v in range(len(colptr) - 1):
        total = 0.0
        for p in range(colptr[v], colptr[v + 1]):
            total += weights[p]
            sums[p] = total
    return sums


@njit(inline="always")
def _uniform(state, number):
    """In (0, 1), never 0 nor 1: 52 random bits and a half."""
    bits = mix(state + np.uint64(number + 1) * _GOLDEN) >> np.uint64(12)
    return (np.float64(bits) + 0.5) * 2.0**-52


@njit(inline="always")
def _later(a_key, a, b_key, b):
    """Ties, which two exponentials hardly ever have, are decided by place."""
    return a_key > b_key or (a_key == b_key and a > b)


@njit(inline="always")
def _sift_down(keys, picks, root, size):
    key, pick = keys[root], picks[root]
    while True:
        child = 2 * root + 1
        if child >= size:
            break
        if child + 1 < size and _later(keys[child + 1], picks[child + 1], keys[child], picks[child]):
            child += 1
        if not _later(keys[child], picks[child], key, pick):
            break
        keys[root], picks[root] = keys[child], picks[child]
        root = child
    keys[root], picks[root] = key, pick


@compiled
def draw_by_weight(begins, degrees, counts, states, weights, keys, picks, places):
    """Draw without replacement: the places in the view of the chosen neighbours, in the order in which they are drawn.
    Those of ids that others own (begins < 0) are left.

    Args:
        weights: of the places, all above 0.
        keys, picks: float64 and int64, room for the largest count.

    Cost: O(degree + count log count log degree) a node.
    """
    n = 0
    for i in range(len(begins)):
        count, begin, degree = np.int64(counts[i]), begins[i], degrees[i]
        if begin < 0:
            n += count
            continue
        if count == degree:
            for q in range(count):
                places[n] = begin + q
                n += 1
            continue
        if count == 0:
            continue
        # A heap of the smallest so far, the largest of them at its root.
        for j in range(degree):
            key = -np.log(_uniform(states[i], j)) / weights[begin + j]
            if j < count:
                keys[j], picks[j] = key, j
                if j == count - 1:
                    for root in range(count // 2 - 1, -1, -1):
                        _sift_down(keys, picks, root, count)
            elif _later(keys[0], picks[0], key, j):
                keys[0], picks[0] = key, j
                _sift_down(keys, picks, 0, count)
        for last in range(count - 1, 0, -1):
            keys[0], keys[last] = keys[last], keys[0]
            picks[0], picks[last] = picks[last], picks[0]
            _sift_down(keys, picks, 0, last)
        for q in range(count):
            places[n] = begin + picks[q]
            n += 1


@compiled
def draw_by_sums(begins, degrees, counts, states, sums, places):
    """Draw with replacement, otherwise as `draw_by_weight`; `sums` are those of `running_sums`.

    Cost: O(count log degree) a node.
    """
    n = 0
    for i in range(len(begins)):
        count, begin, degree = np.int64(counts[i]), begins[i], degrees[i]
        if begin < 0:
            n += count
            continue
        for q in range(count):
            wanted = _uniform(states[i], q) * sums[begin + degree - 1]
            left, right = np.int64(0), degree - 1
            while left < right:
                middle = (left + right) // 2
                if sums[begin + middle] > wanted:
                    right = middle
                else:
                    left = middle + 1
            places[n] = begin + left
            n += 1
