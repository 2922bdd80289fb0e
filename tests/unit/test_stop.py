"""Requests to stop: signals, and the file in the run directory."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from traceback import StackSummary

import pytest
from torch.distributed.checkpoint.api import CheckpointException

from disttrain.config import ExperimentError
from disttrain.failure import hear_no_more
from disttrain.refusal import PeerError
from disttrain.stop import NAME, StopFile, Stopped, StopRequest, stopped_by


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """A shell starts background jobs with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler), signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGINT, before[0])
    signal.signal(signal.SIGHUP, before[1])


def test_the_first_signal_is_remembered_and_the_second_does_what_it_did() -> None:
    with pytest.raises(KeyboardInterrupt), StopRequest() as request:
        os.kill(os.getpid(), signal.SIGINT)
        assert (request.reason, request.by_signal) == ("SIGINT", True)
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_sigterm_is_the_same_request_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm sends it to torchrun and to the ranks, and torchrun to the ranks again."""
    with pytest.raises(Stopped, match="agreed"), StopRequest(at_once=True):
        with StopRequest() as request:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
            assert request.reason == "SIGTERM"
            try:
                raise Stopped("agreed", 0, agreed=True)
            finally:
                os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped, match="stopped by SIGTERM"), StopRequest(at_once=True), StopRequest():
        os.kill(os.getpid(), signal.SIGTERM)
        now = time.monotonic
        monkeypatch.setattr("disttrain.stop.time.monotonic", lambda: now() + 60)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_handlers_are_put_back(number: int) -> None:
    before = signal.getsignal(number)
    with StopRequest():
        assert signal.getsignal(number) != before
    assert signal.getsignal(number) == before


def test_who_is_not_to_hear_of_a_lost_terminal_does_not() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as `nohup` does
    with StopRequest() as request:
        os.kill(os.getpid(), signal.SIGHUP)
        assert not request.reason


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 0), (signal.SIGHUP, 0), (signal.SIGINT, 130)], ids=lambda value: str(value)
)
def test_where_there_is_nothing_to_save_a_signal_stops_at_once(number: signal.Signals, code: int) -> None:
    with pytest.raises(Stopped, match=f"stopped by {number.name} in ") as raised, StopRequest(at_once=True):
        os.kill(os.getpid(), number)
        time.sleep(5)
    assert raised.value.code == code


def test_what_nobody_looked_at_is_heard_outside() -> None:
    with pytest.raises(Stopped, match="stopped by SIGTERM"), StopRequest(at_once=True):
        with StopRequest():
            os.kill(os.getpid(), signal.SIGTERM)
        pytest.fail("the signal was forgotten")


def test_what_the_users_code_has_swallowed_is_heard_in_training() -> None:
    with pytest.raises(Stopped, match="agreed"), StopRequest(at_once=True):
        with contextlib.suppress(Exception):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)
        with StopRequest() as request:
            assert (request.reason, request.by_signal) == ("SIGTERM", True)
            raise Stopped("agreed", 0, agreed=True)


def test_a_file_asks_to_stop_and_is_gone_then(tmp_path: Path) -> None:
    file = tmp_path / NAME
    stopped = pytest.raises(Stopped, match=f"stopped by {file} in ")
    with stopped, StopRequest(at_once=True), StopFile(tmp_path, time.time()):
        file.touch()
        time.sleep(30)
    assert not file.exists()


def test_a_file_is_remembered_where_there_is_something_to_save(tmp_path: Path) -> None:
    with pytest.raises(ValueError), StopRequest() as request, StopFile(tmp_path / "run", time.time()):
        (tmp_path / "run" / NAME).touch()
        deadline = time.monotonic() + 30
        while not request.reason and time.monotonic() < deadline:
            time.sleep(0.05)
        assert (request.reason, request.by_signal) == (str(tmp_path / "run" / NAME), False)
        raise ValueError  # the run has failed without having stopped
    assert (tmp_path / "run" / NAME).exists()


def test_a_file_of_an_earlier_job_is_removed_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / NAME
    file.touch()
    os.utime(file, (time.time() - 60, time.time() - 60))
    with StopRequest() as request, StopFile(tmp_path, time.time() - 30):
        time.sleep(1.5)
        assert not request.reason
    assert not file.exists()
    assert capsys.readouterr().err == f"disttrain: {file} is older than this job: it is removed, and the run begins\n"


def test_a_file_that_comes_later_counts_whatever_its_time(tmp_path: Path) -> None:
    """It may have been moved there, or a file server's clock is behind."""
    with pytest.raises(Stopped), StopRequest(at_once=True), StopFile(tmp_path, time.time()):
        (tmp_path / "made").touch()
        os.utime(tmp_path / "made", (time.time() - 60, time.time() - 60))
        os.replace(tmp_path / "made", tmp_path / NAME)
        time.sleep(30)


def test_a_file_that_came_while_the_job_was_being_started_counts(tmp_path: Path) -> None:
    (tmp_path / NAME).touch()
    with pytest.raises(Stopped), StopRequest(at_once=True), StopFile(tmp_path, time.time() - 30):
        time.sleep(30)


@pytest.mark.parametrize("first", [True, False])
def test_a_rank_that_cannot_stop_by_itself_leaves_and_the_first_says_why(first: bool) -> None:
    """Its main thread is in a long call of C, and another rank has been told to stop."""
    program = f"""
import ctypes, signal, threading
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # in all threads that there will be
from types import SimpleNamespace
from disttrain import failure
from disttrain.notes import Over
from disttrain.stop import StopRequest

failure._SECONDS_TO_LEAVE = 1.0
notes = SimpleNamespace(over=Over("stopped by STOP in partitioning", "stopped", 0), trouble=lambda: "over")
world = SimpleNamespace(notes=notes, machine=0, is_lead={first})
with StopRequest(at_once=True):
    threading.Thread(target=failure.leave_with_the_others, args=[world], daemon=True).start()
    ctypes.CDLL(None).pause()
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0
    assert ended.stderr == ("disttrain: stopped by STOP in partitioning\n" if first else "")


def test_who_hears_no_more_is_not_told_when_the_block_ends() -> None:
    """A rank that was refused says so last, while torchrun ends it because others have left."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(ExperimentError, match="refused"), StopRequest(at_once=True):
            try:
                raise ExperimentError("refused")
            except ExperimentError:
                hear_no_more()
                os.kill(os.getpid(), signal.SIGTERM)
                raise
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_what_others_would_catch_is_heard_after_them() -> None:
    with pytest.raises(Stopped, match="stopped by SIGTERM"), StopRequest(at_once=True):
        with StopRequest.heard_after():
            os.kill(os.getpid(), signal.SIGTERM)
            through = True
        pytest.fail("it was not heard")
    assert through


def test_what_fails_by_itself_fails() -> None:
    with pytest.raises(ValueError), StopRequest(at_once=True), StopRequest.heard_after():
        os.kill(os.getpid(), signal.SIGTERM)
        raise ValueError


def test_a_request_that_others_have_wrapped_is_known() -> None:
    stopped = Stopped("stopped", 0, agreed=False)
    assert stopped_by(stopped) is stopped
    assert stopped_by(CheckpointException("load", {0: (stopped, StackSummary())})) is stopped
    try:
        try:
            raise stopped
        except Stopped as error:
            raise ExperimentError("the function failed") from error
    except ExperimentError as error:
        assert stopped_by(error) is stopped
    failed = PeerError("rank 1 failed")
    failed.__cause__ = stopped
    assert stopped_by(failed) is None, "it was told to stop because another rank had failed"
    assert stopped_by(ValueError()) is None


def test_who_has_stopped_is_not_told_again(tmp_path: Path) -> None:
    """The file may be found while all ranks leave already, and torchrun may pass on a signal."""
    with pytest.raises(Stopped, match="^agreed$"), StopRequest(at_once=True):
        try:
            with StopRequest():
                raise Stopped("agreed", 0, agreed=True, said=True)
        finally:
            StopRequest.ask(str(tmp_path / NAME))
            os.kill(os.getpid(), signal.SIGTERM)


def test_it_says_where_the_checkpoint_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StopRequest, "checkpoints", Path("runs/tiny/checkpoints"))
    text = r"; the same command goes on from the checkpoint in runs/tiny/checkpoints$"
    with pytest.raises(Stopped, match=text), StopRequest(at_once=True):
        os.kill(os.getpid(), signal.SIGTERM)


def test_the_directory_is_there_for_the_file_as_long_as_it_is_looked_for(tmp_path: Path) -> None:
    """While the data are read, for which the run itself has nothing to write yet."""
    run = tmp_path / "runs" / "tiny"
    with StopRequest() as request, StopFile(run, time.time()):
        (run / NAME).touch()
        while not request.reason:
            time.sleep(0.05)
        (run / NAME).unlink()
        request.reason = ""
    assert not (tmp_path / "runs").exists(), "nothing has come into it"
    with StopFile(run, time.time()):
        (run / "experiment.yaml").touch()
    assert (run / "experiment.yaml").exists()
