"""Run a function on several gloo ranks, as torchrun would start them, and bring its results or first error back."""

from __future__ import annotations

import multiprocessing as mp
import os
import pickle
import queue
import traceback
from collections.abc import Callable
from typing import Any

from disttrain.world import World

from .ports import free_port

_MOST_SECONDS = 300


def _rank(fn: Any, rank: int, size: int, machines: int, port: int, timeout: float, args: tuple, results: Any) -> None:
    local_size = size // machines
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(size),
        LOCAL_RANK=str(rank % local_size),
        LOCAL_WORLD_SIZE=str(local_size),
        GROUP_RANK=str(rank // local_size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        OMP_NUM_THREADS="1",
    )
    try:
        with World.start(device="cpu", timeout=timeout, threads=1) as world:
            result = pickle.dumps(fn(world, *args))
        results.put((rank, result, None))
    except BaseException as error:
        results.put((rank, None, (type(error).__name__, str(error), traceback.format_exc())))
        results.close()
        results.join_thread()
        os._exit(1)


class RankFailed(AssertionError):
    """A rank raised. `kind` and `text` are those of its exception."""

    def __init__(self, rank: int, kind: str, text: str, trace: str) -> None:
        super().__init__(f"rank {rank}: {trace}")
        self.rank, self.kind, self.text = rank, kind, text


def exit_codes(fn: Callable[..., Any], size: int, *args: Any, timeout: float = 20.0) -> list[int | None]:
    """How the ranks of `fn` end, one rank a machine; for those that are killed. None: it has not ended in time.

    `fn` must be importable.
    """
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["tests.warm"])
    port, results = free_port(), context.Queue()
    processes = [
        context.Process(target=_rank, args=(fn, rank, size, size, port, timeout, args, results), daemon=True)
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(_MOST_SECONDS)
    ended = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    return ended


def run_ranks(
    fn: Callable[..., Any], size: int, *args: Any, machines: int | None = None, timeout: float = 60.0
) -> list[Any]:
    """`fn(world, *args)` on `size` processes that stand for `machines` machines (one rank each unless said otherwise).

    `fn` must be importable (a function at the top of a module). Returns the results in rank order.

    Raises:
        RankFailed: the first rank that raised, with its traceback.
    """
    # Ranks are forked from a server that has imported what takes long (and has no threads yet).
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["tests.warm"])
    results = context.Queue()
    port = free_port()
    processes = [
        context.Process(target=_rank, args=(fn, rank, size, machines or size, port, timeout, args, results))
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    try:
        found: dict[int, Any] = {}
        for _ in range(size):
            try:
                rank, result, failure = results.get(timeout=_MOST_SECONDS)
            except queue.Empty:
                raise AssertionError(f"only ranks {sorted(found)} of {size} ended within {_MOST_SECONDS} s") from None
            if failure is not None:
                raise RankFailed(rank, *failure)
            found[rank] = pickle.loads(result)
        for process in processes:
            process.join(_MOST_SECONDS)
            assert process.exitcode == 0, f"a rank ended with {process.exitcode}"
        return [found[rank] for rank in range(size)]
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
                process.join()
