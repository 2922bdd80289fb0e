"""The inner loops of sampling, compiled by numba: draw neighbours, relabel them. All of them release the GIL.

A draw is a function of (stream key, original id of the node), see `stream_key`: it does not depend on who computes it,
nor on what was drawn before. Uniform integers below n are made by multiply-and-shift from 32 random bits (Lemire,
"Fast random integer generation in an interval", 2019), whose bias is below n / 2**32. Draws without replacement follow
Floyd's algorithm (Bentley and Floyd, "Programming pearls: a sample of brilliance", 1987).
"""

from __future__ import annotations

import numpy as np
from numba import njit

from ..machine_code import compiled

_SMALL = 32
"""Up to so many picks, looking through all of them beats a hash set."""


@njit(inline="always")
def mix(z):
    # The finaliser of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@njit(inline="always")
def advance(state):
    return state + np.uint64(0x9E3779B97F4A7C15)


@compiled
def stream_key(seed, epoch, step, hop, relation):
    """uint64 key of all draws of one relation in one hop of one batch."""
    key = mix(advance(np.uint64(seed)))
    key = mix(advance(key ^ np.uint64(epoch)))
    key = mix(advance(key ^ np.uint64(step)))
    key = mix(advance(key ^ np.uint64(hop)))
    return mix(advance(key ^ np.uint64(relation)))


@compiled
def shuffle_keys(key, ids):
    """uint64 [n]: sorting by them shuffles `ids`, the same way wherever they are."""
    keys = np.empty(len(ids), np.uint64)
    for i in range(len(ids)):
        keys[i] = mix(advance(key ^ mix(np.uint64(ids[i]))))
    return keys


@compiled
def scratch_for(fanout):
    """Room that `draw` needs for one node at this fanout."""
    size = 64
    while size < 4 * fanout:
        size *= 2
    return np.empty(size, np.int64), np.full(size, -1, np.int64)


@njit(inline="always")
def _draw(state, degree, count, replace, picks, seen):
    """Fill picks[:count] with places in 0..degree-1; `count < degree` unless with replacement."""
    if replace:
        for q in range(count):
            state = advance(state)
            picks[q] = np.int64(((mix(state) >> np.uint64(32)) * np.uint64(degree)) >> np.uint64(32))
        return
    if count <= _SMALL:
        for q in range(count):
            top = degree - count + q
            state = advance(state)
            pick = np.int64(((mix(state) >> np.uint64(32)) * np.uint64(top + 1)) >> np.uint64(32))
            for other in range(q):
                if picks[other] == pick:
                    pick = top
                    break
            picks[q] = pick
        return
    # As much of the room as this count needs: a hub's would have to be cleared for each node after it.
    size = np.int64(len(seen))
    while size >= 8 * count:
        size //= 2
    mask = size - 1
    for q in range(count):
        top = degree - count + q
        state = advance(state)
        pick = np.int64(((mix(state) >> np.uint64(32)) * np.uint64(top + 1)) >> np.uint64(32))
        place = np.int64(mix(np.uint64(pick))) & mask
        while seen[place] >= 0:
            if seen[place] == pick:
                pick = top
                place = np.int64(mix(np.uint64(pick))) & mask
                while seen[place] >= 0:
                    place = (place + 1) & mask
                break
            place = (place + 1) & mask
        seen[place] = pick
        picks[q] = pick
    seen[:size] = -1


@compiled
def look_up(ids, low, high, colptr, original, key, fanout, replace, begins, degrees, counts, states):
    """What drawing for each id of low..high-1 needs; counts of the others stay as they are, and their begins become -1.

    Args:
        ids: node v of the own range is at v - low in `colptr` and `original`.
        begins, degrees: int64, filled: where its neighbours begin, how many there are.
        counts: filled: how many of them it gets.
        states: uint64, filled: the state its draws begin with.

    Returns:
        The sum of the counts filled in.
    """
    total = 0
    for i in range(len(ids)):
        v = ids[i]
        if low <= v < high:
            begins[i] = colptr[v - low]
            degree = colptr[v - low + 1] - colptr[v - low]
            degrees[i] = degree
            count = degree
            if fanout >= 0 and ((replace and degree > 0) or degree > fanout):
                count = fanout
            # For all of them, drawn or not: a load too many costs less than a branch that cannot be predicted.
            states[i] = key ^ mix(np.uint64(original[v - low]))
            counts[i] = count
            total += count
        else:
            begins[i] = -1
    return total


@njit(inline="always")
def owner_of(v, bounds):
    left, right = 0, len(bounds) - 1
    while right - left > 1:
        middle = (left + right) // 2
        if v >= bounds[middle]:
            left = middle
        else:
            right = middle
    return left


@compiled
def count_remote(ids, bounds, me, per_owner):
    """Add to per_owner[m] how many of `ids` machine m owns, m != me."""
    low, high = bounds[me], bounds[me + 1]
    for i in range(len(ids)):
        v = ids[i]
        if not low <= v < high:
            per_owner[owner_of(v, bounds)] += 1


@compiled
def write_remote(ids, bounds, me, cursor, message):
    """Write the ids that others own into `message`, grouped by owner (from cursor[m] on), in their own order."""
    low, high = bounds[me], bounds[me + 1]
    for i in range(len(ids)):
        v = ids[i]
        if not low <= v < high:
            owner = owner_of(v, bounds)
            message[cursor[owner]] = v
            cursor[owner] += 1


@compiled
def remote_counts(ids, bounds, me, inbox, cursor, totals, counts):
    """Read counts[i] of ids that others own from their answers (from cursor[m] on), and sum them up per owner."""
    low, high = bounds[me], bounds[me + 1]
    total = 0
    for i in range(len(ids)):
        v = ids[i]
        if not low <= v < high:
            owner = owner_of(v, bounds)
            count = inbox[cursor[owner]]
            cursor[owner] += 1
            counts[i] = count
            totals[owner] += count
            total += count
    return total


@compiled
def draw_places(begins, degrees, counts, states, replace, picks, seen, places):
    """Draw: the places in the CSC of the chosen neighbours, one id after the other. Those of ids that others own are
    left.

    Nothing but the draws is done here, and nothing but the copying in `gather_edges`: loops that do one simple thing
    let the processor overlap its waits for memory, of which every place is one.
    """
    n = 0
    for i in range(len(begins)):
        count, begin = np.int64(counts[i]), begins[i]
        if begin < 0:
            n += count
        elif replace or count < degrees[i]:
            if count > 0:
                _draw(states[i], degrees[i], count, replace, picks, seen)
            for q in range(count):
                places[n] = begin + picks[q]
                n += 1
        else:
            for q in range(count):
                places[n] = begin + q
                n += 1


@compiled
def gather_edges(places, row, edge_id, sources, edges):
    """Sources and original edge ids of the edges at `places`; those with negative places are left."""
    for n in range(len(places)):
        place = places[n]
        if place >= 0:
            sources[n] = row[place]
            edges[n] = edge_id[place]


@compiled
def take_answers(ids, bounds, begins, counts, inbox, cursor, stride, with_places, places, sources, edges):
    """Put what other machines drew where it belongs. Places become their complements, so that they are negative.

    Answers of machine m begin at cursor[m] of `inbox`: sources, then (stride[m] further) edge ids, then (another
    stride[m]) places in the CSC, if they were asked for. `cursor` is used up.
    """
    n = 0
    for i in range(len(ids)):
        count = np.int64(counts[i])
        if begins[i] < 0 and count > 0:
            owner = owner_of(ids[i], bounds)
            at = cursor[owner]
            for q in range(count):
                sources[n + q] = inbox[at + q]
                edges[n + q] = inbox[at + q + stride[owner]]
                places[n + q] = ~np.int64(inbox[at + q + 2 * stride[owner]]) if with_places else -1
            cursor[owner] = at + count
        n += count


@njit(inline="always")
def _local_index(u, table, mask, nodes, num_nodes):
    """Index of node u in the batch, and how many there are now. Dense table if mask < 0, else open addressing."""
    if mask < 0:
        index = table[u]
        if index < 0:
            index = num_nodes
            table[u] = index
            nodes[index] = u
            num_nodes += 1
        return index, num_nodes
    place = np.int64(mix(np.uint64(u))) & mask
    while True:
        index = table[place]
        if index < 0:
            index = num_nodes
            table[place] = index
            nodes[index] = u
            return index, num_nodes + 1
        if nodes[index] == u:
            return index, num_nodes
        place = (place + 1) & mask


@compiled
def add_nodes(ids, table, mask, nodes, num_nodes):
    """Give ids (new or not) their index in the batch; returns how many nodes there are now."""
    for i in range(len(ids)):
        _, num_nodes = _local_index(ids[i], table, mask, nodes, num_nodes)
    return num_nodes


@compiled
def forget_nodes(nodes, table, mask):
    """Make the table empty again."""
    if mask < 0:
        for i in range(len(nodes)):
            table[nodes[i]] = -1
    else:
        table[:] = -1


@compiled
def relabel(sources, table, mask, nodes, num_nodes):
    """Replace ids by their indices in the batch, new ones getting the next; returns how many nodes there are now.

    `nodes` has room for one more than there will be.
    """
    if mask < 0:
        # Without a branch: whether a node is new cannot be predicted, and a wrong guess costs more than two stores.
        for n in range(len(sources)):
            u = sources[n]
            index = np.int64(table[u])
            is_new = index < 0
            index = num_nodes if is_new else index
            table[u] = index
            nodes[num_nodes] = u
            sources[n] = index
            num_nodes += np.int64(is_new)
    else:
        for n in range(len(sources)):
            sources[n], num_nodes = _local_index(sources[n], table, mask, nodes, num_nodes)
    return num_nodes


@compiled
def repeat_destinations(counts, first, columns):
    """Index of each edge's destination: first + i, counts[i] times."""
    n = 0
    for i in range(len(counts)):
        for _ in range(counts[i]):
            columns[n] = first + i
            n += 1


@compiled
def uncomplement(places):
    """Undo what `take_answers` does to places."""
    for n in range(len(places)):
        if places[n] < 0:
            places[n] = ~places[n]
