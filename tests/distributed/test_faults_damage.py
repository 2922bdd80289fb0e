"""Files that are damaged, missing, in use or forbidden when a job starts: it says so, and reads nothing torn."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from disttrain.train.checkpoint import CheckpointDirectory

from ..agents import agent_command
from ..fault_table import ALONE, DAMAGES, FORBIDDEN, Damage
from ..faults import Fault, Job, ended_cleanly, lay_out, nothing_torn, run_commands, run_job
from ..ports import free_port
from ..preloaded import Preloaded

NOBODY = 65534


@pytest.fixture(scope="module")
def stopped(server: Preloaded, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two machines that failed in step 5 of 10, and left checkpoints."""
    directory = tmp_path_factory.mktemp("stopped")
    lay_out(directory)
    job = run_job(server, directory, Fault(call=5).arguments())
    ended_cleanly(Fault(call=5, never=()), job, directory)
    (directory / "mended").touch()
    return directory


def alone(server: Preloaded, directory: Path, *arguments: str, environment: dict[str, str] | None = None) -> Job:
    """`-m disttrain <arguments>`, without torchrun."""
    command = [sys.executable, "-m", "disttrain", *arguments]
    return run_commands(server, [server.start], [command], [directory], environment or dict(os.environ))


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    file.write_bytes(content)


def cut_short(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def newest(directory: Path, which: int = 0) -> Path:
    checkpoints = CheckpointDirectory(directory / "runs" / "tiny" / "checkpoints")
    return checkpoints.directory / checkpoints.names()[which]


def weights(checkpoint: Path) -> Path:
    (file,) = checkpoint.glob("*.distcp")
    return file


HOW = {
    "the newest checkpoint flipped": lambda directory: flip(weights(newest(directory))),
    "the newest checkpoint cut short": lambda directory: cut_short(weights(newest(directory))),
    "all checkpoints flipped": lambda directory: [flip(weights(newest(directory, which))) for which in (0, 1)],
    "a partition cut short": lambda directory: cut_short(directory / "parts" / "nodes" / "0" / "x.npy"),
    "a partition without a file": lambda directory: (directory / "parts" / "nodes" / "0" / "x.npy").unlink(),
    "a manifest cut short": lambda directory: cut_short(directory / "parts" / "manifest.json"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_fault(name: str, server: Preloaded, stopped: Path, tmp_path: Path) -> None:
    damage: Damage = DAMAGES[name]
    directory = tmp_path / "job"
    shutil.copytree(stopped, directory)
    HOW[damage.how](directory)
    before = int(newest(directory, 1).name.removeprefix("step-"))
    job = run_job(server, directory, Fault(call=5).arguments())
    assert [agent.code for agent in job.ended] == [damage.code] * 2, job.said
    for pattern in damage.says:
        assert re.search(pattern, job.said), f"expected to read {pattern!r} in\n{job.said}"
    assert "Traceback" not in job.said, job.said
    if damage.code == 0:
        lines = (directory / "runs" / "tiny" / "metrics.jsonl").read_text().splitlines()
        assert ("resume", before) in [(line["event"], line["step"]) for line in map(json.loads, lines)]
        nothing_torn(directory)


def test_a_bit_of_a_partition_is_flipped(server: Preloaded, stopped: Path, tmp_path: Path) -> None:
    shutil.copytree(stopped / "parts", tmp_path / "parts")
    flip(tmp_path / "parts" / "nodes" / "0" / "x.npy")
    job = alone(server, tmp_path, "verify", "parts")
    assert job.ended[0].code == 2
    assert re.search(ALONE["a-bit-of-a-partition-is-flipped"], job.said), job.said


def test_the_run_directory_is_in_use(server: Preloaded, stopped: Path, tmp_path: Path) -> None:
    shutil.copytree(stopped, tmp_path / "job")
    with open(tmp_path / "job" / "runs" / "tiny" / ".lock", "a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        job = run_job(server, tmp_path / "job", Fault(call=5).arguments())
    assert [agent.code for agent in job.ended] == [1, 1]
    assert re.search(ALONE["the-run-directory-is-in-use"], job.said), job.said
    assert job.said.count("is in use by") == 1


@pytest.fixture
def plain(stopped: Path) -> Iterator[tuple[Path, dict[str, str]]]:
    """A copy of the stopped run whose owner is not root, and the environment that runs a job as that user."""
    directory = Path(tempfile.mkdtemp(prefix="disttrain-plain-"))
    environment = dict(os.environ)
    try:
        shutil.copytree(stopped, directory, dirs_exist_ok=True)
        if os.getuid() == 0:
            for path in (directory, *directory.rglob("*")):
                os.chown(path, NOBODY, NOBODY)
            environment |= {"DISTTRAIN_TEST_USER": str(NOBODY), "HOME": str(directory)}
        yield directory, environment
    finally:
        for path in (directory, *(path for path in directory.rglob("*") if path.is_dir())):
            path.chmod(0o700)
        shutil.rmtree(directory)


@pytest.mark.parametrize("name", FORBIDDEN)
def test_forbidden(name: str, server: Preloaded, plain: tuple[Path, dict[str, str]]) -> None:
    path, mode, said = FORBIDDEN[name]
    directory, environment = plain
    (directory / path).chmod(mode)
    arguments = [*Fault(call=5).arguments(), "partition.parts=2", "run_dir=runs/another"]
    job = alone(server, directory, *arguments, environment=environment)
    assert job.ended[0].code == 2, job.said
    assert re.search(said, job.said), job.said
    assert "Traceback" not in job.said, job.said


def test_the_port_is_in_use(server: Preloaded, tmp_path: Path) -> None:
    lay_out(tmp_path)
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        command = agent_command(["tiny.yaml"], 0, 1, port=taken.getsockname()[1])
        job = run_commands(server, [server.start], [command], [tmp_path], dict(os.environ))
    assert job.ended[0].code == 1
    assert re.search(ALONE["the-port-is-in-use"], job.ended[0].err), job.ended[0].err
    assert not (tmp_path / "runs").exists()


def test_the_disk_is_full_for_predictions(server: Preloaded, tmp_path: Path) -> None:
    lay_out(tmp_path)
    planted = Fault(where="disttrain.predict.output:PartFile._write", kind="fill the disk", rank=0, call=1)
    ran = run_job(server, tmp_path, planted.arguments())
    assert [agent.code for agent in ran.ended] == [0, 0], ran.said
    program = ["predict", "runs/tiny"]
    port = free_port()
    commands = [agent_command(program, machine, 2, port=port) for machine in range(2)]
    job = run_commands(server, [server.start] * 2, commands, [tmp_path] * 2, dict(os.environ))
    assert [agent.code for agent in job.ended] == [1, 1], job.said
    assert re.search(ALONE["the-disk-is-full-for-predictions"], job.said), job.said
    assert not list((tmp_path / "runs" / "tiny").glob("predictions/**/*.parquet"))
