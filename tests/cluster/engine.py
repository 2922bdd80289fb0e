"""A container engine of the tests' own: a docker daemon that is started and ended here, a base image that comes from no
registry, and the image that docker/Dockerfile makes on it.

The daemon has its own socket and folder, no default bridge, and sets no rule of the firewall: when it has ended, the
machine is as it was. The base image (Debian with Python) and the wheels that go into the image are kept for the next
time, in $DISTTRAIN_CACHE, else /var/cache/disttrain.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

from ..agents import REPOSITORY

CACHE = Path(os.environ.get("DISTTRAIN_CACHE") or "/var/cache/disttrain")
BASE = "disttrain-test/debian-python:12"
IMAGE = "disttrain:cpu"
PYTHON = "3.11"
"""The one that Debian 12 has."""
PACKAGES = "python3,python3-venv,ca-certificates"
LEFT_OUT = [f"--dpkgopt=path-exclude=/usr/share/{folder}/*" for folder in ("doc", "man", "locale", "info")]


def cannot(why: str) -> NoReturn:
    """Skip; where all is expected to be there, fail."""
    if os.environ.get("CI"):
        pytest.fail(f"the container engine cannot be used here: {why}")
    pytest.skip(f"the container engine cannot be used here: {why}")


class Engine:
    """A daemon that is running, and its client."""

    def __init__(self, address: str, data: Path) -> None:
        self.address, self.data = address, data
        self.environment = {
            **os.environ,
            "DOCKER_HOST": address,
            "DOCKER_BUILDKIT": "0",
            "COMPOSE_DOCKER_CLI_BUILD": "0",
        }

    def docker(self, *arguments: str, check: bool = True, timeout: float = 120.0) -> subprocess.CompletedProcess[str]:
        """Run the client; what it said is in the error when it fails."""
        done = subprocess.run(
            ["docker", *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )
        if check and done.returncode:
            raise RuntimeError(f"docker {' '.join(arguments)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def compose(self, *arguments: str, **variables: str) -> list[str]:
        """A command of docker/compose.yaml, with variables of it."""
        file = REPOSITORY / "docker" / "compose.yaml"
        given = [f"{name}={value}" for name, value in variables.items()]
        return ["env", *given, "docker-compose", "--file", str(file), "--project-name", "disttrain-test", *arguments]

    def volume(self, name: str) -> Path:
        """Where a volume's files are."""
        return self.data / "volumes" / name / "_data"

    def containers(self) -> list[str]:
        """Names of those that are there, running or not."""
        return self.docker("ps", "--all", "--format", "{{.Names}}").stdout.split()


@contextmanager
def engine() -> Iterator[Engine]:
    """Start a daemon, and end it with all its containers."""
    for program in ("dockerd", "docker"):
        if shutil.which(program) is None:
            cannot(f"{program} is not installed (Debian: docker.io)")
    if os.geteuid() != 0:
        cannot("a daemon needs root")
    place = Path(tempfile.mkdtemp(prefix="dt-", dir="/run"))  # sockets have short names
    data = Path(tempfile.mkdtemp(prefix="disttrain-docker-", dir="/var/lib"))
    address = f"unix://{place}/docker.sock"
    log = place / "dockerd.log"
    with log.open("wb") as said:
        daemon = subprocess.Popen(
            [
                *("dockerd", "--host", address, "--data-root", str(data), "--exec-root", f"{place}/exec"),
                *("--pidfile", f"{place}/docker.pid", "--storage-driver", "overlay2"),
                *("--bridge=none", "--iptables=false", "--ip-forward=false", "--ip-masq=false"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
    made = Engine(address, data)
    try:
        deadline = time.monotonic() + 60
        while made.docker("version", check=False).returncode:
            if daemon.poll() is not None or time.monotonic() > deadline:
                cannot(f"dockerd does not start: {log.read_text(errors='replace')[-1500:]}")
            time.sleep(0.1)
        yield made
        if left := made.containers():
            made.docker("rm", "--force", *left)
    finally:
        daemon.terminate()
        try:
            daemon.wait(60)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()
        for folder in (place, data):
            shutil.rmtree(folder, ignore_errors=True)


def base_tar() -> Path:
    """Debian and its Python, from Debian's packages; made once."""
    CACHE.mkdir(parents=True, exist_ok=True)
    made = CACHE / f"debian-12-python-{PYTHON}.tar"
    with (CACHE / ".base.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            if shutil.which("mmdebstrap") is None:
                cannot("mmdebstrap, which makes the base image, is not installed")
            part = made.with_suffix(".part.tar")
            command = ["mmdebstrap", "--variant=minbase", f"--include={PACKAGES}", *LEFT_OUT, "bookworm", str(part)]
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=600, check=False)
            if done.returncode:
                cannot(f"{' '.join(command)}: {done.stderr[-1500:]}")
            part.replace(made)
    return made


def base_image(engine: Engine) -> None:
    engine.docker("import", str(base_tar()), BASE, timeout=300)


def wheels() -> Path:
    """What the image is made of, as files: with the machine's own pip, since a container reaches no index."""
    place = CACHE / f"wheels-{PYTHON}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / ".wheels.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp, wanted = place / ".complete", (REPOSITORY / "constraints.txt").read_text() + PYTHON
        if not stamp.exists() or stamp.read_text() != wanted:
            shutil.rmtree(place, ignore_errors=True)
            command = [
                *(
                    sys.executable,
                    "-m",
                    "pip",
                    "download",
                    "--quiet",
                    "--only-binary=:all:",
                    f"--python-version={PYTHON}",
                ),
                *("--constraint", str(REPOSITORY / "constraints.txt"), "--dest", str(place), "setuptools", *needed()),
            ]
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=900, check=False)
            if done.returncode:
                cannot(f"{' '.join(command)}: {done.stderr[-1500:]}")
            stamp.write_text(wanted)
    return place


def needed() -> list[str]:
    """What pyproject.toml says that disttrain needs."""
    text = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    lines = text.partition("\ndependencies = [\n")[2].partition("\n]")[0].splitlines()
    return [line.split('"')[1] for line in lines]


def context(place: Path) -> Path:
    """The repository as far as the image needs it, with the wheels in their folder."""
    for name in (".dockerignore", "LICENSE", "README.md", "constraints.txt", "pyproject.toml"):
        shutil.copy(REPOSITORY / name, place / name)
    for name in ("disttrain", "docker"):
        ignored = shutil.ignore_patterns("__pycache__", "*.whl")
        shutil.copytree(REPOSITORY / name, place / name, ignore=ignored)
    for wheel in wheels().glob("*.whl"):
        shutil.copy(wheel, place / "docker" / "wheels" / wheel.name)
    return place


def build(engine: Engine, place: Path, target: str, tag: str) -> subprocess.CompletedProcess[str]:
    """`docker build` in a context, without any network."""
    return engine.docker(
        *(
            "build",
            "--force-rm",
            "--network=none",
            f"--file={place}/docker/Dockerfile",
            f"--target={target}",
            f"--tag={tag}",
        ),
        *(f"--build-arg=BASE_IMAGE={BASE}", "--build-arg=PIP_OPTIONS=--no-index", str(place)),
        check=False,
        timeout=900,
    )
