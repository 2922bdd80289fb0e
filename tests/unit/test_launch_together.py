"""Jobs of several parts: the first failure ends all, a request to stop reaches all, nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from disttrain.config import ExperimentError
from disttrain.launch.shell import Shell, shell_command
from disttrain.launch.together import run_script, together_script

from ..agents import REPOSITORY, marked

STOP = ['[ -z "$2" ] || kill -TERM "$2"']
KILL = ['[ -z "$2" ] || kill -KILL -- "-$2"']
LASTS = 'trap "echo $0 was stopped; exit 0" TERM; touch $0; while :; do sleep 0.1; done'
DEAF = 'trap "" TERM; touch $0; while :; do sleep 0.1; done'


def job(*machines: str, needed: int | None = None, grace: int = 30) -> str:
    """Machines as programs of the shell, which find their names in $0."""
    commands = [["bash", "-c", program, f"m{number}"] for number, program in enumerate(machines, start=1)]
    return together_script([], [], commands, stop=STOP, kill=KILL, needed=needed or len(machines), grace=grace)


def _hears_all() -> None:
    """Also where the tests themselves were started by nohup, or in the background: what is ignored is inherited."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


class Started:
    """A script that is run by `run_script` in a process of its own, in an empty folder, or by bash."""

    def __init__(self, text: str, place: Path, by_bash: bool) -> None:
        self.place, self.marker = place, os.fspath(place)
        program = f"import sys; from disttrain.launch.together import run_script; sys.exit(run_script({text!r}))"
        command = ["bash", "-c", text] if by_bash else [sys.executable, "-c", program]
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "DISTTRAIN_TEST_MARKER": self.marker}
        self.process = subprocess.Popen(
            command,
            cwd=place,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=_hears_all,
        )

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, "it did not happen within a minute"
            time.sleep(0.05)

    def until_there(self, *names: str) -> None:
        self.until(lambda: all((self.place / name).exists() for name in names))

    def end(self) -> tuple[int, str]:
        """Exit code, and what was said; all of its processes are gone."""
        said, _ = self.process.communicate(timeout=60)
        self.nothing_left()
        return self.process.returncode, said

    def nothing_left(self) -> None:
        self.until(lambda: not marked(self.marker))


@pytest.fixture(params=["by submit", "by bash"])
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], Started]:
    return lambda text: Started(text, tmp_path, request.param == "by bash")


def test_all_end_well(start: Callable[[str], Started]) -> None:
    assert start(job("sleep 0.4", "echo hello")).end() == (0, "hello\n")


def test_the_first_failure_ends_the_others(start: Callable[[str], Started]) -> None:
    code, said = start(job(LASTS, "until [ -e m1 ]; do sleep 0.1; done; exit 7", LASTS)).end()
    assert code == 7
    assert "machine 2 ended with exit code 7: the others are stopped" in said
    assert "m1 was stopped" in said and "m3 was stopped" in said
    assert said.endswith("\nfailed: machine 2 ended first, with exit code 7; above, lines with disttrain: say why\n")


def test_of_one_machine_there_are_no_others(start: Callable[[str], Started]) -> None:
    code, said = start(job("exit 3")).end()
    assert code == 3
    assert said == "failed: machine 1 ended first, with exit code 3; above, lines with disttrain: say why\n"


def test_a_killed_machine_is_a_failure(start: Callable[[str], Started]) -> None:
    code, said = start(job("kill -KILL $$", LASTS)).end()
    assert code == 137
    assert "machine 1 ended with exit code 137" in said


def test_with_fewer_machines(start: Callable[[str], Started]) -> None:
    code, said = start(job("exit 3", "sleep 1.5; echo done", needed=1)).end()
    assert (code, said) == (0, "machine 1 ended with exit code 3: the others go on\ndone\n")


def test_with_too_few_machines(start: Callable[[str], Started]) -> None:
    code, said = start(job("exit 3", "sleep 1; exit 4", LASTS, needed=2)).end()
    assert code == 3
    assert "m3 was stopped" in said


@pytest.mark.parametrize(
    ("number", "code", "name"),
    [(signal.SIGINT, 130, "Ctrl-C"), (signal.SIGTERM, 143, "SIGTERM"), (signal.SIGHUP, 129, "SIGHUP")],
)
def test_a_request_to_stop_reaches_all(start: Callable[[str], Started], number: int, code: int, name: str) -> None:
    started = start(job(LASTS, LASTS))
    started.until_there("m1", "m2")
    started.process.send_signal(number)
    ended, said = started.end()
    assert ended == code
    assert "m1 was stopped" in said and "m2 was stopped" in said
    assert said.endswith(f"\nstopped by {name}: the same command goes on\n")


def test_a_job_that_began_anew_says_what_goes_on(tmp_path: Path) -> None:
    text = together_script([], [], [["bash", "-c", LASTS, "m1"]], stop=STOP, kill=KILL, needed=1, grace=30, fresh=True)
    started = Started(text, tmp_path, by_bash=True)
    started.until_there("m1")
    started.process.send_signal(signal.SIGTERM)
    assert started.end()[1].endswith("\nstopped by SIGTERM: the same command without --fresh goes on\n")


def test_who_does_not_stop_is_killed(start: Callable[[str], Started]) -> None:
    started = start(job(DEAF, LASTS, grace=1))
    started.until_there("m1", "m2")
    started.process.send_signal(signal.SIGTERM)
    code, said = started.end()
    assert code == 143
    assert "not all machines have stopped within 1 s: they are killed" in said


def test_who_is_asked_to_end_a_machine_and_does_not_answer_is_not_waited_for(
    start: Callable[[str], Started],
) -> None:
    """A container engine that hangs, say."""
    hangs = "exec sleep 1000"
    machines = [["bash", "-c", DEAF, name] for name in ("m1", "m2")]
    started = start(together_script([], [], machines, stop=[hangs], kill=[*KILL, hangs], needed=2, grace=1))
    started.until_there("m1", "m2")
    started.process.send_signal(signal.SIGTERM)
    code, said = started.end()
    assert code == 143 and "they are killed" in said


def test_asked_twice_it_ends_at_once(start: Callable[[str], Started]) -> None:
    started = start(job(DEAF, DEAF, grace=600))
    started.until_there("m1", "m2")
    started.process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    started.process.send_signal(signal.SIGINT)
    assert started.end()[0] == 130


def test_the_terminal_interrupts_the_script_only_and_once(tmp_path: Path) -> None:
    """A terminal sends Ctrl-C to all processes of the foreground group."""
    text = job('trap "echo twice" INT; trap "exit 0" TERM; touch $0; while :; do sleep 0.1; done')
    started = Started(text, tmp_path, by_bash=True)
    started.until_there("m1")
    os.killpg(started.process.pid, signal.SIGINT)
    code, said = started.end()
    assert code == 130 and "twice" not in said


def test_what_a_machine_leaves_behind_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = (
        "import sys; from disttrain.launch import together; together._SECONDS_TO_VANISH = 0.5; "
        f"sys.exit(together.run_script({job('setsid sleep 1000 >/dev/null 2>&1 & exit 5')!r}))"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "DISTTRAIN_TEST_MARKER": str(tmp_path)}
    assert subprocess.run([sys.executable, "-c", program], env=environment, timeout=60, check=False).returncode == 5
    assert marked(str(tmp_path)) == []


def test_machines_end_when_submit_is_killed(tmp_path: Path) -> None:
    started = Started(job(LASTS, LASTS), tmp_path, by_bash=False)
    started.until_there("m1", "m2")
    started.process.send_signal(signal.SIGKILL)
    started.process.communicate(timeout=60)
    started.nothing_left()


def under_a_shell_that_ignores(number: signal.Signals, program: str, place: Path) -> int:
    """The exit code of a job of one machine that gets this signal once it is there."""
    code = (
        f"import signal, sys; signal.signal({number.value}, signal.SIG_IGN); "
        f"from disttrain.launch.together import run_script; sys.exit(run_script({job(program)!r}))"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen([sys.executable, "-c", code], cwd=place, env=environment) as process:
        while not (place / "m1").exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(number)
        return process.wait(60)


def test_who_wants_no_hangup_has_none(tmp_path: Path) -> None:
    before = psutil.Process().children()
    assert under_a_shell_that_ignores(signal.SIGHUP, "touch $0; sleep 2", tmp_path) == 0
    assert not set(psutil.Process().children()) - set(before)


def test_in_the_background_it_can_be_stopped_too(tmp_path: Path) -> None:
    """Shells let what they start in the background ignore SIGINT."""
    assert under_a_shell_that_ignores(signal.SIGINT, LASTS, tmp_path) == 130


def test_what_it_needs_is_missed_before(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match="`bash` is not installed here, which the script needs; --dry-run prints"):
        run_script(job("true"), {"PATH": str(tmp_path)})


def test_a_script_that_is_too_long_is_said() -> None:
    """Of a hundred hosts, say."""
    text = "#" + "x" * ((128 << 10) - 2)
    assert run_script(text) == 0
    with pytest.raises(ExperimentError, match="131072 bytes, and one word .* file by --dry-run, and run"):
        run_script(text + "x")


def test_words_arrive_as_they_are(tmp_path: Path) -> None:
    words = ["a b", "it's", 'say "x"', "$HOME", "`id`", "\\", "!", "*", "", "ü", "new\nline", "--", "#"]
    text = shell_command(["printf", "%s\\0", *words, Shell('"$0"')])
    done = subprocess.run(["bash", "-c", text, "zero"], capture_output=True, check=True)
    assert done.stdout.decode().split("\0")[:-1] == [*words, "zero"]


def test_long_commands_are_broken_between_words() -> None:
    text = shell_command(["command", *(f"--word-{i}=a b" for i in range(20))], indent="  ", width=60)
    lines = text.split("\n")
    assert all(len(line) <= 60 and line.startswith("  ") for line in lines)
    assert all(line.endswith(" \\") for line in lines[:-1])
    assert lines[1].startswith("      '--word")
