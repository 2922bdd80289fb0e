"""Torchrun agents and ranks that start at once: forked from a process that has imported what takes seconds.

They are real processes, run torchrun's and disttrain's own `main`, and end as any program does, through the
interpreter's teardown. What torchrun would start as a new interpreter is forked as well.

`python -m tests.preloaded FD` is the server; it takes requests from that socket.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NoReturn

import psutil

_SUBREAPER = 36  # prctl
_NEW_MOUNTS, _NEW_USERS, _NEW_NAMES, _NEW_NETWORK = 0x20000, 0x10000000, 0x4000000, 0x40000000  # unshare
_PRIVATE = 0x44000  # mount: MS_REC | MS_PRIVATE


class Preloaded:
    """The server, as its user sees it: `start` is a `tests.agents.Start`."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.preloaded", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            cwd=Path(__file__).resolve().parent.parent,
            env={**os.environ, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"},
        )
        theirs.close()
        self._lock = threading.Lock()

    def __enter__(self) -> Preloaded:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        self._socket.close()
        self._server.wait(20)

    def start(
        self, command: list[str], environment: dict[str, str], directory: Path, out: IO[bytes], err: IO[bytes]
    ) -> Forked:
        assert command[:2] == [sys.executable, "-m"], command
        request = {"command": command[2:], "environment": environment, "directory": str(directory)}
        answer = self._ask(request, [out.fileno(), err.fileno()])
        return Forked(answer["process"], self)

    def exit_code(self, process: int) -> int | None:
        return self._ask({"ended": process}, [])["code"]

    def descendants(self) -> list[psutil.Process]:
        """All that was started from here and lives, orphans too: they come to the server."""
        found = []
        for process in psutil.Process(self._server.pid).children(recursive=True):
            try:
                if process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.NoSuchProcess:
                pass
        return found

    def shared_memory(self) -> set[str]:
        """What lies in the /dev/shm of all that is started from here; nothing where they share that of the machine."""
        own = Path(f"/proc/{self._server.pid}/root/dev/shm")
        return set(os.listdir(own)) if own.stat().st_dev != os.stat("/dev/shm").st_dev else set()

    def _ask(self, request: dict[str, Any], files: list[int]) -> dict[str, Any]:
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(request).encode()], files)
            return json.loads(self._socket.recv(1 << 16))


class Forked:
    """As much of `subprocess.Popen` as tests use."""

    def __init__(self, pid: int, server: Preloaded) -> None:
        self.pid, self.returncode, self._server = pid, None, server

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._server.exit_code(self.pid)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def wait(self, timeout: float) -> int:
        deadline = threading.Event()
        for _ in range(max(1, int(timeout / 0.05))):
            if (code := self.poll()) is not None:
                return code
            deadline.wait(0.05)
        raise subprocess.TimeoutExpired(str(self.pid), timeout)


def _serve(line: socket.socket) -> None:
    libc = ctypes.CDLL(None)
    libc.prctl(_SUBREAPER, 1, 0, 0, 0)
    # A /dev/shm of its own, so that others do not disturb what is counted there.
    if _leave_mounts(libc) and libc.mount(b"none", b"/", None, _PRIVATE, None) == 0:
        libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, None)
    _load()
    codes: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([line], [], [], 0.05)
        while True:  # reap, orphans too
            try:
                process, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if not process:
                break
            codes[process] = os.waitstatus_to_exitcode(status)
        if not ready:
            continue
        message, files, _, _ = socket.recv_fds(line, 1 << 20, 2)
        if not message:
            return
        request = json.loads(message)
        if "ended" in request:
            line.send(json.dumps({"code": codes.get(request["ended"])}).encode())
            continue
        child = os.fork()
        if not child:
            line.close()
            os.dup2(files[0], 1)
            os.dup2(files[1], 2)
            os.setsid()
            _become(request["command"], request["environment"], request["directory"])
        for file in files:
            os.close(file)
        line.send(json.dumps({"process": child}).encode())


def _leave_mounts(libc: ctypes.CDLL) -> bool:
    """Have mounts of this process's own, if need be in a user namespace, in which it stays the user that it is."""
    user, group = os.getuid(), os.getgid()
    if libc.unshare(_NEW_MOUNTS) == 0:
        return True
    if libc.unshare(_NEW_USERS | _NEW_MOUNTS) != 0:
        return False
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    return True


def _load() -> None:
    import torch.distributed.run
    from torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler import SubprocessHandler

    from . import warm

    assert warm and torch.distributed.run

    def fork(self: Any, arguments: tuple[str, ...], environment: dict[str, str]) -> Any:
        assert arguments[0] == sys.executable, arguments
        options = list(arguments[1:])
        while options[0] == "-u":
            options.pop(0)
        return _ForkedRank(options[1:], environment)

    SubprocessHandler._popen = fork  # pyright: ignore[reportAttributeAccessIssue]


class _ForkedRank:
    """What torchrun's handler uses of `Popen`."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self.args, self.returncode = command, None
        self.pid = os.fork()
        if not self.pid:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.setsid()
            _close_inherited()
            _become(command, environment, os.getcwd())

    def poll(self) -> int | None:
        if self.returncode is None:
            process, status = os.waitpid(self.pid, os.WNOHANG)
            if process:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        pause, waited = threading.Event(), 0.0
        while self.poll() is None:
            pause.wait(0.05)
            waited += 0.05
            if timeout is not None and waited > timeout:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


def _close_inherited() -> None:
    """As a new interpreter would not have them. The numbers stay taken: torch's copies of its connections, which came
    along, close them again when they are torn down."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in map(int, os.listdir("/proc/self/fd")):
        if number > 2 and number != nothing:
            try:
                os.fstat(number)
            except OSError:
                continue
            os.dup2(nothing, number, inheritable=False)


def _enter(network: str, name: str) -> None:
    """From now on this process and those it starts are on another host.

    Args:
        network: the file of its network namespace.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    file = os.open(network, os.O_RDONLY)
    if libc.setns(file, _NEW_NETWORK) or libc.unshare(_NEW_NAMES):
        raise OSError(ctypes.get_errno(), f"entering {network}")
    os.close(file)
    socket.sethostname(name)


def _become(command: list[str], environment: dict[str, str], directory: str) -> NoReturn:
    """Run `python -m <command>` in this process."""
    module, *arguments = command
    host = environment.pop("DISTTRAIN_TEST_HOST", "")  # as `tests.cluster.hosts` has it; ranks are there already
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # found again, in the environment
    os.chdir(directory)
    if host:
        _enter(*host.split())
    if "DISTTRAIN_TEST_USER" in environment:
        os.setgroups([])
        os.setgid(int(environment["DISTTRAIN_TEST_USER"]))
        os.setuid(int(environment["DISTTRAIN_TEST_USER"]))
    sys.path[0] = directory
    sys.argv = [module, *arguments]
    if module == "disttrain":
        from disttrain.__main__ import main
    else:
        assert module == "torch.distributed.run", module
        from torch.distributed.run import main
    try:
        main()
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    # The interpreter's teardown, and C's, but not through the frames of those that were forked.
    ctypes.pythonapi.Py_Exit(code)
    raise AssertionError


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
