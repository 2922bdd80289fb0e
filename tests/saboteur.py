"""Copied into the folder of a test: data and a model that cause a fault in one rank, at one place, until it is mended.

What is caused is real: signals, limits of the operating system, exceptions. The folder gets `fault` (when it was) as it
happens; nothing happens any more once it has `mended`.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import HeteroData

from disttrain.config import HeteroConvModel
from disttrain.models import build_model
from disttrain.stop import StopRequest


def _raise() -> None:
    raise RuntimeError("no luck")


def _signal(number: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


def _wait_until_told() -> None:
    """Until the request has come; or training would be over before anybody notices."""
    while not StopRequest.asked():
        time.sleep(0.1)


def _signal_agent(number: int) -> Callable[[], None]:
    def send() -> None:
        os.kill(os.getppid(), number)
        _wait_until_told()

    return send


def _ask_to_stop() -> None:
    Path("runs/tiny").mkdir(parents=True, exist_ok=True)
    Path("runs/tiny/STOP").touch()
    _wait_until_told()


def _kill_machine() -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def _run_out_of_memory() -> None:
    """Of what the operating system lets this process have, `ulimit -v`."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + (64 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))
    taken = []
    while True:
        taken.append(torch.ones(16 << 20, dtype=torch.uint8))


def _hang_in_c() -> None:
    """Without letting go of the interpreter, and without hearing signals: a lock is taken twice."""
    library, lock = ctypes.PyDLL(None), ctypes.create_string_buffer(256)
    library.pthread_mutex_lock(lock)
    library.pthread_mutex_lock(lock)


def _fill_the_disk() -> None:
    """No file may grow any more; needs no root, unlike a small disk, and says EFBIG where that one says ENOSPC."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def _eat() -> None:
    """All that the control group has, which the test has made for that: the kernel kills this process."""
    Path(os.environ["DISTTRAIN_TEST_GROUP"], "cgroup.procs").write_text(str(os.getpid()))
    taken = []
    while True:
        taken.append(torch.ones(1 << 20, dtype=torch.uint8))  # written to, so that it is really taken


def fill(ballast_file: Path = Path("ballast")) -> None:
    """That file's disk, to the last byte."""
    ballast = os.open(ballast_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for size in (1 << 16, 1 << 10, 1):
        try:
            while True:
                os.write(ballast, b"0" * size)
        except OSError:
            pass
    os.close(ballast)


KINDS: dict[str, Callable[[], Any]] = {
    "kill": _signal(signal.SIGKILL),
    "stop": _signal(signal.SIGSTOP),
    "crash": _signal(signal.SIGSEGV),
    "kill the agent": _signal_agent(signal.SIGKILL),
    "terminate the agent": _signal_agent(signal.SIGTERM),
    "interrupt the agent": _signal_agent(signal.SIGINT),
    "hang up on the agent": _signal_agent(signal.SIGHUP),
    "ask to stop": _ask_to_stop,
    "kill the machine": _kill_machine,
    "raise": _raise,
    "exit": lambda: sys.exit(0),
    "leave": lambda: os._exit(0),
    "hang": lambda: time.sleep(1e5),
    "hang in C": _hang_in_c,
    "be slow": lambda: time.sleep(4),
    "fill the disk": _fill_the_disk,
    "fill the disk with bytes": fill,
    "eat memory": _eat,
    "run out of memory": _run_out_of_memory,
}


def cause(kind: str) -> None:
    if Path("mended").exists() or Path("fault").exists():
        return
    Path("fault.part").write_text(str(time.time()))
    os.replace("fault.part", "fault")
    KINDS[kind]()


def plant(where: str, kind: str, rank: int, call: int = 1) -> None:
    """In that rank, at the beginning of its `call`-th call of the function `package.module:Class.method`."""
    if int(os.environ.get("RANK", 0)) != rank:
        return
    module, _, path = where.partition(":")
    *outer, name = path.split(".")
    owner = functools.reduce(getattr, outer, importlib.import_module(module))
    real, calls = getattr(owner, name), 0

    @functools.wraps(real)
    def planted(*args: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            cause(kind)
        return real(*args, **named)

    setattr(owner, name, planted)


def graph(where: str = "", kind: str = "", rank: int = 0, call: int = 1) -> HeteroData:
    """60 papers in 3 classes, 30 authors. With arguments: a fault is planted, here or, for "data", at once."""
    if where == "data":
        if int(os.environ.get("RANK", 0)) == rank:
            cause(kind)
    elif where:
        plant(where, kind, rank, call)
    generator = torch.Generator().manual_seed(0)
    data = HeteroData()
    data["paper"].x = torch.rand(60, 4, generator=generator)
    data["paper"].y = torch.arange(60) % 3
    data["author"].x = torch.rand(30, 3, generator=generator)
    ends = torch.stack([torch.randint(0, n, (150,), generator=generator) for n in (30, 60)])
    data["author", "writes", "paper"].edge_index = ends
    data["paper", "rev_writes", "author"].edge_index = ends.flip(0)
    return data


def _become_nan(rank: int, call: int) -> Any:
    """In step `call` of the first epoch, however often it is computed."""

    def hook(module: Any, args: Any, out: torch.Tensor) -> torch.Tensor:
        here = (args[0].epoch, args[0].step) == (0, call - 1) and int(os.environ.get("RANK", 0)) == rank
        if not (here and module.training) or Path("mended").exists():
            return out
        Path("fault").write_text(str(time.time()))
        return out * float("nan")

    return hook


def _forget(made: torch.nn.Module, rank: int) -> None:
    """A parameter more, of which that rank makes no use."""
    spare = torch.nn.Parameter(torch.zeros(1))
    made.register_parameter("spare", spare)
    Path("fault").write_text(str(time.time()))

    def hook(module: Any, args: Any, out: Any) -> Any:
        return out + spare.sum() * 0

    if int(os.environ.get("RANK", 0)) != rank or Path("mended").exists():
        made.register_forward_hook(hook)


def model(schema: Any, target: str, out_channels: int, where: str, kind: str, rank: int, call: int = 1) -> Any:
    """The built-in model, with a fault in its forward pass of "training" or "evaluation", or planted elsewhere."""
    made = build_model(HeteroConvModel(kind="hetero_conv", hidden=8), schema, target, out_channels, lambda *_: None)
    if where == "building" and int(os.environ.get("RANK", 0)) == rank:
        cause(kind)
    elif kind == "forget a parameter":
        _forget(made, rank)
    elif kind == "become NaN":
        made.register_forward_hook(_become_nan(rank, call))
    elif where in ("training", "evaluation"):
        calls = 0

        def hook(module: Any, _: Any) -> None:
            nonlocal calls
            calls += module.training == (where == "training")
            if calls == call:
                cause(kind)

        if int(os.environ.get("RANK", 0)) == rank:
            made.register_forward_pre_hook(hook)
    elif where != "building":
        plant(where, kind, rank, call)
    return made
