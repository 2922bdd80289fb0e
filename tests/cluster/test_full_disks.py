"""Disks that are really full: a file system of a few megabytes, filled to its last byte at one moment of a job.

`tests/distributed/test_faults_disks.py` has more kinds of files, under a limit of the process that needs no root.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ..agents import agent_command
from ..fault_table import DISKS
from ..faults import Fault, ended_cleanly, goes_on, lay_out, run_commands, run_job
from ..ports import free_port
from ..preloaded import Preloaded
from ..saboteur import fill

pytestmark = pytest.mark.cluster

FULL = r"the disk is full \(0 MiB free"
ROWS = {
    "the-disk-is-full-for-partitions": r"partition directory parts: the disk is full; .* 0\.0 MB are free\. Make room",
    "the-disk-is-full-for-the-settings": rf"experiment\.yaml could not be written to runs/tiny: {FULL}",
    "the-disk-is-full-for-a-checkpoint": (
        rf"a checkpoint could not be written to runs/tiny/checkpoints/step-0000000003: {FULL}"
    ),
    "the-disk-is-full-for-the-summary": rf"summary\.json could not be written to runs/tiny: {FULL}",
}


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file system of 4 MB."""
    place = tmp_path_factory.mktemp("disk")
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(place)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"a file system cannot be mounted here: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.fixture(scope="module")
def server(disk: Path) -> Iterator[Preloaded]:
    with Preloaded() as server:  # it has mounts of its own, those that it found
        yield server


@pytest.fixture
def job(disk: Path) -> Iterator[Path]:
    """A job's folder on the small disk, empty before and after."""
    place = disk / "job"
    place.mkdir()
    lay_out(place)
    yield place
    subprocess.run(["rm", "-r", *disk.iterdir()], check=True)


@pytest.mark.parametrize("name", ROWS)
def test_fault(name: str, server: Preloaded, job: Path) -> None:
    fault = replace(DISKS[name], kind="fill the disk with bytes", says=(ROWS[name],))
    ended_cleanly(fault, run_job(server, job, fault.arguments()), job)
    (job / "ballast").unlink()
    goes_on(server, fault, job)


def test_predictions(server: Preloaded, job: Path) -> None:
    planted = Fault(where="disttrain.predict.output:PartFile._write", kind="fill the disk with bytes", rank=0, call=1)
    assert [agent.code for agent in run_job(server, job, planted.arguments()).ended] == [0, 0]
    port = free_port()
    commands = [agent_command(["predict", "runs/tiny"], machine, 2, port=port) for machine in range(2)]
    ended = run_commands(server, [server.start] * 2, commands, [job] * 2, dict(os.environ))
    assert [agent.code for agent in ended.ended] == [1, 1], ended.said
    assert re.search(rf"predictions could not be written to .*: {FULL}.* another --output", ended.said), ended.said
    assert not list((job / "runs" / "tiny").glob("predictions/**/*.parquet"))


def test_partitions_that_are_sent(server: Preloaded, job: Path, tmp_path: Path) -> None:
    """To a second machine, whose disk is the full one."""
    first = tmp_path / "first"
    first.mkdir()
    lay_out(first)
    (job / "saboteur.py").unlink()
    fill(job / "ballast")
    arguments = ["tiny.yaml", "partition.distribute=send"]
    refused = run_job(server, tmp_path, arguments, directories=[first, job])
    assert all(agent.code for agent in refused.ended), refused.said
    expected = r"partition directory parts on \S+: no space left on device; .* 0\.0 MB are free\. Make room"
    assert re.search(expected, refused.said), refused.said
    assert "Traceback" not in refused.said, refused.said
    (job / "ballast").unlink()
    assert [agent.code for agent in run_job(server, tmp_path, arguments, directories=[first, job]).ended] == [0, 0]


def test_vectors_between_layers(server: Preloaded, job: Path, tmp_path: Path) -> None:
    lay_out(tmp_path)
    fill(job / "ballast")
    before = sorted(os.listdir(job))
    ended = run_job(server, tmp_path, ["tiny.yaml", f"evaluate={{method: layerwise, scratch: '{job}'}}"])
    assert all(agent.code for agent in ended.ended), ended.said
    assert re.search(rf"the vectors between layers .*could not be written to .*: {FULL}.*evaluate\.scratch", ended.said)
    assert "Traceback" not in ended.said, ended.said
    assert sorted(os.listdir(job)) == before


def test_arrays_while_tables_are_read(server: Preloaded, job: Path, tmp_path: Path) -> None:
    (tmp_path / "v.csv").write_text("id,x,y\n" + "".join(f"{i},{i / 7},{i % 3}\n" for i in range(20_000)))
    (tmp_path / "tiny.yaml").write_text(TABLES)
    fill(job / "ballast")
    before = sorted(os.listdir(job))
    command = [sys.executable, "-m", "disttrain", "tiny.yaml", f"partition.dir={job / 'parts'}"]
    ended = run_commands(server, [server.start], [command], [tmp_path], {**os.environ, "TMPDIR": str(job)})
    assert ended.ended[0].code == 2, ended.said
    assert re.search(rf"{job}.*(is full|No space left)", ended.said), ended.said
    assert "Traceback" not in ended.said, ended.said
    assert sorted(os.listdir(job)) == before


TABLES = """\
name: tiny
data: {source: tables, root: ., nodes: {v: {file: v.csv, key: id, label: y, features: {numeric: [x]}}},
       split: {by: ratio, train: 0.5, val: 0.2, test: 0.2}}
task: {kind: node_classification}
model: {kind: hetero_conv, hidden: 4}
train: {epochs: 1, threads: 1}
"""


def test_machine_code(job: Path, tmp_path: Path) -> None:
    """It is compiled again then."""
    fill(job / "ballast")
    program = (
        "import numpy; from disttrain.graph.order import add_counts; c = numpy.zeros(2, int); "
        "add_counts(numpy.array([1, 1]), c); print(c)"
    )
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(job)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert (done.returncode, done.stdout.strip()) == (0, "[0 2]"), done.stderr
