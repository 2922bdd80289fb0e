"""The run directory, metrics.jsonl and progress."""

from __future__ import annotations

import io
import json
import os
import re
import tempfile
from pathlib import Path

import pytest
from rich.console import Console
from tensorboard.backend.event_processing import event_accumulator

from disttrain.config import ExperimentError
from disttrain.report.memory_monitor import Memory
from disttrain.report.progress import TrainingProgress
from disttrain.report.run_directory import RunDirectory, open_run_directory
from disttrain.report.run_report import RunReport
from disttrain.report.table import show_summary
from disttrain.world import World


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def test_lines_carry_their_place_and_figures(tmp_path: Path):
    report = RunReport(tmp_path)
    report.write("train", 1, 10, loss=0.5, nested={"a": float("nan")})
    report.close()
    (line,) = lines(tmp_path)
    assert line.pop("time") > 0
    assert line == {"event": "train", "epoch": 1, "step": 10, "loss": 0.5, "nested": {"a": None}}


def test_tensorboard_has_the_same_figures(tmp_path: Path):
    report = RunReport(tmp_path)
    report.write("train", 1, 10, loss=0.5, step_seconds={"forward": 0.25})
    report.write("evaluation", 1, 10, split="val", num_evaluated=3, metrics={"accuracy": 0.75})
    report.close()
    found = event_accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    values = {tag: [(e.step, e.value) for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]}
    assert values == {
        "train/loss": [(10, 0.5)],
        "train/step_seconds/forward": [(10, 0.25)],
        "val/accuracy": [(10, 0.75)],
    }


def test_resuming_cuts_back_to_the_checkpoint(tmp_path: Path):
    report = RunReport(tmp_path)
    report.write("train", 1, 10, loss=1.0)
    length = report.durable_length()
    report.write("train", 1, 20, loss=2.0)
    report.close()
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"event": "tor')
    report = RunReport(tmp_path, length, 10)
    report.write("train", 1, 20, loss=3.0)
    report.close()
    assert [(line["step"], line["loss"]) for line in lines(tmp_path)] == [(10, 1.0), (20, 3.0)]
    found = event_accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    assert [(e.step, e.value) for e in found.Scalars("train/loss")] == [(10, 1.0), (20, 3.0)]


def test_a_file_that_the_checkpoint_did_not_know_is_cut_by_its_steps(tmp_path: Path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 10}\n{"step": 20}\n')
    RunReport(tmp_path, 10_000, 10).close()
    assert lines(tmp_path) == [{"step": 10}]


def test_without_a_checkpoint_it_begins_anew(tmp_path: Path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 10}\n')
    RunReport(tmp_path).close()
    assert lines(tmp_path) == []


def test_a_metric_without_a_value_is_null_and_a_finished_run_shows_it(tmp_path: Path):
    summary = {
        "name": "a", "task": "node_classification", "best_epoch": 1, "epochs": 1, "seconds": {"total": 1.0},
        "val": {"accuracy": 0.5, "auroc": float("nan")}, "test": {}, "num_evaluated": {"val": 4, "test": 0},
        "step_seconds": {}, "world_size": 1, "nodes": 1, "peak_rss_bytes": [2**30], "peak_gpu_bytes": [0],
        "seeds_per_second": 1.0, "bytes_exchanged": 0,
    }  # fmt: skip
    run = RunDirectory.open(tmp_path / "run")
    run.write_summary(summary)
    read = run.read_summary()
    run.close()
    assert read == {**summary, "val": {"accuracy": 0.5, "auroc": None}}
    shown = [io.StringIO(), io.StringIO()]
    for found, file in zip((summary, read), shown, strict=True):
        show_summary(found, Console(file=file, width=100))
    assert shown[0].getvalue() == shown[1].getvalue()
    assert re.search(r"val +│ +0\.5000 │ +- │ +4", shown[0].getvalue())
    assert "1 seeds/s" in shown[0].getvalue() and "0.0 MiB exchanged" in shown[0].getvalue()


def test_of_graphs_the_table_has_no_words_of_nodes():
    summary = {
        "name": "a", "task": "graph_classification", "best_epoch": 1, "epochs": 1, "val": {}, "test": {"accuracy": 1.0},
        "seconds": {"total": 1.0, "partition": 2.0}, "num_evaluated": {"val": 0, "test": 4}, "step_seconds": {},
        "world_size": 2, "nodes": 2, "peak_rss_bytes": [2**30], "peak_gpu_bytes": [0], "seeds_per_second": 7.0,
        "bytes_exchanged": 0,
    }  # fmt: skip
    out = io.StringIO()
    show_summary(summary, Console(file=out, width=120))
    assert "7 graphs/s in training on 2 ranks, 2 machines" in out.getvalue()
    assert re.search(r"collection +│ +2\.0", out.getvalue())
    assert not re.search("partition|seed|node|exchanged", out.getvalue())


def test_two_runs_in_one_directory_are_refused(tmp_path: Path):
    first = RunDirectory.open(tmp_path / "run")
    with pytest.raises(ExperimentError, match=r"in use by process \d+ on "):
        RunDirectory.open(tmp_path / "run")
    first.close()
    RunDirectory.open(tmp_path / "run").close()


def test_a_file_where_the_directory_should_be_is_refused(tmp_path: Path):
    (tmp_path / "run").write_text("")
    with pytest.raises(ExperimentError, match=r"run directory cannot be used at .*run"):
        RunDirectory.open(tmp_path / "run")


@pytest.mark.parametrize("fresh", [False, True])
def test_files_that_no_run_has_made_are_not_replaced(tmp_path: Path, fresh: bool):
    (tmp_path / "experiment.yaml").write_text("# mine\n")
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "mine.pt").touch()
    with (
        World.start(device="cpu", threads=1) as world,
        pytest.raises(ExperimentError, match="holds checkpoints, experiment.yaml, which no run here has made"),
    ):
        open_run_directory(world, tmp_path, fresh=fresh)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["checkpoints", "experiment.yaml", "mine.pt"]
    (tmp_path / ".lock").touch()  # as the message says of a copy
    RunDirectory.open(tmp_path).close()


def kept_by_a_fresh_start(directory: Path) -> bool:
    """Whether what was there is still there."""
    with World.start(device="cpu", threads=1) as world:
        run = open_run_directory(world, directory, fresh=True)
        assert run is not None
        run.close()
    kept = (directory / "DONE").exists()
    (directory / "DONE").touch()
    return kept


def test_fresh_clears_once_per_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def start(launcher: str) -> bool:
        monkeypatch.setattr("disttrain.report.run_directory._launcher", lambda: launcher)
        return kept_by_a_fresh_start(tmp_path)

    (tmp_path / ".lock").touch()
    (tmp_path / "DONE").touch()
    assert not start("host 1 100.00")
    assert start("host 1 100.00")  # restarted by the same agent
    assert not start("host 2 200.00")  # another job


def test_fresh_does_not_go_on_from_what_it_may_not_remove():
    """A checkpoint of root's, say, in a run directory that is the user's own."""
    with tempfile.TemporaryDirectory() as place:  # which another user gets to, unlike that of pytest
        run = Path(place)
        theirs = run / "checkpoints" / "step-0000000007"
        theirs.mkdir(parents=True)
        for file in (theirs / "manifest.json", run / ".lock"):
            file.touch()
        for path, mode in ((run, 0o777), (run / ".lock", 0o666), (theirs.parent, 0o777), (theirs, 0o555)):
            path.chmod(mode)
        user = os.geteuid()
        if user == 0:
            os.seteuid(65534)
        try:
            with pytest.raises(ExperimentError, match="--fresh could not remove checkpoints in the run directory"):
                kept_by_a_fresh_start(run)
        finally:
            os.seteuid(user)
            theirs.chmod(0o755)
        assert (theirs / "manifest.json").exists()
        kept_by_a_fresh_start(run)
        assert not theirs.exists()


def test_fresh_clears_once_per_batch_job_that_is_requeued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def start(job: str) -> bool:
        monkeypatch.setenv("DISTTRAIN_JOB", job)
        return kept_by_a_fresh_start(tmp_path)

    (tmp_path / ".lock").touch()
    (tmp_path / "DONE").touch()
    assert [start(job) for job in ("slurm a 1", "slurm a 1", "slurm a 2", "slurm b 2")] == [False, True, False, False]


def test_plain_lines_where_there_is_no_terminal():
    out = io.StringIO()
    with TrainingProgress(True, 3, Console(file=out, soft_wrap=True)) as progress:
        progress.epoch(0, 100, 0)
        progress.steps(10, 0.5, 1000.0)  # too soon after the start for a line
        progress.say("epoch 1/3  loss 0.4")
    assert out.getvalue() == "epoch 1/3  loss 0.4\n"


def test_a_bar_in_a_terminal():
    out = io.StringIO()
    with TrainingProgress(True, 3, Console(file=out, force_terminal=True, width=120)) as progress:
        progress.epoch(1, 100, 0)
        progress.steps(10, 0.5, 1000.0, Memory(2.0**31, 2.0**30, 0))
    assert "PSS 1.0, RSS 2.0 GiB" in out.getvalue()
    assert "epoch 2/3" in out.getvalue()
    assert "1,000 seeds/s" in out.getvalue()


def test_other_ranks_are_silent():
    out = io.StringIO()
    with TrainingProgress(False, 3, Console(file=out)) as progress:
        progress.epoch(0, 100, 0)
        progress.say("nothing")
    assert out.getvalue() == ""


def test_a_lock_that_a_lost_machine_of_the_job_has_left_is_waited_for_and_then_void(tmp_path: Path):
    """The lock stays taken: as a file system keeps it for a machine that is gone."""
    path = tmp_path / "run"
    first = RunDirectory.open(path, job="mine")
    for job, patience in (("", 0.0), ("another", 0.5), ("", 0.5)):
        with pytest.raises(ExperimentError, match="is in use by process"):
            RunDirectory.open(path, job, patience)
    second = RunDirectory.open(path, "mine", 0.5)
    assert second.token != first.token and second.token in (path / ".lock").read_text()
    first.close()
    with pytest.raises(ExperimentError, match="is in use by process"):
        RunDirectory.open(path)
    second.close()
    RunDirectory.open(path).close()


def test_a_job_without_a_name_takes_nothing_over(tmp_path: Path):
    first = RunDirectory.open(tmp_path / "run", job="none")
    with pytest.raises(ExperimentError, match="if its machine is gone, remove .*lock"):
        RunDirectory.open(tmp_path / "run", "none", 0.2)
    first.close()


def test_figures_of_another_machine_are_not_cut_in_the_middle_of_a_line(tmp_path: Path):
    """The checkpoint knew a file of as many bytes; this one has other lines."""
    lines = [json.dumps({"event": "train", "step": step, "pad": "x" * 20}) + "\n" for step in range(1, 6)]
    (tmp_path / "metrics.jsonl").write_text("".join(lines))
    RunReport(tmp_path, length=len(lines[0]) * 3 + 7, step=3).close()
    assert (tmp_path / "metrics.jsonl").read_text() == "".join(lines[:3])
    RunReport(tmp_path, length=len(lines[0]) * 2, step=2).close()
    assert (tmp_path / "metrics.jsonl").read_text() == "".join(lines[:2])
