"""The points of a sweep one after another: a failing one does not stop the others, a finished one is not repeated."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ..config import Experiment
from ..config.counted import counted
from ..config.file import SweepPoint
from .note import read_note
from .progress import read_progress
from .results import note_sweep, read_sweep, results_table, write_failures
from .status import sweep_rows

STOP = "STOP"
_LOOK_SECONDS = 1.0
_COARSE_SECONDS = 2.0
"""As file systems may round the time of a file, and for what comes while this starts."""
_BY_SIGNAL = (128 + signal.SIGINT, 128 + signal.SIGTERM, 128 + signal.SIGHUP)
_DEATH_SIGNAL = 1  # prctl


def run_points(
    experiment: Experiment,
    points: Sequence[SweepPoint],
    start: Callable[[SweepPoint], int],
    fresh: bool = False,
    elsewhere: bool = False,
) -> int:
    """Run all points that are not done, then print the table of results.

    Args:
        start: runs one to its end and returns its exit code. 0 without `DONE` in its run directory: it was asked to
            stop, and then the sweep stops too; 130 and 143: so did Ctrl-C and SIGTERM.
        fresh: also those that are done.
        elsewhere: run directories may be on disks that are not seen here. Of a point that leaves nothing here, the exit
            code has to tell.

    Returns:
        0: all are done, or the sweep was asked to stop; 1: some have failed; 130 or 143.

    Raises:
        ExperimentError: the sweep's directory cannot be written to.
    """
    directory = note_sweep(experiment, points)
    _remove_earlier_stop(directory)
    code, failed = 0, []
    write_failures(directory, failed)
    for turn, point in enumerate(points):
        run = Path(point.experiment.directory)
        if not fresh and read_progress(run).done:
            _say(f"{point.name} is done")
            continue
        _say(f"{point.name} ({turn + 1} of {len(points)}), in {run}")
        with _passing_on_stop(directory, run) as passed:
            code = start(point)
        if code in _BY_SIGNAL:
            break
        if code != 0:
            failed.append(point.name)
            write_failures(directory, failed)
            _say(f"{point.name} failed with exit code {code}")
        elif elsewhere and not (run / "experiment.yaml").exists():
            _say(f"{point.name} ended well; {run} is on a disk that is not seen here")
        elif not read_progress(run).done:
            passed.set()
        if passed.is_set():
            _say(f"stopped; the same command{' without --fresh' * fresh} goes on from here")
            break
    show_results(directory)
    if failed:
        _say(f"{counted(len(failed), 'point')} failed: {', '.join(failed)}")
    return code if code in _BY_SIGNAL else 1 if failed else 0


def _remove_earlier_stop(sweep: Path) -> None:
    """A file STOP that is older than this sweep was meant for another."""
    file = sweep / STOP
    with suppress(OSError):
        if time.time() - file.stat().st_mtime > _COARSE_SECONDS:
            file.unlink()
            _say(f"{file} is older than this sweep: it is removed, and the sweep begins")


@contextmanager
def _passing_on_stop(sweep: Path, run: Path) -> Iterator[threading.Event]:
    """While a point runs, the file STOP in the sweep's directory is one for it; whether there was one.

    It is gone when the block ends, also if the point ended without having seen it.
    """
    over, passed = threading.Event(), threading.Event()

    def look() -> None:
        while not over.wait(_LOOK_SECONDS):
            if (sweep / STOP).exists():
                with suppress(OSError):
                    run.mkdir(parents=True, exist_ok=True)
                    os.replace(sweep / STOP, run / STOP)
                    passed.set()
                    os.utime(run / STOP)  # it may have come before the point was started

    thread = threading.Thread(target=look, name="STOP", daemon=True)
    thread.start()
    try:
        yield passed
    finally:
        over.set()
        thread.join()
        if passed.is_set():
            (run / STOP).unlink(missing_ok=True)


def show_results(directory: Path, quiet: bool = False) -> None:
    """Write `results.csv` of a sweep anew, and print it as a table."""
    sweep = read_sweep(directory)
    if sweep is None:
        return
    rows = sweep_rows(directory, sweep, read_note(directory), None)
    if not quiet:
        results_table(directory, sweep, rows)


def run_here(path: str, overrides: Sequence[str], point: SweepPoint, fresh: bool) -> int:
    """One point as a process of its own: whatever it does, the next one begins with nothing of it. What ends this
    process ends that one: SIGTERM and Ctrl-C are passed on, once."""
    command = [
        sys.executable,
        "-m",
        "disttrain",
        path,
        *overrides,
        "--point",
        point.name,
        *(["--fresh"] if fresh else []),
    ]
    child = subprocess.Popen(command, start_new_session=True, preexec_fn=_die_with_parent)
    came = 0

    def pass_on(number: int, frame: object) -> None:
        nonlocal came
        came = number
        child.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        code = child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came == signal.SIGINT or (came and code != 0):
        return 128 + came
    return code if code >= 0 else 128 - code


def _die_with_parent() -> None:
    with suppress(OSError, AttributeError):  # only Linux has it
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGTERM)


def _say(text: str) -> None:
    print(f"sweep: {text}", file=sys.stderr, flush=True)
