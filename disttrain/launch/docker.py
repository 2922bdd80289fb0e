"""`disttrain submit docker`: a container for each machine, on this host or over ssh on others."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from pathlib import PurePosixPath

from ..config import Experiment, ExperimentError, Launch
from ..config.counted import counted
from ..config.docker import Mount
from .local import ABOUT_ENDS, JOB, NAME_OF_JOB, about_command
from .request import Request
from .shell import Shell, shell_command, shell_words
from .together import run_script, together_script
from .torchrun import torchrun_command, torchrun_environment

_SSH = ("ssh", "-n", "-oBatchMode=yes", "-oConnectTimeout=20", "-oServerAliveInterval=20", "-oServerAliveCountMax=3")
"""It never asks, and ends when a host has been silent for a minute."""

_CODE_VOLUME = "disttrain-code"
"""What numba compiles in one container, the next ones find there."""

_PORTS = range(20_000, 30_000)

_ON_HOSTS = r"""
words() {  # the words as the shell of a host reads them
    local word quote="'\\''"
    for word; do word=${word//\'/"$quote"}; printf "'%s' " "$word"; done
}

on() {  # machine, command: on its host
    local host=${hosts[$1 - 1]}
    shift
    "${ssh[@]}" "$host" "$(words "$@")"
}"""

_CONTAINER = """
container() {{  # machine: what this job has started for it, and no container of that name that another one has
    {on_host}docker ps --all --quiet --filter "label=disttrain.job=$job-$1"
}}"""


def submit(request: Request) -> int:
    """Run it to its end, or with `dry_run` print the script that would be run.

    Raises:
        ExperimentError: the settings do not fit each other, or `docker` or `ssh` is not here.
    """
    text = render(request, os.getcwd(), f"{os.getuid()}:{os.getgid()}")
    if request.dry_run:
        print(text, end="")
        return 0
    client = "ssh" if request.experiment.launch.docker.hosts else "docker"
    if shutil.which(client) is None:
        raise ExperimentError(f"submit docker: `{client}` is not installed here; --dry-run shows what it would run")
    return run_script(text)


def render(request: Request, directory: str, user: str) -> str:
    """The script: a `docker run` for each machine.

    Args:
        directory: that the job works in, where the experiment names none.
        user: user and group, where the experiment names none.

    Raises:
        ExperimentError: the settings do not fit each other.
    """
    launch, docker = request.experiment.launch, request.experiment.launch.docker
    directory = docker.directory or directory
    _refuse_unseen(request, directory)
    nodes = _num_machines(request.experiment)
    name = container_name(request.experiment.name)
    gpus, ranks = share_gpus(request.experiment, nodes)
    if docker.network != "host":
        addresses = [f"{name}-{machine}" for machine in range(1, nodes + 1)]
    elif docker.hosts:
        addresses = list(docker.addresses) or [host.rpartition("@")[2] for host in docker.hosts]
    else:
        addresses = ["localhost"] * nodes
    machines: list[list[str]] = []
    for machine, address in enumerate(addresses):
        command = [
            *_docker_run(launch, f"{name}-{machine + 1}", directory, docker.user or user),
            Shell(f'--label=disttrain.job="$job-{machine + 1}"'),
            *([f"--gpus={gpus[machine]}"] if gpus else []),
            *docker.options,
            docker.image,
            *torchrun_command(
                launch,
                request.program,
                endpoint=f"{addresses[0]}:{launch.port or _port(name, docker.network)}",
                is_host=machine == 0,
                local_address=address,
                nodes=nodes,
                procs_per_node=ranks,
                run_id=JOB,
                python=launch.python or "python",
            ),
        ]
        if docker.hosts:
            sent = Shell(f'"$(words \\\n{shell_command(command, indent="    ")})"')
            command = [Shell('"${ssh[@]}"'), docker.hosts[machine], sent]
        machines.append(command)

    prepare, on_host = [NAME_OF_JOB], ""
    if docker.hosts:
        ssh, hosts = (" ".join(shell_words(words)) for words in ([*_SSH, *docker.ssh, "--"], docker.hosts))
        prepare, on_host = [NAME_OF_JOB, f"ssh=({ssh})", f"hosts=({hosts})", _ON_HOSTS], 'on "$1" '
    prepare.append(_CONTAINER.format(on_host=on_host))
    return together_script(
        [
            *about_command("docker", request),
            "",
            f"{counted(nodes, 'container')}, {'one on each host' if docker.hosts else 'on this host'}.",
            *ABOUT_ENDS,
        ],
        prepare,
        machines,
        stop=[
            f'until {on_host}docker stop -t {docker.stop_seconds} $(container "$1"); do  # which may not be there yet',
            '    [ "$2" ] && kill -0 "$2" && sleep 1 || break',
            "done",
        ],
        kill=['[ -z "$2" ] || kill -KILL -- "-$2"', f'{on_host}docker rm --force $(container "$1")'],
        needed=launch.min_nodes or nodes,
        grace=docker.stop_seconds + 30,
        fresh=request.fresh,
    )


def _docker_run(launch: Launch, container: str, directory: str, user: str) -> list[str]:
    """The command as far as it is about the container itself."""
    docker, environment = launch.docker, torchrun_environment(launch)
    named: list[str] = []
    if docker.network != "host":
        named = [f"--hostname={container}"]
        if launch.interface is None:  # the one that a container on one network has
            environment = {"GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "eth0", **environment}
    mounts = [Mount(source=directory), *docker.mounts]
    return [
        *("docker", "run", "--rm", "--init", f"--name={container}", *named, f"--network={docker.network}"),
        *(f"--user={user}", f"--shm-size={docker.shm_size}b", f"--stop-timeout={docker.stop_seconds}"),
        f"--workdir={directory}",
        *(f"--mount={_mount(mount)}" for mount in mounts),
        f"--mount=type=volume,source={_CODE_VOLUME},target=/var/cache/disttrain",
        *(f"--env={variable}={value}" for variable, value in environment.items()),
    ]


def container_name(name: str) -> str:
    """What an experiment's containers are called, before their numbers; experiments of different names never share one.

    A second job of the same name is refused by Docker, while the first one runs.
    """
    clean = re.sub(r"[^a-zA-Z0-9_.-]+", "-", name)
    digest = (
        "" if clean == name and len(name) <= 80 else "-" + hashlib.blake2b(name.encode(), digest_size=3).hexdigest()
    )
    return f"disttrain-{clean[:80]}{digest}"


def share_gpus(experiment: Experiment, nodes: int) -> tuple[list[str], int | str | None]:
    """The GPUs of each machine, as `docker run --gpus` takes them (none: an empty list), and ranks per machine.

    Raises:
        ExperimentError: containers on one host would use the same ones.
    """
    launch, gpus = experiment.launch, experiment.launch.docker.gpus
    if gpus is None:
        return [], launch.procs_per_node
    alone = nodes == 1 or bool(launch.docker.hosts)
    if not isinstance(gpus, tuple):
        if not alone:
            raise ExperimentError(
                f"launch.docker.gpus is {gpus}: {nodes} containers on this machine would use the same ones; expected a "
                "list, which they share out: [0, 1]"
            )
        if gpus != "all" and experiment.train.device != "cpu" and gpus < (launch.procs_per_node or 1):
            raise ExperimentError(
                f"launch.docker.gpus is {gpus}, and each container has {launch.procs_per_node} ranks "
                "(launch.procs_per_node), which need a GPU each: ask for as many, or set train.device=cpu"
            )
        return [str(gpus)] * nodes, launch.procs_per_node or ("gpu" if gpus == "all" else gpus)
    each = len(gpus) if alone else len(gpus) // nodes
    if each < (launch.procs_per_node or 1):
        raise ExperimentError(
            f"launch.docker.gpus has {counted(len(gpus), 'GPU')}, {each} for each container, which has "
            f"{counted(launch.procs_per_node or 1, 'rank')}"
        )
    shares = [gpus if alone else gpus[machine * each : (machine + 1) * each] for machine in range(nodes)]
    # Docker reads the value as CSV, so that commas within need quotes.
    return [f'"device={",".join(map(str, share))}"' for share in shares], launch.procs_per_node or each


def _num_machines(experiment: Experiment) -> int:
    launch = experiment.launch
    hosts = len(launch.docker.hosts)
    if hosts and launch.nodes not in (None, hosts):
        raise ExperimentError(
            f"launch.nodes is {launch.nodes}, launch.docker.hosts has {counted(hosts, 'host')}: expected one for each "
            "machine (a host may be named twice)"
        )
    nodes = launch.nodes or hosts or 1
    if launch.docker.network in ("bridge", "default", "none") and nodes > 1:
        raise ExperimentError(
            f"launch.docker.network is {launch.docker.network}, one of Docker's own, where containers do not find each "
            "other by name; make one with `docker network create NAME`"
        )
    return nodes


def _refuse_unseen(request: Request, directory: str) -> None:
    """Raises:
    ExperimentError: the experiment's file is in no folder that the containers see, or what the run writes would be gone
        with its container.
    """
    docker = request.experiment.launch.docker
    seen = {directory: False, **{mount.target or mount.source: mount.read_only for mount in docker.mounts}}

    def within(path: str) -> str | None:
        whole = PurePosixPath(os.path.normpath(PurePosixPath(directory, path)))
        return max((folder for folder in seen if whole.is_relative_to(folder)), key=len, default=None)

    if within(request.path) is None:
        raise ExperimentError(
            f"{request.path} is not to be seen in the containers, which see {', '.join(seen)}: submit from a folder "
            "above it, or add its folder to launch.docker.mounts"
        )
    run = request.experiment.directory
    folder = within(run)
    if folder is None or seen[folder]:
        raise ExperimentError(
            f"run_dir: {run} would be "
            + (f"in {folder}, which the containers may only read" if folder else "gone with the containers")
            + f", which see {', '.join(seen)}: name a folder below one of these, or add its own to launch.docker.mounts"
        )


def _mount(mount: Mount) -> str:
    """As `docker run --mount` takes it: a line of CSV."""
    fields = ["type=bind", f"source={mount.source}", f"target={mount.target or mount.source}"]
    fields += ["readonly"] if mount.read_only else []
    return ",".join('"' + field.replace('"', '""') + '"' if re.search(r'[",]', field) else field for field in fields)


def _port(name: str, network: str) -> int:
    """On the hosts' own network two jobs may meet; on another one, each first container has its own address."""
    if network != "host":
        return 29500
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return _PORTS[int.from_bytes(digest, "big") % len(_PORTS)]
