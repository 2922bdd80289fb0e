"""`disttrain submit local`: as many machines as the experiment wants, all of them on this one."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..config import Experiment, ExperimentError
from ..config.counted import counted
from .request import Request
from .shell import Shell, set_up, shell_command
from .together import run_script, together_script
from .torchrun import torchrun_command, torchrun_environment

_GRACE_SECONDS = 45
"""torchrun kills ranks that do not stop within 30 s."""

_FREE_PORT = """\
port=$({python} -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])') || exit"""

NAME_OF_JOB = "job=disttrain-$HOSTNAME-$$-$(date +%s)"
"""Another one each time: a job that may lose machines takes over from one of its own name."""
JOB = Shell("$job")

ABOUT_ENDS = (
    "Ctrl-C, SIGTERM and SIGHUP stop all of them, with a checkpoint; from that, the same again goes on. When one",
    "fails, the others are stopped. The exit code is that of the first that failed.",
)


def submit(request: Request) -> int:
    """Run it to its end, or with `dry_run` print the script that would be run.

    Raises:
        ExperimentError: there are fewer GPUs than ranks.
    """
    python, environment = own_python(dict(os.environ))
    text = render(request, python, gpus(environment))
    if request.dry_run:
        print(text, end="")
        return 0
    return run_script(text, environment)


def render(request: Request, python: str = "python", gpus: Sequence[str] = ()) -> str:
    """The script: an agent of torchrun for each machine, meeting on a port of localhost.

    Args:
        python: the interpreter, where the experiment names none.
        gpus: of this machine, as CUDA_VISIBLE_DEVICES has them; each machine gets some of its own.

    Raises:
        ExperimentError: there are fewer GPUs than ranks.
    """
    launch = request.experiment.launch
    nodes, python = launch.nodes or 1, launch.python or python
    shares = share_gpus(request.experiment, gpus)
    machines: list[list[str]] = []
    for machine in range(nodes):
        endpoint = f"localhost:{launch.port or 0}"
        command = torchrun_command(
            launch,
            request.program,
            endpoint=endpoint,
            is_host=machine == 0,
            local_address="localhost",
            run_id=JOB,
            python=python,
        )
        if launch.port is None:
            where = command.index(f"--rdzv-endpoint={endpoint}")
            command[where] = Shell('--rdzv-endpoint=localhost:"$port"')
        machines.append([*(("env", f"CUDA_VISIBLE_DEVICES={shares[machine]}") if shares else ()), *command])
    ranks = counted(launch.procs_per_node or 1, "rank")
    exports = ["export", Shell("OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}")]
    exports += [f"{name}={value}" for name, value in torchrun_environment(launch).items()]
    prepare = [*set_up(launch.setup), shell_command(exports), NAME_OF_JOB]
    if launch.port is None:
        prepare.append(_FREE_PORT.format(python=shell_command([python])))
    return together_script(
        [
            *about_command("local", request),
            "",
            f"{counted(nodes, 'machine')} on this one: a torchrun each, with {ranks}.",
            *ABOUT_ENDS,
        ],
        prepare,
        machines,
        stop=['[ -z "$2" ] || kill -TERM "$2"'],
        kill=['[ -z "$2" ] || kill -KILL -- $(cat "/proc/$2/task/"*/children) "-$2"'],
        needed=launch.min_nodes or nodes,
        grace=_GRACE_SECONDS,
        fresh=request.fresh,
    )


def about_command(backend: str, request: Request) -> list[str]:
    """The command that renders a script, for its first lines."""
    words = ["disttrain", "submit", backend, *request.program[2:]]
    return shell_command(words, width=110).splitlines()


def own_python(environment: dict[str, str]) -> tuple[str, dict[str, str]]:
    """How a script calls the interpreter that runs this, and the environment in which it does."""
    folder = str(Path(sys.executable).parent)
    path = os.pathsep.join([folder, environment.get("PATH", os.defpath)])
    found = shutil.which("python", path=path)
    name = "python" if found and Path(found).samefile(sys.executable) and Path(found).parent == Path(folder) else None
    return name or sys.executable, {**environment, "PATH": path}


def gpus(environment: Mapping[str, str]) -> list[str]:
    """Those that a process started here would see."""
    if "CUDA_VISIBLE_DEVICES" in environment:
        return [
            name.strip() for name in environment["CUDA_VISIBLE_DEVICES"].split(",") if name.strip() not in ("", "-1")
        ]
    devices = Path("/dev").glob("nvidia[0-9]*")
    return sorted((device.name.removeprefix("nvidia") for device in devices), key=int)


def share_gpus(experiment: Experiment, gpus: Sequence[str]) -> list[str]:
    """The GPUs of each machine, as CUDA_VISIBLE_DEVICES has them; none where the experiment does not want any.

    Each machine would take the first ones otherwise.

    Raises:
        ExperimentError: there are fewer than ranks.
    """
    launch = experiment.launch
    nodes, ranks = launch.nodes or 1, launch.procs_per_node or 1
    if not gpus or nodes == 1 or experiment.train.device == "cpu":
        return []
    if len(gpus) < nodes * ranks:
        raise ExperimentError(
            f"{counted(nodes, 'machine')} of {counted(ranks, 'rank')} each (launch.nodes, launch.procs_per_node) need "
            f"{nodes * ranks} GPUs on this machine, which has {len(gpus)} to use ({', '.join(gpus)}): set fewer, or "
            "train.device=cpu"
        )
    return [",".join(gpus[machine * ranks : (machine + 1) * ranks]) for machine in range(nodes)]
