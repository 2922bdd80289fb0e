"""A job of several machines that live and die together, as a bash script; and how it is run.

The script is what `--dry-run` prints, and does all of it without Python: it starts the machines, ends the others when
one has failed, and hands on a request to stop. A machine is a process that lasts as long: torchrun here, or the client
of a container on another host.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from ..config import ExperimentError
from .shell import shell_command

_SET_DEATH_SIGNAL, _SET_SUBREAPER = 1, 36  # prctl
_SECONDS_TO_VANISH = 10.0
_MOST_BYTES = (128 << 10) - 1


def together_script(
    about: Sequence[str],
    prepare: Sequence[str],
    machines: Sequence[Sequence[str]],
    *,
    stop: Sequence[str],
    kill: Sequence[str],
    needed: int,
    grace: int,
    fresh: bool = False,
) -> str:
    """The script of a job.

    Args:
        about: what it says of itself.
        prepare: lines of shell that come first.
        machines: the command of each, whose exit code is the machine's.
        stop: lines of shell that ask machine number $1 (from 1) to end, with a checkpoint; $2 is its process, empty
            when that has ended.
        kill: likewise, at once.
        needed: so many machines have to last; with fewer, the others are stopped.
        grace: seconds for the machines to stop; then they are killed.
        fresh: the same again would begin anew.
    """
    lines = ["#!/usr/bin/env bash", *(f"# {line}".rstrip() for line in about), *prepare, "", _START]
    lines += ["stop() {  # machine, process: with a checkpoint", *(f"    {line}" for line in stop), "}", ""]
    lines += ["kill_now() {  # machine, process", *(f"    {line}" for line in kill), "}", ""]
    lines += [
        f"needed={needed} grace={grace}",
        _SUPERVISE.replace(_AGAIN, f"{_AGAIN} without --fresh" if fresh else _AGAIN),
    ]
    lines += [shell_command(["start", *command]) for command in machines]
    return "\n".join([*lines, "supervise", ""])


_START = """\
processes=()  # of the machines, in their order; empty of one that has ended

start() {  # in a session of its own: the terminal's Ctrl-C comes to this script only, and once
    setsid "$@" &
    processes+=($!)
}
"""

_AGAIN = "the same command"

_SUPERVISE = r"""code=0 lost=0 failed= deadline= heard=

to_all() {  # stop or kill_now
    for i in "${!processes[@]}"; do "$1" $((i + 1)) "${processes[i]}" & done 2>/dev/null
}

stop_all() {  # exit code
    [ -z "$deadline" ] || return
    code=$1 deadline=$((SECONDS + grace))
    to_all stop
}

hear() {  # exit code: of a signal; its name
    heard=${heard:-$2}
    if [ -n "$deadline" ]; then
        echo "asked to stop again: at once" >&2
        to_all kill_now
    else
        echo "asked to stop: all machines leave a checkpoint; asked again, they end at once" >&2
        stop_all "$1"
    fi
}

ended() {  # machine, exit code
    [ "$2" -ne 0 ] && [ -z "$deadline" ] || return
    first=${first:-$2} failed=${failed:-$1} lost=$((lost + 1))
    if [ $((${#processes[@]} - lost)) -ge "$needed" ]; then
        echo "machine $1 ended with exit code $2: the others go on" >&2
    else
        [ ${#processes[@]} = 1 ] || echo "machine $1 ended with exit code $2: the others are stopped" >&2
        stop_all "$first"
    fi
}

supervise() {
    local running=1 i
    while [ "$running" ]; do
        sleep 0.3 & wait $!  # not `sleep` alone: a signal is heard while bash waits
        running=
        for i in "${!processes[@]}"; do
            [ "${processes[i]}" ] || continue
            if kill -0 "${processes[i]}" 2>/dev/null; then
                running=1
            else
                wait "${processes[i]}"
                set -- $?
                processes[i]=
                ended $((i + 1)) "$1"
            fi
        done
        if [ "$running" ] && [ -n "$deadline" ] && [ "$SECONDS" -ge "$deadline" ]; then
            echo "not all machines have stopped within $grace s: they are killed" >&2
            to_all kill_now
            deadline=$((SECONDS + grace))
        fi
    done
    deadline=$((SECONDS + grace))  # for stop and kill_now, which may ask somebody who does not answer
    while [ "$(jobs -pr)" ] && [ "$SECONDS" -lt "$deadline" ]; do sleep 0.3 & wait $!; done
    kill -KILL $(jobs -pr) 2>/dev/null
    if [ "$heard" ]; then
        echo "stopped by $heard: the same command goes on" >&2
    elif [ "$code" -ne 0 ]; then
        echo "failed: machine $failed ended first, with exit code $code; above, lines with disttrain: say why" >&2
    fi
    exit "$code"
}

trap 'hear 130 Ctrl-C' INT
trap 'hear 143 SIGTERM' TERM
trap 'hear 129 SIGHUP' HUP
trap : PIPE  # nobody reads what this script says any more
"""


def run_script(text: str, environment: dict[str, str] | None = None) -> int:
    """Run a script to its end and hand on Ctrl-C, SIGTERM and SIGHUP to it; its exit code.

    Nothing that it has started is left behind, however it ends: processes that it leaves become children of this one,
    and are killed. If this process is killed, the script hears SIGTERM.

    Raises:
        ExperimentError: there is no bash or no setsid, or the script is too long.
    """
    if (size := len(os.fsencode(text))) > _MOST_BYTES:
        raise ExperimentError(
            f"the script has {size} bytes, and one word of a command may have {_MOST_BYTES} on Linux: write it into a "
            "file by --dry-run, and run that with bash"
        )
    path = None if environment is None else environment.get("PATH")
    if missing := [program for program in ("bash", "setsid") if shutil.which(program, path=path) is None]:
        raise ExperimentError(f"`{missing[0]}` is not installed here, which the script needs; --dry-run prints it")
    with _parent_of_orphans():
        script = subprocess.Popen(
            ["bash", "-c", text, "disttrain"],
            env=environment,
            start_new_session=True,
            preexec_fn=_prepare,
        )
        with _handing_on(script):
            code = script.wait()
    return code if code >= 0 else 128 - code


@contextmanager
def _handing_on(script: subprocess.Popen[bytes]) -> Iterator[None]:
    def hand_on(number: int, frame: FrameType | None) -> None:
        script.send_signal(number)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if number != signal.SIGHUP or handler is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, hand_on)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _parent_of_orphans() -> Iterator[None]:
    """What descendants leave behind while the block runs, comes to this process, and ends with the block."""
    before = _children()
    _prctl(_SET_SUBREAPER, 1)
    try:
        yield
    finally:
        deadline = time.monotonic() + _SECONDS_TO_VANISH
        # The guard of a rank ends by itself, soon after what it watches. What even a kill does not end is left.
        while (left := _children() - before) and (now := time.monotonic()) < deadline + _SECONDS_TO_VANISH:
            for process in left:
                with suppress(OSError):
                    if now > deadline:
                        os.kill(process, signal.SIGKILL)
                    os.waitpid(process, os.WNOHANG)
            time.sleep(0.05)
        _prctl(_SET_SUBREAPER, 0)


def _children() -> set[int]:
    """Of this process; where /proc does not tell, none."""
    found: set[int] = set()
    for file in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):
            found.update(map(int, file.read_text().split()))
    return found


def _prepare() -> None:
    """Of the script's process: it hears of this one's death, and bash can trap what was not ignored when it began."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    _prctl(_SET_DEATH_SIGNAL, signal.SIGTERM)


def _prctl(what: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(what, value, 0, 0, 0)
