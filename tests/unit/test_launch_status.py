"""`disttrain status`: what it says of run directories in every condition, and of sweeps."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from disttrain import cli
from disttrain.config import ExperimentError
from disttrain.launch.note import Note, read_note, write_note
from disttrain.launch.progress import read_progress
from disttrain.launch.queue import FORGOTTEN, job_states, parse_jobs
from disttrain.launch.status import nearest_run, state_of
from disttrain.report.run_report import note_stop

EXPERIMENT = "train:\n  epochs: 9\n"


def line(event: str, step: int = 7, **more: Any) -> str:
    """Written three seconds ago."""
    return json.dumps({"event": event, "epoch": 2, "step": step, "time": time.time() - 3, **more}) + "\n"


def old(text: str) -> str:
    return text.replace(str(json.loads(text)["time"]), "1.5")


TRAIN = line("train", loss=0.5)
EVALUATION = line("evaluation", split="val", metrics={"accuracy": 0.75, "loss": None})


def lay_out(run: Path, metrics: str = TRAIN, **files: str) -> Path:
    run.mkdir(parents=True, exist_ok=True)
    (run / "experiment.yaml").write_text(EXPERIMENT)
    (run / "metrics.jsonl").write_text(metrics)
    for name, text in files.items():
        (run / name.replace("_json", ".json").replace("dot_", ".")).write_text(text)
    return run


def checkpoint(run: Path, step: int, whole: bool = True) -> None:
    folder = run / "checkpoints" / f"step-{step:010d}"
    folder.mkdir(parents=True)
    if whole:
        (folder / "manifest.json").write_text("{}")


SUMMARY = json.dumps(
    {"val": {"accuracy": 0.8}, "test": {"accuracy": 0.7}, "best_epoch": 4, "best_metric": "accuracy",
     "seconds": {"total": 12.5}}
)  # fmt: skip


def state(run: Path) -> str:
    return state_of(read_progress(run), None, None)


def test_states_from_files_alone(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert state(run) == "not started"
    run.mkdir()
    assert state(run) == "not started"
    lay_out(run, "")
    assert state(run) == "not started"
    lay_out(run)
    assert state(run) == "failed"
    lay_out(run, TRAIN + line("stop"))
    assert state(run) == "stopped"
    lay_out(run, TRAIN + line("stop"), DONE="")
    assert state(run) == "stopped", "no summary: it was not over"
    lay_out(run, TRAIN, DONE="", summary_json=SUMMARY)
    assert state(run) == "done"


def test_a_living_process_is_known_and_a_dead_one_is_not(tmp_path: Path) -> None:
    run, host = tmp_path / "run", socket.gethostname()
    with subprocess.Popen([sys.executable, "-c", "input()", "disttrain"], stdin=subprocess.PIPE) as process:
        lay_out(run, dot_lock=f"process {process.pid} on {host}\n")
        assert state(run) == "running"
        process.communicate(b"\n")
    assert state(run) == "failed"
    lay_out(run, line("train"), dot_lock=f"process {os.getppid()} on elsewhere\n")
    assert state(run) == "running", "its figures are new"
    lay_out(run, old(TRAIN), dot_lock="process 1 on elsewhere\n")
    assert state(run) == "failed"


def test_who_holds_the_lock_runs_whatever_its_number(tmp_path: Path) -> None:
    """As a process in a container does, which writes there the number that it has within."""
    run = lay_out(tmp_path / "run", old(TRAIN), dot_lock=f"process 9 on {socket.gethostname()}\n")
    with open(run / ".lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert state(run) == "running"
    assert state(run) == "failed"


def test_slurm_knows_what_waits_and_runs(tmp_path: Path) -> None:
    jobs = parse_jobs(
        "JobId=7 JobName=a ArrayJobId=7 ArrayTaskId=2-4%1 JobState=PENDING Reason=JobArrayTaskLimit Dependency=(null)\n"
        "JobId=8 JobName=a ArrayJobId=7 ArrayTaskId=1 JobState=RUNNING Reason=None Dependency=(null)\n"
        "JobId=9 JobName=a ArrayJobId=7 ArrayTaskId=0 JobState=FAILED Reason=NonZeroExitCode Dependency=(null)\n"
    )
    assert {k: job.state for k, job in jobs.items()} == {
        0: "FAILED", 1: "RUNNING", 2: "PENDING", 3: "PENDING", 4: "PENDING",
    }  # fmt: skip
    (alone,) = parse_jobs("JobId=5 JobName=b JobState=PENDING Reason=Resources Dependency=(null)\n").items()
    assert alone == (None, ("PENDING", "Resources"))
    note = Note("slurm", "7", "x.out")
    run = lay_out(tmp_path / "run", TRAIN + line("stop"))
    expected = {0: "stopped", 1: "running", 2: "queued"}
    assert {k: state_of(read_progress(run), note, jobs[k]) for k in expected} == expected
    empty = read_progress(tmp_path / "nothing")
    assert [state_of(empty, note, jobs[k]) for k in range(3)] == ["failed", "running", "queued"]
    assert (state_of(empty, note, FORGOTTEN), state_of(empty, note, None)) == ("failed", "not started")
    done = lay_out(run, TRAIN, DONE="", summary_json=SUMMARY)
    assert [state_of(read_progress(done), note, jobs[k]) for k in range(3)] == ["done", "done", "queued"]


def test_all_tasks_of_a_large_array_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """scontrol writes dots in place of the last ones, unless it is told not to."""
    (tmp_path / "scontrol").write_text(
        '#!/bin/sh\ntest "$SLURM_BITSTR_LEN" = 0 && more=,8-12:2 || more=...\n'
        'echo "JobId=7 ArrayTaskId=0-1,4$more%3 JobState=PENDING Reason=None"\n'
    )
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert list(job_states("7") or {}) == [0, 1, 4, 8, 10, 12]


def test_a_run_that_is_being_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = lay_out(tmp_path / "run", TRAIN + EVALUATION + line("train", 9, loss=0.25) + '{"event": "train", "ep')
    checkpoint(run, 5)
    checkpoint(run, 7)
    checkpoint(run, 9, whole=False)
    assert cli.run(["status", str(run)]) == 0
    said = capsys.readouterr().out
    assert f"{run}: failed, and can go on from step-0000000007" in said
    assert "epoch 2/9, step 9, 3 s ago" in said
    assert "training loss 0.2500" in said
    assert "val: accuracy 0.7500  loss -" in said
    assert cli.run(["status", str(run), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["step"], found["epochs"], found["val"]["accuracy"]) == (9, 9, 0.75)


def test_an_evaluation_long_ago_is_found_in_long_files(tmp_path: Path) -> None:
    run = lay_out(tmp_path / "run", EVALUATION + TRAIN * 20000)
    assert read_progress(run).val == {"accuracy": 0.75, "loss": None}


def test_files_that_are_damaged(tmp_path: Path) -> None:
    run = lay_out(tmp_path / "run", "\0\0garbage\n[]\n3\n" + TRAIN, summary_json="{", DONE="", dot_lock="\xff")
    (run / ".lock").write_bytes(b"\xff\xfe")
    (run / "experiment.yaml").write_text("a: [")
    found = read_progress(run)
    assert (found.step, found.epochs, found.done) == (7, None, False)


@pytest.mark.parametrize("text", ['{"points": [1]}', '{"points": [{"point": "x"}]}', '{"points": "x"}', "[]", "{"])
def test_files_of_other_programs(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Of the same names: they count for nothing."""
    others = '{"event": "x"}\n{"event": "train", "step": 3}\n' + TRAIN.replace("0.5", '"low"')
    run = lay_out(tmp_path / "run", others, summary_json='{"val": 3}', DONE="", sweep_json=text)
    assert cli.run(["status", str(run)]) == 0
    assert capsys.readouterr().out == f"{run}: not started\n"


def test_what_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tu-mutag").mkdir()
    (tmp_path / "tu-mutag" / "experiment.yaml").touch()
    (tmp_path / "tu_mutagen").mkdir()  # of no run
    assert nearest_run(tmp_path / "tu_mutag") == f"; did you mean {tmp_path / 'tu-mutag'}?"
    assert nearest_run(tmp_path / "other") == nearest_run(tmp_path / "not" / "there") == ""
    with pytest.raises(ExperimentError, match="there is no such directory"):
        cli.run(["status", str(tmp_path / "nothing")])
    with pytest.raises(ExperimentError, match="holds no run"):
        cli.run(["status", str(tmp_path)])
    (tmp_path / "slurm.sbatch").touch()  # and sbatch has refused it
    assert cli.run(["status", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path}: not started\n"
    (tmp_path / "file").touch()
    with pytest.raises(ExperimentError, match="there is no such directory"):
        cli.run(["status", str(tmp_path / "file")])


def test_what_may_not_be_read(tmp_path: Path) -> None:
    run = lay_out(tmp_path / "run", TRAIN, DONE="", summary_json=SUMMARY)
    user, mode = os.geteuid(), run.stat().st_mode
    run.chmod(0)
    if user == 0:
        os.seteuid(65534)
    try:
        with pytest.raises(ExperimentError, match="run cannot be looked into: Permission denied"):
            cli.run(["status", str(run)])
        assert not read_progress(run).done
    finally:
        os.seteuid(user)
        run.chmod(mode)


def test_a_note_survives_odd_names_and_damage(tmp_path: Path) -> None:
    note = Note("slurm", "12", 'it\'s 100% "odd" é')
    write_note(tmp_path, note)
    assert read_note(tmp_path) == note
    for text in ("", "[]", "{}", "3", '{"backend": 1}'):
        (tmp_path / "submitted.json").write_text(text)
        assert read_note(tmp_path) is None


def test_a_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = tmp_path / "sweep"
    points = [{"point": f"lr={lr},seed={k}", "settings": {"train.lr": lr, "seed": k}} for lr in (1, 2) for k in (0, 1)]
    sweep.mkdir()
    (sweep / "sweep.json").write_text(json.dumps({"metric": None, "points": points}))
    for (lr, seed), accuracy in {(1, 0): 0.5, (1, 1): 0.7, (2, 0): 0.9}.items():
        summary = json.dumps({**json.loads(SUMMARY), "val": {"accuracy": accuracy}})
        lay_out(sweep / f"lr={lr},seed={seed}", TRAIN, DONE="", summary_json=summary)
    assert cli.run(["status", str(sweep), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["points"]
    assert [point["point"] for point in found] == ["lr=2,seed=0", "lr=1,seed=1", "lr=1,seed=0", "lr=2,seed=1"]
    assert [point["state"] for point in found] == ["done"] * 3 + ["not started"]
    rows = (sweep / "results.csv").read_text().splitlines()
    assert rows[0] == "point,train.lr,seed,state,val_accuracy,test_accuracy,best_epoch,seconds"
    assert rows[1] == '"lr=2,seed=0",2,0,done,0.9,0.7,4,12.5'
    assert rows[4] == '"lr=2,seed=1",2,1,not started,,,,'
    assert cli.run(["status", str(sweep)]) == 0
    said = capsys.readouterr().out
    assert "3 of 4 points done, sorted by val accuracy" in said
    (sweep / "results.csv").unlink()
    (sweep / "results.csv").mkdir()  # as little to be written as on a disk that is full, or read only
    assert cli.run(["status", str(sweep)]) == 0
    assert capsys.readouterr().out == said
    assert "train.lr=1: over 2 seeds: val accuracy 0.6000 ± 0.1414" in said


def test_a_run_that_was_stopped_before_or_after_its_steps(tmp_path: Path) -> None:
    run = lay_out(tmp_path / "run", TRAIN + TRAIN[:9], dot_lock="")
    note_stop(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()
    with open(run / ".lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        note_stop(run)
    assert state(run) == "failed", "another one has it"
    note_stop(run)
    assert state(run) == "stopped"
    found = read_progress(run)
    assert (found.epoch, found.step, found.process) == (2, 7, None)
    before = (run / "metrics.jsonl").read_text()
    note_stop(run)
    assert (run / "metrics.jsonl").read_text() == before
    lay_out(run, TRAIN, DONE="", summary_json=SUMMARY)
    note_stop(run)
    assert (run / "metrics.jsonl").read_text() == TRAIN
