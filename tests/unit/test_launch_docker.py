"""`disttrain submit docker`: the script, and what really comes to `docker` on each host."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from disttrain.config import ExperimentError, Launch
from disttrain.config.file import parse_experiment
from disttrain.launch.docker import container_name, render, share_gpus
from disttrain.launch.request import Request
from disttrain.launch.torchrun import torchrun_command, torchrun_environment

from ..agents import REPOSITORY

GOLDEN = Path(__file__).parent / "golden"

EXPERIMENT = """\
data: {source: generated, nodes: {v: {num_nodes: 20, features: 2}}, edges: {"v,e,v": {num_edges: 30}}, num_classes: 2}
task: {kind: node_classification}
model: {kind: hetero_conv}
"""

TWO_HOSTS = """\
launch:
  procs_per_node: 4
  max_restarts: 3
  interface: ens5
  env: {NCCL_DEBUG: INFO, NOTE: 'it''s "quoted", with spaces'}
  docker:
    image: registry/disttrain:cuda
    hosts: [me@gpu-1, gpu-2.example]
    mounts: [{source: "/data, all of it", target: /data, read_only: true}, {source: '/mnt/it''s "shared"'}]
    gpus: all
    user: "1000:1000"
    options: ["--ulimit=memlock=-1"]
    ssh: [-p, "2222"]
"""
DIRECTORY = "/home/me/the project's $HOME"
ODD = ("model.hidden=16", "data.note='a b'", "$(touch here)", "`id`;\\", 'say="x"', "two\nlines", "ü")


def request(text: str = "", *overrides: str, words: tuple[str, ...] = (), path: str = "experiment.yaml") -> Request:
    """An experiment with overrides; or with words that look like some, and are not read."""
    named = text if text.startswith("name: ") else f"name: tiny\n{text}"
    return Request(parse_experiment(EXPERIMENT + named, overrides), path, words or overrides)


def test_two_hosts_over_ssh() -> None:
    made = render(request(TWO_HOSTS, words=("train.lr=0.01", "data.root=/data/own files", "--fresh")), DIRECTORY, "0:0")
    assert made == (GOLDEN / "docker_two_hosts.sh").read_text(encoding="utf-8")


def test_the_template_is_what_is_rendered() -> None:
    template = (REPOSITORY / "launch" / "docker.sh").read_text(encoding="utf-8")
    overrides = ["hosts=[user@host1, user@host2]", "directory=/shared/project", "user=1000:1000"]
    assert (
        render(request("name: experiment", *(f"launch.docker.{override}" for override in overrides)), "/", "0:0")
        == template
    )


def test_compose_starts_what_submit_would() -> None:
    file = yaml.safe_load((REPOSITORY / "docker" / "compose.yaml").read_text(encoding="utf-8"))
    for number in (1, 2):
        machine = file["services"][f"machine-{number}"]
        assert machine["hostname"] == f"machine-{number}"
        command = re.sub(r"\$\{\w+:-(.*?)\}", r"\1", machine["command"])
        program = ["-m", "disttrain", "configs/quickstart.yaml", "data.root=/data", "partition.dir=partitions"]
        expected = torchrun_command(
            Launch(nodes=2),
            program,
            endpoint="machine-1:29500",
            is_host=number == 1,
            local_address=f"machine-{number}",
        )
        assert shlex.split(command) == ["torchrun", *expected[3:]]
        assert torchrun_environment(Launch(interface="eth0")).items() <= machine["environment"].items()
        assert machine["init"] is True


FAKE_SSH = """\
#!/usr/bin/env python3
# Joins the words after the host with spaces for a shell on the host, as ssh and sshd do.
import os, sys
words = sys.argv[1:]
at = words.index("--")
host = words[at + 1]
with open(f"{os.environ['FAKE']}/sent", "ab") as file:
    file.write(("\\0".join(words[: at + 2]) + "\\n").encode())
if os.path.exists(f"{os.environ['FAKE']}/down-{host}"):
    sys.exit(255)
os.environ["FAKE_HOST"] = host
os.execvp("sh", ["sh", "-c", " ".join(words[at + 2 :])])
"""

FAKE_DOCKER = """\
#!/usr/bin/env python3
# Containers are files: `run-NAME` holds the words of `docker run`; with `exit-NAME`, it ends.
import os, sys, time
fake, words, host = os.environ["FAKE"], sys.argv[1:], os.environ.get("FAKE_HOST", "here")
if words[0] == "run":
    name = next(word for word in words if word.startswith("--name=")).removeprefix("--name=")
    if os.path.exists(f"{fake}/run-{name}"):
        sys.exit(125)
    with open(f"{fake}/.run-{name}", "wb") as file:
        file.write("\\0".join([host, *words]).encode("utf-8", "surrogateescape"))
    os.rename(f"{fake}/.run-{name}", f"{fake}/run-{name}")
    while not os.path.exists(f"{fake}/exit-{name}"):
        time.sleep(0.05)
    sys.exit(int(open(f"{fake}/exit-{name}").read()))
if words[0] == "ps":
    label = words[-1].removeprefix("label=").encode()
    runs = [name for name in os.listdir(fake) if name.startswith("run-")]
    with_it = [name for name in runs if b"--label=" + label in open(f"{fake}/{name}", "rb").read().split(b"\\0")]
    print(*(name.removeprefix("run-") for name in with_it))
    sys.exit()
if len(words) < {"stop": 4, "rm": 3}[words[0]]:
    sys.exit(1)
name = words[-1]
with open(f"{fake}/{words[0]}-{name}", "ab") as file:
    file.write(("\\0".join([host, *words]) + "\\n").encode())
if not os.path.exists(f"{fake}/run-{name}"):
    sys.exit(1)
with open(f"{fake}/.exit-{name}", "w") as file:
    file.write("1")
os.rename(f"{fake}/.exit-{name}", f"{fake}/exit-{name}")
"""


class Hosts:
    """Hosts that `ssh` reaches, with an engine each, as far as their clients can tell."""

    def __init__(self, place: Path) -> None:
        self.place, self.jobs = place, list[subprocess.Popen[str]]()
        for name, text in (("ssh", FAKE_SSH), ("docker", FAKE_DOCKER)):
            (place / name).write_text(text.replace("/usr/bin/env python3", sys.executable))
            (place / name).chmod(0o755)

    def submit(self, made: Request) -> subprocess.Popen[str]:
        text = render(made, DIRECTORY, "1:2")
        program = f"import sys; from disttrain.launch.together import run_script; sys.exit(run_script({text!r}))"
        environment = {
            **os.environ, "PYTHONPATH": str(REPOSITORY), "FAKE": str(self.place),
            "PATH": f"{self.place}:{os.environ['PATH']}",
        }  # fmt: skip
        command = [sys.executable, "-c", program]
        self.jobs.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True))
        return self.jobs[-1]

    def wait_for(self, *names: str) -> None:
        deadline = time.monotonic() + 60
        while not all((self.place / name).exists() for name in names):
            assert time.monotonic() < deadline, sorted(os.listdir(self.place))
            time.sleep(0.05)

    def words(self, name: str) -> list[str]:
        """The host, and what came to its docker."""
        return (self.place / name).read_text().split("\0")

    def end(self, container: str, code: int) -> None:
        (self.place / f"exit-{container}").write_text(str(code))


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    made = Hosts(tmp_path)
    yield made
    for job in made.jobs:
        with job:
            job.kill()


def test_every_word_arrives_byte_for_byte(hosts: Hosts) -> None:
    job = hosts.submit(request(TWO_HOSTS, words=ODD))
    hosts.wait_for("run-disttrain-tiny-1", "run-disttrain-tiny-2")
    jobs: set[str] = set()
    for machine, host in enumerate(("me@gpu-1", "gpu-2.example")):
        found = hosts.words(f"run-disttrain-tiny-{machine + 1}")
        job_id = next(word for word in found if word.startswith("--rdzv-id=")).removeprefix("--rdzv-id=")
        jobs.add(job_id)
        assert found == [
            host, "run", "--rm", "--init", f"--name=disttrain-tiny-{machine + 1}", "--network=host", "--user=1000:1000",
            "--shm-size=8589934592b", "--stop-timeout=60", f"--workdir={DIRECTORY}",
            f"--mount=type=bind,source={DIRECTORY},target={DIRECTORY}",
            '--mount=type=bind,"source=/data, all of it",target=/data,readonly',
            '--mount=type=bind,"source=/mnt/it\'s ""shared""","target=/mnt/it\'s ""shared"""',
            "--mount=type=volume,source=disttrain-code,target=/var/cache/disttrain",
            "--env=TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1", "--env=GLOO_SOCKET_IFNAME=ens5",
            "--env=NCCL_SOCKET_IFNAME=ens5", "--env=NCCL_DEBUG=INFO",
            '--env=NOTE=it\'s "quoted", with spaces', f"--label=disttrain.job={job_id}-{machine + 1}", "--gpus=all",
            "--ulimit=memlock=-1",
            "registry/disttrain:cuda", "python", "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=4",
            "--max-restarts=3", "--rdzv-backend=c10d", "--rdzv-endpoint=gpu-1:26557", f"--rdzv-id={job_id}",
            f"--rdzv-conf=is_host={int(machine == 0)},join_timeout=600",
            f"--local-addr={('gpu-1', 'gpu-2.example')[machine]}", "--log-dir=/dev/null",
            *("-m", "disttrain", "experiment.yaml"), *ODD,
        ]  # fmt: skip
    assert len(jobs) == 1
    for container in ("disttrain-tiny-1", "disttrain-tiny-2"):
        hosts.end(container, 0)
    assert job.communicate(timeout=60)[1] == ""
    assert job.returncode == 0
    sent = {line.split("\0")[-1]: line.split("\0")[:-2] for line in (hosts.place / "sent").read_text().splitlines()}
    assert sent["me@gpu-1"][0] == "-n" and sent["me@gpu-1"][-2:] == ["-p", "2222"]
    assert not (hosts.place / "here").exists()


def test_a_container_that_fails_ends_the_others(hosts: Hosts) -> None:
    job = hosts.submit(request(TWO_HOSTS))
    hosts.wait_for("run-disttrain-tiny-1", "run-disttrain-tiny-2")
    hosts.end("disttrain-tiny-2", 7)
    assert "machine 2 ended with exit code 7" in job.communicate(timeout=60)[1]
    assert job.returncode == 7
    stopped = (hosts.place / "stop-disttrain-tiny-1").read_text().splitlines()
    assert stopped == ["\0".join(["me@gpu-1", "stop", "-t", "60", "disttrain-tiny-1"])]


def test_a_second_job_of_that_name_leaves_the_first_one_alone(hosts: Hosts) -> None:
    first = hosts.submit(request(TWO_HOSTS))
    hosts.wait_for("run-disttrain-tiny-1", "run-disttrain-tiny-2")
    second = hosts.submit(request(TWO_HOSTS))
    assert "ended with exit code 125" in second.communicate(timeout=60)[1]
    assert second.returncode == 125
    assert first.poll() is None and not list(hosts.place.glob("stop-*"))
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=60)
    assert sorted(path.name for path in hosts.place.glob("stop-*")) == [
        "stop-disttrain-tiny-1",
        "stop-disttrain-tiny-2",
    ]


@pytest.mark.parametrize("text", [TWO_HOSTS, "launch: {nodes: 2, docker: {network: mine}}"])
def test_ctrl_c_stops_all_containers(hosts: Hosts, text: str) -> None:
    job = hosts.submit(request(text))
    hosts.wait_for("run-disttrain-tiny-1", "run-disttrain-tiny-2")
    job.send_signal(signal.SIGINT)
    job.communicate(timeout=60)
    assert job.returncode == 130
    assert len((hosts.place / "stop-disttrain-tiny-1").read_text().splitlines()) == 1
    assert len((hosts.place / "stop-disttrain-tiny-2").read_text().splitlines()) == 1


def test_a_host_that_is_not_reached_ends_the_job(hosts: Hosts) -> None:
    (hosts.place / "down-gpu-2.example").touch()
    job = hosts.submit(request(TWO_HOSTS))
    assert "machine 2 ended with exit code 255" in job.communicate(timeout=60)[1]
    assert job.returncode == 255
    assert (hosts.place / "stop-disttrain-tiny-1").exists()


def test_containers_on_one_host_have_their_network() -> None:
    made = render(request("launch: {nodes: 2, docker: {network: mine}}"), "/p", "1:2")
    assert "--hostname=disttrain-tiny-1 --network=mine" in made
    assert "--rdzv-endpoint=disttrain-tiny-1:29500" in made and "--local-addr=disttrain-tiny-2" in made
    assert made.count("--env=GLOO_SOCKET_IFNAME=eth0") == 2
    assert "ssh" not in made.partition("supervise")[2]


def test_names_of_containers() -> None:
    assert container_name("dblp-sage") == "disttrain-dblp-sage"
    odd = [container_name(name) for name in ("dblp sage", "dblp'sage", "ü" * 200, "x" * 200, "x" * 201)]
    assert len(set(odd)) == len(odd)
    assert all(name.isascii() and " " not in name and len(name) < 120 for name in odd)


def test_gpus_of_containers() -> None:
    def shares(text: str, nodes: int) -> tuple[list[str], int | str | None]:
        return share_gpus(request(f"launch: {text}").experiment, nodes)

    assert shares("{docker: {}}", 2) == ([], None)
    assert shares("{docker: {gpus: all, hosts: [a, b]}}", 2) == (["all", "all"], "gpu")
    assert shares("{docker: {gpus: 4, hosts: [a, b]}}", 2) == (["4", "4"], 4)
    assert shares("{docker: {gpus: [1, 3]}}", 1) == (['"device=1,3"'], 2)
    assert shares("{docker: {gpus: [0, 1, 2, 3], hosts: [a, b]}}", 2) == (['"device=0,1,2,3"'] * 2, 4)
    assert shares("{nodes: 2, docker: {gpus: [0, 1, 2, 3]}}", 2) == (['"device=0,1"', '"device=2,3"'], 2)
    with pytest.raises(ExperimentError, match="would use the same ones"):
        shares("{nodes: 2, docker: {gpus: all}}", 2)
    with pytest.raises(ExperimentError, match="2 GPUs, 1 for each container, which has 2 ranks"):
        shares("{nodes: 2, procs_per_node: 2, docker: {gpus: [0, 1]}}", 2)
    with pytest.raises(ExperimentError, match="gpus is 2, and each container has 3 ranks"):
        shares("{procs_per_node: 3, docker: {gpus: 2, hosts: [a, b]}}", 2)


@pytest.mark.parametrize(
    ("text", "path", "says"),
    [
        ("launch: {nodes: 3, docker: {hosts: [a, b]}}", "e.yaml", "launch.nodes is 3, launch.docker.hosts has 2 hosts"),
        ("launch: {nodes: 2, docker: {network: bridge}}", "e.yaml", "docker network create NAME"),
        ("launch: {nodes: 2, docker: {network: none}}", "e.yaml", "network is none, one of Docker's own"),
        ("launch: {docker: {mounts: [{source: /data}]}}", "/other/e.yaml", "not to be seen .* which see /p, /data:"),
        ("", "../e.yaml", "submit from a folder above it"),
        ("run_dir: /scratch/run", "e.yaml", "run_dir: /scratch/run would be gone with the containers, which see /p:"),
        ("run_dir: ../run", "e.yaml", "gone with the containers"),
        (
            "run_dir: /data/run\nlaunch: {docker: {mounts: [{source: /data, read_only: true}]}}",
            "e.yaml",
            "run_dir: /data/run would be in /data, which the containers may only read",
        ),
    ],
)
def test_what_does_not_fit_is_refused(text: str, path: str, says: str) -> None:
    with pytest.raises(ExperimentError, match=says):
        render(request(text, path=path), "/p", "1:2")


def test_a_run_directory_on_a_mount_will_do() -> None:
    mounts = "[{source: /data, read_only: true}, {source: /mnt/runs, target: /data/runs}]"
    made = render(request(f"run_dir: /data/runs/a\nlaunch: {{docker: {{mounts: {mounts}}}}}"), "/p", "1:2")
    assert "source=/mnt/runs,target=/data/runs" in made


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("launch.docker.hosts=[-oProxyCommand=id]", "expected a host as ssh takes it"),
        ("launch.docker={hosts: [a, b], addresses: [c]}", "addresses has 1 entries, hosts 2"),
        ("launch.docker.image=--privileged", "expected one word"),
        ("launch.docker.mounts=[{source: data}]", "expected a path from the root"),
        ("launch.docker.user='a b'", 'expected "user" or "user:group"'),
    ],
)
def test_settings_that_are_wrong(override: str, says: str) -> None:
    with pytest.raises(ExperimentError, match=says):
        parse_experiment(EXPERIMENT, [override])
