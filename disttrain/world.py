"""The world: which rank this is, on which machine and device, and all that ranks say to each other about control.

Only this module, and `environment.py` before torch is there, read torchrun's environment. One process without
torchrun is a world of size one: the same code runs, over a store in its own memory. Bulk data (neighbours, features,
gradients) does not pass through here.
"""

from __future__ import annotations

import os
import pickle
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from .config import ExperimentError

T = TypeVar("T")

_BEAT_SECONDS = 1.0
_POLL_SECONDS = 0.5
_GRACE_SECONDS = 3.0


class PeerError(RuntimeError):
    """Another rank failed, or did not answer in time. The message says who waited for whom, and in what."""


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
    store: Store
    """Short notes between ranks; rank 0 holds it."""
    _control: dist.ProcessGroup
    _free: list[dist.ProcessGroup] = field(default_factory=list)
    _turns: dict[str, int] = field(default_factory=dict)

    @staticmethod
    @contextmanager
    def start(device: str = "auto", timeout: float = 300.0, threads: int | None = None) -> Iterator[World]:
        """Join the other ranks; leave them when the block ends.

        Args:
            device: "auto" (the GPU of the local rank where there are GPUs), "cpu" or "cuda".
            timeout: seconds that one rank waits for another before it gives up with a `PeerError`.
            threads: compute threads of this rank; None: OMP_NUM_THREADS, else its share of the machine's cores.

        Raises:
            ExperimentError: "cuda" where there is none, or machines with unequal numbers of ranks.
            PeerError: the others did not come within `timeout`.
        """
        local_rank = int(os.environ.get("LOCAL_RANK", 0))
        local_size = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
        here = _choose_device(device, local_rank)
        if threads is None and "OMP_NUM_THREADS" not in os.environ:
            threads = max(1, (os.cpu_count() or 1) // local_size)
        if threads is not None:
            torch.set_num_threads(threads)
        if here.type == "cuda":
            torch.cuda.set_device(here)

        limit = timedelta(seconds=timeout)
        launched = "RANK" in os.environ
        try:
            if launched:
                store, rank, size = next(iter(rendezvous("env://", timeout=limit)))
            else:
                store, rank, size = dist.HashStore(), 0, 1  # pyright: ignore[reportPrivateImportUsage]
            store.set_timeout(limit)
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if here.type == "cuda" else "gloo",
                store=PrefixStore("groups", store),
                rank=rank,
                world_size=size,
                timeout=limit,
                device_id=here if here.type == "cuda" else None,
            )
            control = dist.new_group(backend="gloo", timeout=limit)
        except (dist.DistError, RuntimeError) as error:
            raise PeerError(
                f"rank {os.environ.get('RANK', 0)} on {socket.gethostname()} could not reach all of the "
                f"{os.environ.get('WORLD_SIZE', 1)} ranks within {timeout:g} s: {_first_line(error)}. Do all machines "
                "reach each other? (GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME choose the network interface.)"
            ) from error
        assert isinstance(control, dist.ProcessGroup)
        world = World(
            rank=rank,
            size=size,
            local_rank=local_rank,
            local_size=local_size,
            machine=int(os.environ.get("GROUP_RANK", 0)) if launched else 0,
            num_machines=size // local_size,
            host=socket.gethostname(),
            device=here,
            timeout=timeout,
            store=PrefixStore("control", store),
            _control=control,
        )
        left_well = False
        try:
            world._check_shape()
            yield world
            left_well = True
        finally:
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
            result = work()
        except ExperimentError as error:
            refused, cause = str(error), error
        except Exception as error:
            failed, cause = f"{type(error).__name__}: {error}", error
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
        wait.

        Raises:
            ExperimentError: `work` refused its input; on every rank.
            PeerError: on the waiting ranks: `work` failed in some other way, or its rank fell silent.
        """
        turn = self._turns[what] = self._turns.get(what, 0) + 1
        key = f"lead/{what}/{turn}/{self.machine if per_machine else 0}"
        worker = self.machine * self.local_size if per_machine else 0
        if self.rank == worker:
            return self._work(work, key, what)
        return self._await(key, worker, what)

    def _work(self, work: Callable[[], T], key: str, what: str) -> T:
        finished = threading.Event()

        def beat() -> None:
            count = 0
            while not finished.wait(_BEAT_SECONDS):
                count += 1
                try:
                    self.store.set(f"{key}/beat", str(count))
                except (RuntimeError, dist.DistError):
                    return  # the store is gone, and with it those who would listen

        self.store.set(f"{key}/beat", "0")
        pulse = threading.Thread(target=beat, name=f"beat: {what}", daemon=True)
        pulse.start()
        try:
            result = work()
            outcome = ("done", result)
        except ExperimentError as error:
            outcome = ("refused", str(error))
            raise
        except BaseException as error:
            outcome = ("failed", f"{type(error).__name__}: {error}")
            raise
        finally:
            finished.set()
            pulse.join()
            self.store.set(f"{key}/outcome", pickle.dumps(outcome))  # pyright: ignore
        return result

    def _await(self, key: str, worker: int, what: str) -> Any:
        last_beat, started = b"", time.monotonic()
        heard = started
        while True:
            try:
                if self.store.check([f"{key}/outcome"]):
                    break
                if self.store.check([f"{key}/beat"]):
                    beat = self.store.get(f"{key}/beat")
                    if beat != last_beat:
                        last_beat, heard = beat, time.monotonic()
            except RuntimeError as error:
                raise PeerError(f"{self}: rank {worker} was lost in {what}: {_first_line(error)}") from error
            now = time.monotonic()
            if now - heard > self.timeout:
                raise PeerError(
                    f"{self} waited for rank {worker} in {what}, which has been silent for {self.timeout:g} s"
                )
            # Not store.wait: each time that it runs out, torch writes a warning. At most a tenth of the wait is lost.
            time.sleep(min(_POLL_SECONDS, max(0.005, (now - started) / 10)))
        state, value = pickle.loads(self.store.get(f"{key}/outcome"))
        if state == "refused":
            raise ExperimentError(value)
        if state == "failed":
            raise PeerError(f"rank {worker} failed in {what}: {value}")
        return value

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

    def explain(self, error: Exception, what: str) -> PeerError:
        """Find out which ranks did not take part in a collective that failed.

        Ranks that are stuck in the same place say so through the store; those that stay silent are the ones waited for.
        Takes a few seconds at most.
        """
        if isinstance(error, PeerError):
            return error
        try:
            self.store.set(f"stuck/{self.rank}", what)
            others = [rank for rank in range(self.size) if rank != self.rank]
            self.listen([f"stuck/{rank}" for rank in others], _GRACE_SECONDS)
            silent = [rank for rank in others if not self.store.check([f"stuck/{rank}"])]
        except (RuntimeError, dist.DistError):
            return PeerError(
                f"{self}: {what} failed, and the store that rank 0 holds does not answer: rank 0 or its machine is "
                f"gone ({_first_line(error)})"
            )
        whom = f"rank{'s' if len(silent) > 1 else ''} {', '.join(map(str, silent))}" if silent else "the other ranks"
        return PeerError(f"{self} waited for {whom} in {what}, at most {self.timeout:g} s: {_first_line(error)}")

    def listen(self, keys: list[str], seconds: float) -> bool:
        """Wait until all keys are in the store, at most so long; whether they are.

        Not `store.wait`: each time that it runs out, torch writes warnings, and other threads cannot use the store.
        """
        deadline = time.monotonic() + seconds
        while not (found := not keys or self.store.check(keys)) and time.monotonic() < deadline:
            time.sleep(0.05)
        return found

    def _check_shape(self) -> None:
        shapes = self.gather((self.host, self.machine, self.local_size), "comparing machines")
        if len({local_size for _, _, local_size in shapes}) > 1:
            listed = ", ".join(sorted({f"{host}: {local_size}" for host, _, local_size in shapes}))
            raise ExperimentError(f"every machine must run the same number of ranks (--nproc-per-node), got {listed}")
        expected = [rank // self.local_size for rank in range(self.size)]
        if [machine for _, machine, _ in shapes] != expected:
            raise ExperimentError(
                "ranks must be numbered machine by machine, as torchrun does; got the machines "
                f"{[machine for _, machine, _ in shapes]} for ranks 0 to {self.size - 1}"
            )


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


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
