"""Jobs of a real Slurm: submitted, stopped in mid-epoch and requeued, cancelled, as an array."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load

from ..agents import REPOSITORY, agent_command, run_all
from .slurm import PROGRAMS, Cluster, Machine, slurm_cluster, wait_for

pytestmark = pytest.mark.cluster

SECONDS = 900
"""So long, at most, each thing may take that is waited for."""

EXPERIMENT = f"""\
name: tiny
data:
  source: generated
  nodes:
    paper: {{num_nodes: 200, features: 6}}
    author: {{num_nodes: 90}}
  edges:
    "author,writes,paper": {{num_edges: 400}}
  num_classes: 3
  num_communities: 6
partition: {{dir: parts, parts: 2}}
task: {{kind: node_classification}}
model: {{kind: hetero_conv, hidden: 8, dropout: 0.3}}
sampling: {{fanout: [4, 4], batch_size: 4}}
train: {{epochs: 12, lr: 1e-2, timeout: 600, threads: 1, eval_every: 4, log_every: 5, device: cpu}}
launch:
  nodes: 2
  python: {json.dumps(sys.executable)}
  env: {{OMP_NUM_THREADS: "1", PYTHONPATH: {json.dumps(str(REPOSITORY))}, TMPDIR: {json.dumps("TEMPORARY")}}}
"""

ODD = """runs/it's 100% "odd" é"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if os.geteuid() != 0 or missing:
        why = f"needs root, and Slurm: {', '.join(missing) or 'it is there'} (tests/cluster/run.sh installs it)"
        if os.environ.get("CI"):
            pytest.fail(why)
        pytest.skip(why)
    with slurm_cluster(2) as cluster:
        yield cluster


class Jobs:
    """Experiments submitted from one folder that all machines see."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        (folder / "temporary").mkdir()
        text = EXPERIMENT.replace("TEMPORARY", str(folder / "temporary"))
        (folder / "tiny.yaml").write_text(text)

    def disttrain(self, *words: str) -> str:
        return self.cluster.run(
            sys.executable, "-m", "disttrain", *words, directory=self.folder, PYTHONPATH=str(REPOSITORY)
        )

    def refused(self, *words: str) -> str:
        done = self.cluster.attempt(
            sys.executable, "-m", "disttrain", *words, directory=self.folder, PYTHONPATH=str(REPOSITORY)
        )
        assert done.returncode == 2, done.stdout + done.stderr
        return done.stderr

    def submit(self, *words: str) -> str:
        found = re.match(r"job (\d+)", self.disttrain("submit", "slurm", "tiny.yaml", *words))
        assert found is not None
        return found[1]

    def by_hand(self) -> str:
        """Submit the template in launch/ by the command that docs/clusters.md shows; returns the number of the job."""
        page = (REPOSITORY / "docs" / "clusters.md").read_text(encoding="utf-8")
        (command,) = re.findall(r"^    (mkdir .*sbatch .*)$", page, re.MULTILINE)
        text = (self.folder / "tiny.yaml").read_text().partition("launch:")[0]
        (self.folder / "experiment.yaml").write_text(text.replace("name: tiny\n", ""))
        (self.folder / "launch").symlink_to(REPOSITORY / "launch")
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        said = self.cluster.run(
            *("bash", "-c", f"{command} train.epochs=1"),
            directory=self.folder, PATH=path, PYTHONPATH=str(REPOSITORY), TMPDIR=str(self.folder / "temporary"),
        )  # fmt: skip
        return said.split()[-1]

    def stand_in(self) -> Path:
        path = self.folder / "stand-in"
        path.write_text(STAND_IN)
        path.chmod(0o755)
        return path

    def attempts(self, run: str) -> int:
        """Of a stand-in: how often it has been started."""
        file = self.folder / run / "attempts"
        return len(file.read_text().split()) if file.exists() else 0

    def status(self, run: str) -> dict[str, Any]:
        return json.loads(self.disttrain("status", run, "--json"))

    def events(self, run: str) -> list[dict[str, Any]]:
        file = self.folder / run / "metrics.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def until_step(self, run: str, job: str, step: int) -> int:
        """Wait until the run has come so far; returns how far."""

        def reached() -> int:
            assert self.cluster.state(job) in ("PENDING", "RUNNING", "CONFIGURING"), self.said(run)
            steps = [event["step"] for event in self.events(run) if event["event"] == "train"]
            return max(steps, default=0) if max(steps, default=0) >= step else 0

        return wait_for(reached, SECONDS, f"step {step} of {run}: {self.said(run)}")

    def until_over(self, run: str, job: str) -> str:
        """Wait until Slurm has nothing more to do with a job; returns its state."""

        def over() -> str:
            state = self.cluster.state(job)
            return "" if state in ("PENDING", "RUNNING", "CONFIGURING", "COMPLETING") else state

        try:
            return wait_for(over, SECONDS, f"the end of job {job}")
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.said(run)}\n{self.cluster.logs()}") from None

    def said(self, run: str) -> str:
        return "\n".join(file.read_text() for file in sorted((self.folder / run).glob("slurm-*.out")))

    def weights(self, run: str) -> dict[str, np.ndarray]:
        """Of the newest checkpoint."""
        newest = sorted((self.folder / run / "checkpoints").glob("step-*"))[-1]
        reader = FileSystemReader(newest)
        metadata = reader.read_metadata().state_dict_metadata
        tensors = {
            name: torch.empty(value.size, dtype=value.properties.dtype)  # pyright: ignore
            for name, value in metadata.items()
        }
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
            load(tensors, storage_reader=reader, no_dist=True)
        return {name: tensor.numpy() for name, tensor in tensors.items()}


@pytest.fixture(scope="module")
def jobs(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Jobs:
    return Jobs(cluster, tmp_path_factory.mktemp("slurm"))


@pytest.fixture(scope="module")
def submitted(jobs: Jobs) -> dict[str, str]:
    """All at once, on one partition directory that none of them finds made: name -> number of the job."""
    seeds = ["sweep.grid.seed=[0,1,2]", "launch.nodes=1", "train.epochs=2", "name=seeds"]
    return {
        "experiment": jobs.by_hand(),
        "straight": jobs.submit(f"run_dir={json.dumps(ODD)}"),
        "stopped": jobs.submit("name=stopped"),
        "cancelled": jobs.submit("name=cancelled", "train.epochs=100000", "launch.slurm.grace=60"),
        "seeds": jobs.submit(*seeds),
        "refused": jobs.submit("name=refused", "launch.nodes=1", "launch.procs_per_node=1",
                               "data={source: file, path: nowhere.pt}"),
        "too-long": jobs.submit("name=too-long", "launch.nodes=1", f"launch.python={jobs.stand_in()}",
                                "launch.slurm.time=0:02:00", "launch.slurm.grace=30"),
    }  # fmt: skip


@pytest.fixture(scope="module")
def woken(jobs: Jobs, submitted: dict[str, str]) -> int:
    """The run `stopped` was under way, as `status` said, when Slurm's notice came; returns the step."""
    job = submitted["stopped"]
    reached = jobs.until_step("runs/stopped", job, 20)
    found = jobs.status("runs/stopped")
    jobs.cluster.run("scancel", "--signal=USR1", "--batch", job)
    assert (found["state"], found["job"], found["job_state"]) == ("running", job, "RUNNING")
    assert found["step"] >= reached and found["epochs"] == 12
    return reached


def equal(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> bool:
    return first.keys() == second.keys() and all(np.array_equal(first[name], second[name]) for name in first)


def test_nothing_is_left_of_a_job_that_is_cancelled(jobs: Jobs, submitted: dict[str, str], woken: int) -> None:
    job, run = submitted["cancelled"], "runs/cancelled"
    reached = jobs.until_step(run, job, 20)
    assert "is RUNNING: end it with" in jobs.refused("submit", "slurm", "tiny.yaml", "name=cancelled")
    jobs.cluster.run("scancel", job)
    assert jobs.until_over(run, job) == "CANCELLED"
    assert jobs.cluster.field(job, "Restarts") == "0"

    def ours() -> list[str]:
        return [words for node in jobs.cluster.nodes for words in node.processes() if "name=cancelled" in words]

    wait_for(lambda: not ours(), SECONDS, f"the end of {ours()}")
    found = jobs.status(run)
    assert found["state"] == "stopped", jobs.said(run)
    assert int(found["checkpoint"].removeprefix("step-")) == found["step"] >= reached


def test_a_run_that_is_stopped_in_mid_epoch_is_requeued_and_ends_the_same(
    jobs: Jobs, submitted: dict[str, str], woken: int
) -> None:
    job = submitted["stopped"]
    assert jobs.until_over("runs/stopped", job) == "COMPLETED", jobs.said("runs/stopped")
    assert jobs.cluster.field(job, "Restarts") == "1"
    assert "stopped before the run was over; requeued" in jobs.said("runs/stopped")
    (resumed,) = [event["step"] for event in jobs.events("runs/stopped") if event["event"] == "resume"]
    steps = max(event["step"] for event in jobs.events("runs/stopped"))
    assert woken <= resumed < steps
    assert resumed % (steps // 12), "it was stopped within an epoch"
    assert not (jobs.folder / "runs" / "stopped" / "STOP").exists()

    assert jobs.until_over(ODD, submitted["straight"]) == "COMPLETED", jobs.said(ODD)
    assert equal(jobs.weights("runs/stopped"), jobs.weights(ODD))
    assert summary(jobs, "runs/stopped")["test"] == summary(jobs, ODD)["test"]


def summary(jobs: Jobs, run: str) -> dict[str, Any]:
    return json.loads((jobs.folder / run / "summary.json").read_text())


def test_a_job_of_two_nodes_comes_to_what_torchrun_by_hand_does(jobs: Jobs, submitted: dict[str, str]) -> None:
    assert jobs.until_over(ODD, submitted["straight"]) == "COMPLETED", jobs.said(ODD)
    assert f"slurm-{submitted['straight']}.out" in os.listdir(jobs.folder / ODD)
    found = summary(jobs, ODD)
    assert (found["world_size"], found["nodes"], found["epochs"]) == (2, 2, 12)
    done = jobs.status(ODD)
    assert (done["state"], done["epoch"], done["test"]) == ("done", 12, found["test"])

    commands = [
        agent_command(["tiny.yaml", "name=by-hand"], k, machines=2, host="node1", address=node.name)
        for k, node in enumerate(jobs.cluster.nodes)
    ]
    starts = [starter(node) for node in jobs.cluster.nodes]
    for ended in run_all(commands, [jobs.folder] * 2, start=starts, timeout=SECONDS):
        assert ended.code == 0, ended.err
    by_hand = summary(jobs, "runs/by-hand")
    same = ("task", "world_size", "nodes", "epochs", "steps", "best_epoch", "val", "test", "num_evaluated", "partition")
    assert {key: by_hand[key] for key in same} == {key: found[key] for key in same}
    assert equal(jobs.weights("runs/by-hand"), jobs.weights(ODD))


def starter(node: Machine) -> Any:
    def start(command: list[str], environment: dict[str, str], directory: Path, out: Any, err: Any) -> Any:
        return subprocess.Popen(
            node.command(*command, directory=directory), env=environment, stdout=out, stderr=err, start_new_session=True
        )

    return start


def test_an_array_over_three_seeds(jobs: Jobs, submitted: dict[str, str]) -> None:
    job, sweep = submitted["seeds"], "runs/seeds"

    def over() -> bool:
        lines = jobs.cluster.run("squeue", "--noheader", "--job", job).split()
        return not lines

    wait_for(over, SECONDS, f"the end of the array: {jobs.said(sweep)}")
    rows = (jobs.folder / sweep / "results.csv").read_text().splitlines()
    assert rows[0].startswith("point,seed,state,val_accuracy")
    assert sorted(row.split(",")[:3] for row in rows[1:]) == [[f"seed={k}", str(k), "done"] for k in range(3)]
    found = jobs.status(sweep)
    assert [point["state"] for point in found["points"]] == ["done"] * 3
    scores = [point["val"]["accuracy"] for point in found["points"]]
    assert scores == sorted(scores, reverse=True)
    assert len({json.dumps(point["val"]) for point in found["points"]}) > 1, "the seeds differ"
    table = jobs.disttrain("status", sweep)
    assert "3 of 3 points done, sorted by val accuracy" in table and "over 3 seeds" in table
    assert "nothing to submit" in jobs.disttrain(
        "submit", "slurm", "tiny.yaml", "sweep.grid.seed=[0,1,2]", "launch.nodes=1", "name=seeds"
    )


STAND_IN = """#!/bin/bash
# In the place of Python: lasts until it is asked to stop, or to end well.
run=${!#}
case $run in run_dir=*) run=${run#run_dir=} ;; *) run=runs/alone/$run ;; esac
echo began >>"$run/attempts"
until [ -e "$run/STOP" ] || [ -e "$run/go" ]; do sleep 0.1; done
rm -f "$run/STOP"
[ ! -e "$run/go" ] || touch "$run/DONE"
"""


def test_a_task_of_an_array_requeues_itself_only(jobs: Jobs) -> None:
    array = ["sweep.grid.seed=[0,1,2]", "launch.nodes=1", "name=alone"]
    job = jobs.submit(*array, f"launch.python={jobs.stand_in()}")
    runs = [f"runs/alone/seed={k}" for k in range(3)]

    def attempts() -> list[int]:
        return [jobs.attempts(run) for run in runs]

    wait_for(lambda: attempts() == [1, 1, 1], SECONDS, "three tasks")
    said = [jobs.cluster.run("scontrol", "--oneliner", "show", "job", f"{job}_{k}") for k in range(3)]
    (last,) = (k for k in range(3) if said[k].startswith(f"JobId={job} "))  # which has the number of the array
    jobs.cluster.run("scancel", "--signal=USR1", "--batch", f"{job}_{last}")
    wait_for(lambda: attempts()[last] == 2, SECONDS, f"the second attempt: {jobs.said('runs/alone')}")
    for run in runs:
        (jobs.folder / run / "go").touch()
    wait_for(lambda: not jobs.cluster.run("squeue", "--noheader", "--job", job).split(), SECONDS, "the end")
    assert attempts() == [2 if k == last else 1 for k in range(3)], jobs.said("runs/alone")
    assert all((jobs.folder / run / "DONE").exists() for run in runs)


def test_the_template_works_by_itself(jobs: Jobs, submitted: dict[str, str]) -> None:
    run, job = "runs/experiment", submitted["experiment"]
    assert jobs.until_over(run, job) == "COMPLETED", jobs.said(run)
    found = summary(jobs, run)
    assert (found["nodes"], found["epochs"]) == (2, 1)
    assert "lr: 0.01" in (jobs.folder / run / "experiment.yaml").read_text()


def test_what_is_refused_is_not_requeued(jobs: Jobs, submitted: dict[str, str]) -> None:
    job, run = submitted["refused"], "runs/refused"
    assert jobs.until_over(run, job) == "FAILED"
    assert jobs.cluster.field(job, "Restarts") == "0"
    assert "nowhere.pt" in jobs.said(run) and "it would fail again" in jobs.said(run)
    assert jobs.status(run)["state"] == "failed"


def test_what_sbatch_refuses_is_said(jobs: Jobs) -> None:
    said = jobs.refused("submit", "slurm", "tiny.yaml", "name=nowhere", "launch.slurm.partition=no-such")
    assert "invalid partition" in said and "there are main, urgent" in said
    said = jobs.refused("submit", "slurm", "tiny.yaml", "name=nowhere", "launch.slurm.dependency=afterok:no-job")
    assert "sbatch refused the job" in said and "ependency" in said


def test_who_runs_into_its_time_limit_is_told_before_and_goes_on(jobs: Jobs, submitted: dict[str, str]) -> None:
    """The notice comes from Slurm itself, `launch.slurm.grace` and up to a minute before the end."""
    job, run = submitted["too-long"], "runs/too-long"
    wait_for(lambda: jobs.attempts(run) == 2, SECONDS, f"the second attempt: {jobs.said(run)}")
    (jobs.folder / run / "go").touch()
    assert jobs.until_over(run, job) == "COMPLETED", jobs.said(run)
    assert (jobs.cluster.field(job, "Restarts"), jobs.cluster.field(job, "TimeLimit")) == ("1", "00:02:00")
    assert "stopped before the run was over; requeued" in jobs.said(run)


def test_who_has_to_make_room_goes_on_after_it_and_ends_the_same(jobs: Jobs, submitted: dict[str, str]) -> None:
    """A job of a partition with a higher priority takes all nodes."""
    for name, job in submitted.items():
        if name != "seeds":
            jobs.until_over(f"runs/{name}", job)
    run = "runs/preempted"
    job = jobs.submit("name=preempted")
    reached = jobs.until_step(run, job, 20)
    said = jobs.cluster.run(
        "sbatch", "--partition=urgent", "--nodes=2", "--exclusive", "--output=urgent.out", "--wrap", "sleep 5",
        directory=jobs.folder,
    )  # fmt: skip
    assert jobs.until_over("runs", said.split()[-1]) == "COMPLETED"
    assert jobs.until_over(run, job) == "COMPLETED", jobs.said(run)
    assert int(jobs.cluster.field(job, "Restarts")) >= 1, jobs.said(run)
    resumed = [event["step"] for event in jobs.events(run) if event["event"] == "resume"]
    assert resumed and max(resumed) >= reached
    assert equal(jobs.weights(run), jobs.weights(ODD))


def test_nothing_is_left(jobs: Jobs, submitted: dict[str, str]) -> None:
    """When all jobs are over: no process, shared memory or temporary file, and one directory of partitions."""
    for name, job in submitted.items():
        if name != "seeds":
            jobs.until_over(f"runs/{name}", job)
    time.sleep(1)
    for node in jobs.cluster.nodes:
        others = [words for words in node.processes() if not re.match(r"(/\S*/)?(slurmd|sleep|sh|slurmstepd)\b", words)]
        assert others == []
        shared = subprocess.run(node.command("ls", "-A", "/dev/shm"), capture_output=True, text=True, timeout=30)
        assert (shared.returncode, shared.stdout) == (0, "")
    # torch makes its cache of compiled code there, one for each user.
    assert [name for name in os.listdir(jobs.folder / "temporary") if name != "torchinductor_root"] == []
    parts = [name for name in os.listdir(jobs.folder) if "parts" in name]
    assert parts == ["parts"], parts
