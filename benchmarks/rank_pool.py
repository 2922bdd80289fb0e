"""Ranks that stay alive and do what they are told: so that contestants can take turns within one run."""

from __future__ import annotations

import multiprocessing as mp
import os
import socket
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from slow_network import enter

from disttrain.world import World

_MOST_SECONDS = 900.0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _serve(make: Callable[..., Any], args: tuple, environment: dict[str, str], network: str | None, line: Any) -> None:
    os.environ.update(environment)
    try:
        if network is not None:
            enter(network)
        with World.start(device="cpu", timeout=_MOST_SECONDS, threads=1) as world:
            served = make(world, *args)
            line.send((True, None))
            while (order := line.recv()) is not None:
                method, arguments = order
                line.send((True, getattr(served, method)(*arguments)))
    except BaseException:
        line.send((False, traceback.format_exc()))
        os._exit(1)


class RankPool:
    """`machines * ranks_per_machine` processes, started as torchrun would start them; each makes `make(world, *args)`.

    `call` runs a method of it on all of them. In between they sleep. `make` must be importable.

    Args:
        hosts: for each machine a network namespace and its address in it; None: all are this machine, over loopback.
        preload: modules that a server has imported, from which the processes are forked; they may start processes of
            their own. None: each process is a new one.
    """

    def __init__(
        self,
        make: Callable[..., Any],
        *args: Any,
        machines: int = 1,
        ranks_per_machine: int = 1,
        hosts: Sequence[tuple[str, str]] | None = None,
        preload: Sequence[str] = (),
    ) -> None:
        context: Any = mp.get_context("forkserver" if preload else "spawn")
        if preload:
            context.set_forkserver_preload(list(preload))
        self._lines, self._processes = [], []
        size, port = machines * ranks_per_machine, _free_port()
        for rank in range(size):
            environment = {
                "RANK": str(rank),
                "WORLD_SIZE": str(size),
                "LOCAL_RANK": str(rank % ranks_per_machine),
                "LOCAL_WORLD_SIZE": str(ranks_per_machine),
                "GROUP_RANK": str(rank // ranks_per_machine),
                "MASTER_ADDR": "127.0.0.1" if hosts is None else hosts[0][1],
                "MASTER_PORT": str(port),
                **({} if hosts is None else {"GLOO_SOCKET_IFNAME": "eth0"}),
            }
            network = None if hosts is None else hosts[rank // ranks_per_machine][0]
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(make, args, environment, network, there), daemon=not preload)
            process.start()
            there.close()
            self._lines.append(here)
            self._processes.append(process)
        self._answers()

    def _answers(self) -> list[Any]:
        answers = []
        for rank, line in enumerate(self._lines):
            if not line.poll(_MOST_SECONDS):
                raise RuntimeError(f"rank {rank} did not answer within {_MOST_SECONDS:g} s")
            well, answer = line.recv()
            if not well:
                raise RuntimeError(f"rank {rank} failed:\n{answer}")
            answers.append(answer)
        return answers

    def call(self, method: str, *args: Any) -> list[Any]:
        """The results of all ranks, in rank order."""
        for line in self._lines:
            line.send((method, args))
        return self._answers()

    def __enter__(self) -> RankPool:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        if kind is None:
            for line in self._lines:  # ranks leave together
                line.send(None)
        for process in self._processes:
            if kind is None:
                process.join(_MOST_SECONDS)
            if process.is_alive():
                process.kill()
                process.join()
