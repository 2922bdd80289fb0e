"""Hot rows: the remote rows that batches ask for most are kept on each machine, chosen by drawing batches beforehand.

Batches are functions of (seed, epoch, step), so that those of the first epochs can be drawn before training, without
their attributes: what is counted is what will be asked for then, and later epochs ask for much the same. Counting the
draws of some epochs, where others go by degree, is from Yang et al., "GNNLab: a factored system for sample-based GNN
training over GPUs", 2022.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from ..world import World
from . import row_kernels
from .columns import CachedRows, Columns, Table
from .features import FeatureFetcher
from .loader import NodeLoader
from .machine_memory import machine_memory
from .route import Route

_ID_BYTES = 4
"""What asking for a row costs beside the row itself."""

_ROUND_BYTES = 1 << 24
"""Rows are fetched in rounds of about so many bytes a rank."""

_ALIGN = 64


@dataclass(frozen=True)
class Draws:
    """Batches to be drawn beforehand."""

    loader: NodeLoader
    epochs: Sequence[int]
    weight: int
    """How much each row that they ask for counts."""


def fill_cache(world: World, columns: Columns, draws: Sequence[Draws], num_bytes: int) -> None:
    """Choose hot rows and fetch them, on every machine; batches of all loaders over `columns` use them from then on.

    A collective. Batches are the same bit for bit with and without. On a single machine there is nothing to do.

    Cost: drawing those batches (a third to a half of making them), a pass over 4 bytes per id of each table (nodes, and
    edges whose attributes batches carry), and the rows once over the network. 4 bytes per id of memory a machine while
    it chooses; then `num_bytes` at most.

    Raises:
        ExperimentError: a machine does not have the memory.
        PeerError: another machine failed, or did not answer in time.
    """
    if world.num_machines == 1 or num_bytes == 0 or not columns.tables:
        return
    counters = count_demand(world, columns, draws)
    chosen = _share_chosen(world, columns.tables, counters, num_bytes)
    del counters
    cached = _make_room(world, columns.tables, chosen)
    _fetch(world, columns, chosen, cached)
    world.barrier("filling the cache")
    columns.tables = [replace(table, cached=rows) for table, rows in zip(columns.tables, cached, strict=True)]


def count_demand(world: World, columns: Columns, draws: Sequence[Draws]) -> list[np.ndarray]:
    """Per table, how often each remote row is asked for by the batches of all ranks of this machine; uint32 [num ids].

    A collective. The counters are the machine's, all its ranks and their loader threads add to them.
    """
    sizes = [table.book.num_ids for table in columns.tables]
    memory = machine_memory(world, 4 * sum(sizes), "counting the use of remote rows").view(np.uint32)
    counters = np.split(memory, np.cumsum(sizes)[:-1])
    bounds = [table.book.bounds for table in columns.tables]

    for drawn in draws:
        weight = np.uint32(drawn.weight)

        def see(ids: Sequence[np.ndarray], weight: np.uint32 = weight) -> None:
            for wanted, book, counts in zip(ids, bounds, counters, strict=True):
                row_kernels.count_remote_ids(wanted, book, world.machine, weight, counts)

        for epoch in drawn.epochs:
            columns.bytes_to_fill += drawn.loader.draw(epoch, see)
    world.barrier("counting the use of remote rows")
    return counters


def choose_rows(counters: Sequence[np.ndarray], row_bytes: Sequence[int], num_bytes: int) -> list[np.ndarray]:
    """The ids, ascending, of the rows to keep per table: those that save most traffic for the memory they take.

    What a row saves is how often it is asked for, times its bytes; a table's first row also costs the table's index,
    a quarter of a byte per id. Among equals the first ids are taken.

    Args:
        counters: per table, how often each row was asked for.
        row_bytes: per table.
        num_bytes: that all rows and indices may take.

    Cost: two passes over the counters, and a sort of their different values.
    """
    groups = []
    for table, (counts, size) in enumerate(zip(counters, row_bytes, strict=True)):
        if size:
            values, numbers = np.unique(counts[counts > 0], return_counts=True)
            groups += [(-int(v) * (size + _ID_BYTES) / size, table, int(v), int(n)) for v, n in zip(values, numbers)]
    taken: list[dict[int, int]] = [{} for _ in counters]
    left = num_bytes
    for _, table, value, number in sorted(groups):
        room = left if taken[table] else left - index_bytes(len(counters[table]))
        number = min(number, room // row_bytes[table])
        if number > 0:
            left = room - number * row_bytes[table]
            taken[table][value] = number
    chosen = []
    for counts, numbers in zip(counters, taken, strict=True):
        if not numbers:
            chosen.append(np.empty(0, np.int64))
            continue
        least = min(numbers)  # of higher values all were taken
        ids = np.flatnonzero(counts >= least)
        rest = np.flatnonzero(counts[ids] == least)[numbers[least] :]
        chosen.append(np.delete(ids, rest))
    return chosen


def index_bytes(num_ids: int) -> int:
    return 16 * -(-num_ids // 64)


def fill_index(index: np.ndarray, ids: np.ndarray) -> None:
    """Enter ids (ascending, distinct) into zeros: uint64 [ids / 64, 2], see `CachedRows`."""
    words = ids >> 6
    np.bitwise_or.at(index[:, 0], words, np.uint64(1) << (ids & 63).astype(np.uint64))
    numbers = np.bincount(words, minlength=len(index))
    index[:, 1] = np.cumsum(numbers) - numbers


def _share_chosen(
    world: World, tables: Sequence[Table], counters: Sequence[np.ndarray], num_bytes: int
) -> list[np.ndarray]:
    """Each machine's first rank chooses; all its ranks get the ids, in shared memory."""
    chosen: list[np.ndarray] = []

    def choose() -> None:
        if world.leads_machine:
            chosen.extend(choose_rows(counters, [table.row_bytes for table in tables], num_bytes))

    world.together(choose, "choosing the rows to keep")
    lengths = world.gather([len(ids) for ids in chosen], "choosing the rows to keep")[world.machine * world.local_size]
    memory = machine_memory(world, 8 * sum(lengths), "the ids of the rows to keep").view(np.int64)
    parts = np.split(memory, np.cumsum(lengths)[:-1])
    for part, ids in zip(parts, chosen):
        part[:] = ids
    world.barrier("choosing the rows to keep")
    return parts


def _make_room(world: World, tables: Sequence[Table], chosen: Sequence[np.ndarray]) -> list[CachedRows]:
    """The machine's memory for the rows, still empty, and their indices."""
    places: list[int] = []
    end = 0
    for table, ids in zip(tables, chosen, strict=True):
        sizes = [index_bytes(table.book.num_ids) if len(ids) else 0, *(len(ids) * r.row_bytes for r in table.rows)]
        for size in sizes:
            places.append(end)
            end = -(-(end + size) // _ALIGN) * _ALIGN
    memory = machine_memory(world, end, "sampling.cache_bytes", reserve=True)
    at = iter(places)

    def array(dtype: np.dtype, rows: int, width: int) -> np.ndarray:
        begin = next(at)
        return memory[begin : begin + rows * width * dtype.itemsize].view(dtype).reshape(rows, width)

    cached = []
    for table, ids in zip(tables, chosen, strict=True):
        index = array(np.dtype(np.uint64), -(-table.book.num_ids // 64) if len(ids) else 0, 2)
        if world.leads_machine and len(ids):
            fill_index(index, ids)
        cached.append(CachedRows(index, [array(r.travelling, len(ids), r.words.shape[1]) for r in table.rows]))
    return cached


def _fetch(world: World, columns: Columns, chosen: Sequence[np.ndarray], cached: Sequence[CachedRows]) -> None:
    """Each rank of a machine fetches every so-manieth row of each table, in rounds that all machines make together."""
    tables, share = columns.tables, slice(world.local_rank, None, world.local_size)
    mine = [ids[share] for ids in chosen]
    steps = [max(1, _ROUND_BYTES // (len(tables) * max(1, table.row_bytes))) for table in tables]
    rounds = max((-(-len(ids) // step) for ids, step in zip(mine, steps, strict=True)), default=0)
    rounds = max(world.gather(rounds, "filling the cache"))
    with world.exchange_groups(1) as groups:
        route = Route(world, groups[0])
        fetcher = FeatureFetcher(columns, route)
        for number in range(rounds):
            parts = [slice(number * step, (number + 1) * step) for step in steps]
            fetched = fetcher.fetch_ids([ids[part] for ids, part in zip(mine, parts, strict=True)])
            for table, part, target in zip(tables, parts, cached, strict=True):
                for rows, kept in zip(table.rows, target.rows, strict=True):
                    _keep(fetched[rows.column], kept[share][part], rows.halved)
        columns.bytes_to_fill += route.bytes_sent


def _keep(fetched: torch.Tensor, target: np.ndarray, halved: bool) -> None:
    if target.size:
        words = fetched.numpy().reshape(len(target), -1).view(np.uint32 if halved else target.dtype)
        if halved:
            narrow = np.empty(words.shape, np.uint16)
            row_kernels.halve_rows(words, narrow)
            words = narrow
        target[:] = words
