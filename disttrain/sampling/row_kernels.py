"""The inner loops over rows of attributes, compiled by numba: find them, copy them, halve them. They release the GIL.

A row is what one attribute holds of one node or edge, as machine words. A row that is wanted lies in one of three
places: in the own range of the files, in the cache of remote rows, or in another machine's answer.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from ..machine_code import compiled
from .bits import atomic_add, count_bits
from .fp16 import (
    HALF_LINE,
    half,
    halve_line,
    round_line,
    stream_round_line,
    stream_whole_line,
    whole,
    whole_line,
)
from .kernels import owner_of
from .stream import LINE_BYTES, fetch_line, stream_line

# Numba's intrinsics are called with fewer arguments than pyright sees.
# pyright: reportCallIssue=false

REMOTE = np.int64(-(1 << 62))
"""See `locate`."""

_AHEAD = 4
"""How many rows before it is read a row that is to be rounded is fetched."""


@compiled
def locate(ids, bounds, me, index, places, per_owner):
    """Where the row of each id lies. A search and a look-up for each remote id, done once for all its attributes.

    Args:
        index: uint64 [words, 2] of the cached ids, see `cache.index_of`; without rows if there are none.
        places: int64, filled: v - low of own ids, -1 - slot of cached ones, REMOTE - owner of the others.
        per_owner: int64, added to: how many rows each owner is to send.

    Returns:
        How many are cached.
    """
    low, high = bounds[me], bounds[me + 1]
    has_index = len(index) > 0
    num_cached = 0
    for i in range(len(ids)):
        v = np.int64(ids[i])
        if low <= v < high:
            places[i] = v - low
            continue
        if has_index:
            word, bit = index[v >> 6, 0], np.uint64(1) << np.uint64(v & 63)
            if word & bit:
                places[i] = -1 - np.int64(index[v >> 6, 1] + count_bits(word & (bit - np.uint64(1))))
                num_cached += 1
                continue
        owner = owner_of(v, bounds)
        places[i] = REMOTE - owner
        per_owner[owner] += 1
    return num_cached


@compiled
def write_wanted(ids, places, cursor, message):
    """Write the ids that others are asked for into `message`, grouped by owner (from cursor[m] on), in their order."""
    for i in range(len(ids)):
        if places[i] <= REMOTE:
            owner = REMOTE - places[i]
            message[cursor[owner]] = ids[i]
            cursor[owner] += 1


@compiled
def count_remote_ids(ids, bounds, me, weight, counters):
    """counters[v] += weight for each id of another machine; several threads and processes may do so at a time."""
    low, high = bounds[me], bounds[me + 1]
    for i in range(len(ids)):
        v = np.int64(ids[i])
        if not low <= v < high:
            atomic_add(counters, v, weight)


@compiled
def pick_rows(ids, low, table, out):
    """out[i] = table[ids[i] - low], rows of words."""
    width = table.shape[1]
    if width == 1:
        # The shorter the loop, the more loads are under way at a time.
        for i in range(len(ids)):
            out[i, 0] = table[ids[i] - low, 0]
        return
    for i in range(len(ids)):
        v = ids[i] - low
        for w in range(width):
            out[i, w] = table[v, w]


@njit(inline="always")
def _fetch_row(source, at, width):
    """Rounding takes so many instructions that the processor does not see the next row's loads while it is at one."""
    for w in range(0, width, HALF_LINE):
        fetch_line(source, at + w)


@njit(inline="always")
def _halve_row(source, at, target, to, width):
    lines = width - width % HALF_LINE
    for w in range(0, lines, HALF_LINE):
        halve_line(source, at + w, target, to + w)
    for w in range(lines, width):
        target[to + w] = half(source[at + w])


@compiled
def pick_halved(ids, low, table, out):
    """out[i] = table[ids[i] - low], float32 (as uint32) in fp16 (as uint16)."""
    width = table.shape[1]
    flat, target = table.reshape(-1), out.reshape(-1)
    for i in range(len(ids)):
        if i + _AHEAD < len(ids):
            _fetch_row(flat, (np.int64(ids[i + _AHEAD]) - low) * width, width)
        _halve_row(flat, (np.int64(ids[i]) - low) * width, target, i * width, width)


@compiled
def halve_rows(table, out):
    """out[i] = table[i], float32 (as uint32) in fp16 (as uint16)."""
    _halve_row(table.reshape(-1), 0, out.reshape(-1), 0, table.size)


@njit(inline="always")
def _copy_row(source, at, target, to, width, per_line):
    """Copy `width` words; in whole cache lines past the caches if per_line > 0, which is how many words these hold."""
    if per_line > 0:
        for w in range(0, width, per_line):
            stream_line(source, at + w, target, to + w)
    else:
        for w in range(width):
            target[to + w] = source[at + w]


@compiled
def collect_rows(places, own, cached, inbox, cursor, out):
    """out[i] = the row at places[i], see `locate`: of `own`, of `cached`, or the next one of its owner's in `inbox`.

    Args:
        own, cached: [rows, width] words.
        inbox: 1-D, words; rows of owner m begin at cursor[m], which is used up.
    """
    width = own.shape[1]
    if width == 1:
        for i in range(len(places)):
            place = places[i]
            if place >= 0:
                out[i, 0] = own[place, 0]
            elif place > REMOTE:
                out[i, 0] = cached[-1 - place, 0]
            else:
                owner = REMOTE - place
                out[i, 0] = inbox[cursor[owner]]
                cursor[owner] += 1
        return
    flat, hot, target = own.reshape(-1), cached.reshape(-1), out.reshape(-1)
    per_line = LINE_BYTES // own.itemsize
    if width % per_line or out.ctypes.data % LINE_BYTES:
        per_line = 0
    for i in range(len(places)):
        place = places[i]
        if place >= 0:
            _copy_row(flat, place * width, target, i * width, width, per_line)
        elif place > REMOTE:
            _copy_row(hot, (-1 - place) * width, target, i * width, width, per_line)
        else:
            owner = REMOTE - place
            _copy_row(inbox, cursor[owner], target, i * width, width, per_line)
            cursor[owner] += width


@njit(inline="always")
def _whole_row(source, at, target, to, width, stream):
    """What `width` words of fp16 are; past the caches if told so, in whole cache lines then."""
    if stream:
        for w in range(0, width, HALF_LINE):
            stream_whole_line(source, at + w, target, to + w)
        return
    lines = width - width % HALF_LINE
    for w in range(0, lines, HALF_LINE):
        whole_line(source, at + w, target, to + w)
    for w in range(lines, width):
        target[to + w] = whole(source[at + w])


@njit(inline="always")
def _round_row(source, at, target, to, width, stream):
    """Like `_whole_row`, of float32."""
    if stream:
        for w in range(0, width, HALF_LINE):
            stream_round_line(source, at + w, target, to + w)
        return
    lines = width - width % HALF_LINE
    for w in range(0, lines, HALF_LINE):
        round_line(source, at + w, target, to + w)
    for w in range(lines, width):
        target[to + w] = whole(half(source[at + w]))


@compiled
def collect_halved(places, own, cached, inbox, cursor, out):
    """Like `collect_rows`, of float32 (as uint32) that other machines send, and the cache holds, in fp16 (as uint16).

    The own rows are rounded to what fp16 can hold too: a row is the same whoever owns it.
    """
    width = own.shape[1]
    flat, hot, target = own.reshape(-1), cached.reshape(-1), out.reshape(-1)
    stream = width % HALF_LINE == 0 and out.ctypes.data % LINE_BYTES == 0
    for i in range(len(places)):
        place = places[i]
        if i + _AHEAD < len(places) and places[i + _AHEAD] >= 0:
            _fetch_row(flat, places[i + _AHEAD] * width, width)
        if place >= 0:
            _round_row(flat, place * width, target, i * width, width, stream)
        elif place > REMOTE:
            _whole_row(hot, (-1 - place) * width, target, i * width, width, stream)
        else:
            owner = REMOTE - place
            _whole_row(inbox, cursor[owner], target, i * width, width, stream)
            cursor[owner] += width
