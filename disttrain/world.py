"""The world: which rank this is, on which machine and device, and all that ranks say to each other about control.

Only this module, and `environment.py` before torch is there, read torchrun's environment. One process without
torchrun is a world of size one: the same code runs, over a store in its own memory. Bulk data (neighbours, features,
gradients) does not pass through here.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from . import guard
from .config import ExperimentError
from .failure import (
    explain,
    failed_meanwhile,
    first_line,
    hear_no_more,
    hung,
    leave_with_the_others,
    ran_out,
    said,
    say_over,
)
from .lead import Lead
from .notes import Notes
from .place import Place, Preflight, shape_refusal
from .refusal import PeerError
from .stop import Stopped, stopped_by

__all__ = ["PeerError", "World"]

T = TypeVar("T")


@dataclass(frozen=True)
class World:
    """One rank's place among all ranks. Made by `World.start`, once per process."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    machine: int
    """Which torchrun agent started this rank, 0-based."""
    num_machines: int
    host: str
    device: torch.device
    timeout: float
    """Seconds that one rank waits for another."""
    notes: Notes
    """Short notes between ranks; rank 0 holds them."""
    _control: dist.ProcessGroup
    _free: list[dist.ProcessGroup] = field(default_factory=list)
    _turns: dict[str, int] = field(default_factory=dict)

    @staticmethod
    @contextmanager
    def start(
        device: str = "auto", timeout: float = 300.0, threads: int | None = None, preflight: Preflight | None = None
    ) -> Iterator[World]:
        """Join the other ranks; leave them when the block ends.

        Args:
            device: "auto" (the GPU of the local rank where there are GPUs), "cpu" or "cuda".
            timeout: seconds that one rank waits for another before it gives up with a `PeerError`.
            threads: compute threads of this rank; None: OMP_NUM_THREADS, else its share of the cores that it may use.
            preflight: looks at all ranks once they have reached the store, before anything else connects them. What
                it raises is raised here.

        Raises:
            ExperimentError: "cuda" where there is none, or machines with unequal numbers of ranks.
            PeerError: the others did not come within `timeout`.
        """
        local_rank = int(os.environ.get("LOCAL_RANK", 0))
        local_size = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
        launched, refused = "RANK" in os.environ, ""
        try:
            here = _choose_device(device, local_rank)
        except ExperimentError as error:
            if preflight is None or not launched:
                raise
            here, refused = torch.device("cpu"), str(error)  # said by all ranks together, in the preflight
        if threads is None and "OMP_NUM_THREADS" not in os.environ:
            threads = max(1, _usable_cores() // local_size)
        if threads is not None:
            torch.set_num_threads(threads)
        if here.type == "cuda":
            torch.cuda.set_device(here)

        limit = timedelta(seconds=timeout)
        rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        machine = int(os.environ.get("GROUP_RANK", 0)) if launched else 0
        if size > 1:
            guard.expect_beats(timeout)
        with _joining(rank, size, timeout):
            store = _find_store(rank, size, timeout, preflight, local_rank == 0) if launched else _own_store()
            store.set_timeout(limit)
        notes = Notes(_own_access(PrefixStore("control", store)), timeout, watch=size > 1)
        if preflight is not None:
            place = Place(rank, size, local_rank, local_size, machine, here, refused, timeout, notes)
            with guard.standing("comparing the machines"):
                preflight.look(place)
        with _joining(rank, size, timeout):
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if here.type == "cuda" else "gloo",
                store=PrefixStore("groups", store),
                rank=rank,
                world_size=size,
                timeout=limit,
                device_id=here if here.type == "cuda" else None,
            )
            control = dist.new_group(backend="gloo", timeout=limit)
        assert isinstance(control, dist.ProcessGroup)
        world = World(
            rank=rank,
            size=size,
            local_rank=local_rank,
            local_size=local_size,
            machine=machine,
            num_machines=size // local_size,
            host=socket.gethostname(),
            device=here,
            timeout=timeout,
            notes=notes,
            _control=control,
        )
        if size > 1:
            threading.Thread(target=leave_with_the_others, args=[world], name="vigil", daemon=True).start()
        left_well = False
        try:
            world._check_shape()
            yield world
            guard.stand("ending")
            # Rank 0 takes the store along; until then, that it is gone means that rank 0 has failed.
            world.barrier("ending")
            left_well = True
        except SystemExit as error:
            failure = RuntimeError(f"sys.exit({error.code!r}) was called, which ends one rank and leaves the others")
            say_over(world, failure)
            raise failure from error
        except BaseException as raised:
            if launched:
                hear_no_more()
            error = stopped_by(raised) or raised  # code of others may have caught it, and raised something else
            if isinstance(error, Stopped) and (failure := failed_meanwhile(world, error)) is not None:
                raise failure from error
            if isinstance(error, Stopped) and world.is_lead and not error.said:
                print(f"disttrain: {error}", file=sys.stderr, flush=True)
                error.said = True
            say_over(world, error)
            if error is raised:
                raise
            raise error from None
        finally:
            world.notes.stop_watching()
            # With an error on its way, peers may be gone, and taking groups down would wait for them.
            if left_well or size == 1:
                world._free.clear()
                dist.destroy_process_group()

    @property
    def is_lead(self) -> bool:
        return self.rank == 0

    @property
    def leads_machine(self) -> bool:
        return self.local_rank == 0

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.host}"

    def gather(self, value: T, what: str) -> list[T]:
        """Every rank's value (anything that pickles), in rank order, on every rank."""
        values: list[Any] = [None] * self.size
        with self.waiting(what):
            dist.all_gather_object(values, value, group=self._control)
        return values

    def broadcast(self, value: T, what: str, source: int = 0) -> T:
        """The value that rank `source` gave, on every rank."""
        box = [value]
        with self.waiting(what):
            dist.broadcast_object_list(box, src=source, group=self._control)
        return box[0]

    def broadcast_tensor(self, tensor: torch.Tensor, what: str, source: int = 0) -> torch.Tensor:
        """Overwrite a CPU tensor on every rank with that of rank `source`; returns it."""
        with self.waiting(what):
            dist.broadcast(tensor, src=source, group=self._control)
        return tensor

    def sum(self, tensor: torch.Tensor, what: str = "sum") -> torch.Tensor:
        """The sum over all ranks of a CPU tensor, on every rank; the given one is left as it is."""
        total = tensor.clone()
        with self.waiting(what):
            dist.all_reduce(total, group=self._control)
        return total

    def sum_of(self, numbers: list[float], what: str) -> list[float]:
        """`sum` of a few numbers."""
        return self.sum(torch.tensor(numbers, dtype=torch.float64), what).tolist()

    def barrier(self, what: str) -> None:
        with self.waiting(what):
            dist.barrier(group=self._control)

    def together(self, work: Callable[[], T], what: str) -> T:
        """Run `work` on every rank; it succeeds on all of them or fails on all of them.

        Raises:
            ExperimentError: some rank refused its input. One message, the same on every rank; it names ranks and hosts
                unless all say the same.
            PeerError: on the ranks that were well, when another one failed in some other way.
        """
        result, refused, failed, cause = None, None, None, None
        try:
            with guard.standing(what):
                result = work()
        except (Exception, SystemExit) as error:
            if (stopped := stopped_by(error)) is not None:  # the others hear of it as of all that ends a job
                raise stopped from None
            if isinstance(error, ExperimentError):
                refused, cause = str(error), error
            else:
                failed, cause = said(error), error
        reports = self.gather((self.host, refused, failed), what)
        if failed is not None:
            assert cause is not None
            raise cause
        for rank, (host, _, failure) in enumerate(reports):
            if failure is not None:
                raise PeerError(f"rank {rank} on {host} failed in {what}: {failure}")
        refusals = {rank: (host, text) for rank, (host, text, _) in enumerate(reports) if text is not None}
        if refusals:
            texts = {text for _, text in refusals.values()}
            if len(refusals) == self.size and len(texts) == 1:
                raise ExperimentError(texts.pop()) from cause
            raise ExperimentError("\n".join(f"rank {r} on {host}: {text}" for r, (host, text) in refusals.items()))
        return result  # type: ignore[return-value]

    def lead(self, work: Callable[[], T], what: str, per_machine: bool = False) -> T:
        """Rank 0 (or local rank 0 of each machine) runs `work`; all ranks get its result (anything that pickles).

        The others wait for as long as the worker shows that it is alive: a beat each second from a thread of its own,
        so `work` must not hold the GIL for longer than `timeout` at a stretch. Silence for `timeout` seconds ends the
        wait. With `per_machine`, each rank gets its own machine's result, once all machines have theirs.

        Raises:
            ExperimentError: `work` refused its input, on some machine; on every rank, with the rank's name where others
                were well.
            PeerError: on the waiting ranks: `work` failed in some other way, or its rank fell silent.
        """
        turn = self._turns[what] = self._turns.get(what, 0) + 1
        workers = range(0, self.size, self.local_size) if per_machine else [0]
        mine = self.machine * self.local_size if per_machine else 0
        with guard.standing(what):
            return Lead(self, f"lead/{what}/{turn}", what, workers).result(work, mine)

    @contextmanager
    def exchange_groups(self, count: int) -> Iterator[list[dist.ProcessGroup]]:
        """Borrow `count` gloo groups of the ranks with this local rank on every machine, one for each loader worker.

        They are made once, and go back when the block ends: loaders come and go. Every rank has to enter and leave such
        blocks in the same order. On a single machine there is nothing to exchange, and the list is empty.
        """
        if self.num_machines == 1:
            yield []
            return
        while len(self._free) < count:
            self._free.append(self._new_exchange_group())
        borrowed = self._free[:count]
        del self._free[:count]
        try:
            yield borrowed
        except GeneratorExit:  # a generator around the block was closed, which is how each training epoch ends
            self._free[:0] = borrowed
            raise
        # Not after an error: a group that failed in mid-message is of no more use.
        self._free[:0] = borrowed

    def _new_exchange_group(self) -> dist.ProcessGroup:
        with self.waiting("making process groups"):
            groups = [
                dist.new_group(
                    [machine * self.local_size + local for machine in range(self.num_machines)],
                    backend="gloo",
                    timeout=timedelta(seconds=self.timeout),
                )
                for local in range(self.local_size)
            ]
        mine = groups[self.local_rank]
        assert isinstance(mine, dist.ProcessGroup)
        return mine

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Around a collective: its failure becomes a `PeerError` that says who waited for whom, and in what."""
        try:
            yield
        except RuntimeError as error:
            raise self.explain(error, what) from error

    def explain(self, error: Exception, what: str) -> Exception:
        """Find out why a collective failed: which rank failed, or which ones did not take part.

        Takes a few seconds at most.
        """
        return explain(self, error, what)

    def _check_shape(self) -> None:
        shapes = self.gather((self.host, self.machine, self.local_size), "comparing machines")
        if refusal := shape_refusal(shapes):
            raise ExperimentError(refusal)


@contextmanager
def _joining(rank: int, size: int, timeout: float) -> Iterator[None]:
    try:
        yield
    except PeerError:
        raise
    except (dist.DistError, RuntimeError) as error:
        text = (
            f"rank {rank} on {socket.gethostname()} could not reach all of the {size} ranks within {timeout:g} s: "
            f"{first_line(error)}. Do all machines reach each other? (GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME choose "
            "the network interface.)"
        )
        raise (hung(text) if ran_out(error) else PeerError(text)) from error


def _find_store(rank: int, size: int, timeout: float, preflight: Preflight | None, aloud: bool) -> Store:
    """The store of all ranks, where torchrun says that it is: rank 0 holds it, or its agent.

    As torch's `env://` does it, but without waiting for the others: who waits for them later says which are missing.
    """
    missing = [name for name in ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise ExperimentError(f"RANK is set and {', '.join(missing)} not: start ranks with torchrun, or without RANK")
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    holds = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    if preflight is not None:
        preflight.reach(address, port, timeout, holds=holds, aloud=aloud)
    limit = timedelta(seconds=timeout)
    return dist.TCPStore(address, port, size, holds, limit, wait_for_workers=False, multi_tenant=holds)  # pyright: ignore


def _own_store() -> Store:
    """Of a process by itself, in its memory."""
    return dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]


def _usable_cores() -> int:
    """Not all of the machine's: a batch system gives a job some of them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _choose_device(device: str, local_rank: int) -> torch.device:
    available = torch.cuda.is_available()
    if device == "cuda" and not available:
        raise ExperimentError(
            f"train.device is cuda, but {socket.gethostname()} has no usable GPU; set train.device=cpu or auto"
        )
    if device == "cpu" or not available:
        return torch.device("cpu")
    if local_rank >= torch.cuda.device_count():
        raise ExperimentError(
            f"local rank {local_rank} on {socket.gethostname()} has no GPU of its own ({torch.cuda.device_count()} "
            "found); start at most one rank per GPU, or set train.device=cpu"
        )
    return torch.device("cuda", local_rank)


def _own_access(store: Store) -> Store:
    """To the same store, but not held up while another thread waits in it (where torch knows such a thing)."""
    return store.clone() if hasattr(store, "clone") else store  # pyright: ignore[reportAttributeAccessIssue]
