"""The sbatch script of an experiment: a function from the experiment to its text."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence

from ..config import Container, Experiment, ExperimentError
from ..config.yaml import YamlError, parse_yaml
from .shell import set_up
from .torchrun import torchrun_command, torchrun_environment

_FIRST_PORT, _NUM_PORTS = 10000, 20000
"""Below the ports that systems give to connections (from 32768 on Linux)."""


def render(
    experiment: Experiment,
    path: str,
    overrides: Sequence[str] = (),
    *,
    fresh: bool = False,
    point: str | None = None,
    points: Mapping[int, str] | None = None,
) -> str:
    """The whole script. Whatever is in names and paths, the ranks get it byte for byte.

    Args:
        path: of the YAML file, as the ranks are to read it; from the folder that the job is submitted from.
        overrides: likewise.
        fresh: begin anew, once.
        point: the experiment is this point of a sweep.
        points: of a sweep, those that are still to be run, by their numbers; each is a task of a job array.

    Raises:
        ExperimentError: Slurm cannot write its output to such a run directory, or there are fewer GPUs than ranks.
    """
    directory = experiment.directory
    if "\\" in directory or not directory.isprintable():
        raise ExperimentError(
            f"run_dir: Slurm's names of output files cannot have backslashes or line breaks, got {directory!r}"
        )
    gpus, ranks = _gpus(experiment), experiment.launch.procs_per_node or 1
    if gpus is not None and gpus < ranks and experiment.train.device != "cpu":
        raise ExperimentError(
            f"launch.slurm.gpus is {experiment.launch.slurm.gpus}, and each node has {ranks} ranks "
            "(launch.procs_per_node), which need a GPU each: ask for as many, or set train.device=cpu"
        )
    parts = [
        _options(experiment, directory, points),
        _heading(path, overrides),
        _what(path, overrides, directory, fresh, point, points),
        _STOPPING.format(most=experiment.launch.slurm.requeues),
        _environment(experiment),
        _start(experiment),
        _running(experiment),
        _ENDING.replace(_AGAIN, f"{_AGAIN} without --fresh") if fresh else _ENDING,
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _options(experiment: Experiment, directory: str, points: Mapping[int, str] | None) -> str:
    launch, slurm = experiment.launch, experiment.launch.slurm
    nodes = launch.nodes or 1
    output = f"{directory.replace('%', '%%')}/slurm-{'%j' if points is None else '%A_%a'}.out"
    options = {
        "job-name": experiment.name,
        "nodes": nodes if launch.min_nodes in (None, nodes) else f"{launch.min_nodes}-{nodes}",
        "ntasks-per-node": 1,
        "cpus-per-task": slurm.cpus,
        "gpus-per-node": slurm.gpus,
        "mem": slurm.memory,
        "time": slurm.time,
        "partition": slurm.partition,
        "account": slurm.account,
        "qos": slurm.qos,
        "constraint": slurm.constraint,
        "dependency": slurm.dependency,
        "array": None if points is None else _ranges(sorted(points)) + (f"%{slurm.at_once}" if slurm.at_once else ""),
        "output": output,
        "open-mode": "append",
        "signal": f"B:USR1@{slurm.grace}",
    }
    lines = [f"#SBATCH --{name}={_for_sbatch(str(value))}" for name, value in options.items() if value is not None]
    flags = ["--requeue", *([] if launch.min_nodes is None else ["--no-kill"]), *slurm.lines]
    return "\n".join(["#!/bin/bash", *lines, *(f"#SBATCH {flag}" for flag in flags)])


def _ranges(numbers: Sequence[int]) -> str:
    """`[0, 1, 2, 5]` as `0-2,5`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] + 1 == number:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


def _for_sbatch(value: str) -> str:
    """A value as sbatch reads the lines of a script: quotes and backslashes as in a shell, and nothing else."""
    if re.fullmatch(r"[\w@%+=:,./&|*\[\]()\-]+", value, re.ASCII):
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _heading(path: str, overrides: Sequence[str]) -> str:
    words = shlex.join([path, *overrides])
    if not words.isprintable():
        raise ExperimentError(
            f"submit: names with line breaks or control characters cannot be submitted, got {words!r}"
        )
    return f"""\
# Trains on the nodes of the job, one torchrun on each: python -m disttrain {words}
# `disttrain submit slurm` writes and submits such a script, `--dry-run` prints it. By hand, from the same folder:
#     mkdir -p RUN_DIR; sbatch slurm.sbatch [key.path=value ...]
# Slurm does not make the folder of its output: without it the job fails, and nothing says why."""


def _what(
    path: str,
    overrides: Sequence[str],
    directory: str,
    fresh: bool,
    point: str | None,
    points: Mapping[int, str] | None,
) -> str:
    words = [shlex.quote(word) for word in (path, *overrides, *(() if point is None else ("--point", point)))]
    whole = directory if point is None else directory.removesuffix(f"/{point}")
    own = shlex.quote(f"run_dir={_as_yaml(whole)}")
    lines = []
    if points is None:
        lines += [
            "this_job=$SLURM_JOB_ID",
            f"run_dir={shlex.quote(directory)}",
            f'arguments=({" ".join(words)} "$@" {own})',
        ]
    else:
        listed = [f"  [{number}]={shlex.quote(name)}" for number, name in sorted(points.items())]
        lines += [
            "# The points of the sweep; each task of the array is one.",
            *("points=(", *listed, ")"),
            "point=${points[$SLURM_ARRAY_TASK_ID]}",
            "this_job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID  # of one task, SLURM_JOB_ID stands for all of them",
            f"run_dir={shlex.quote(directory)}/$point",
            f'arguments=({" ".join(words)} "$@" {own} --point "$point")',
        ]
    if fresh:
        lines += [
            "arguments+=(--fresh)  # once, however often this job is requeued: the run directory notes its name",
            'export DISTTRAIN_JOB="slurm $SLURM_CLUSTER_NAME $this_job"',
        ]
    return "\n".join([*lines, 'mkdir -p -- "$run_dir" || exit'])


def _as_yaml(text: str) -> str:
    """Text as the value of an override."""
    try:
        plain = parse_yaml(text).value == text
    except YamlError:
        plain = False
    return text if plain else json.dumps(text, ensure_ascii=False)


def _environment(experiment: Experiment) -> str:
    launch = experiment.launch
    lines = ["# The environment of the ranks.", *set_up(launch.setup)]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in torchrun_environment(launch).items()]
    lines.append("unset SLURM_EXPORT_ENV  # sbatch --export=NONE, or a site, had srun leave all of it out")
    return "\n".join(lines)


def _start(experiment: Experiment) -> str:
    """Where all meet, and what srun runs on each node."""
    launch, container = experiment.launch, experiment.launch.slurm.container
    port = f"$(({_FIRST_PORT} + SLURM_JOB_ID % {_NUM_PORTS}))" if launch.port is None else str(launch.port)
    words = torchrun_command(
        launch,
        ["-m", "disttrain"],
        endpoint="$head:$port",
        is_host="$((SLURM_NODEID == 0))",
        local_address="$SLURMD_NODENAME",
        nodes="$SLURM_JOB_NUM_NODES",
        procs_per_node=launch.procs_per_node or _gpus(experiment),
        run_id="$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}",
        python="$python",
    )
    options = [word for word in words if word.startswith("--")]
    shown = " \\\n    ".join(f'"{word}"' if "$" in word else word for word in options)
    return "\n".join(
        [
            "# All meet at the first node, at a port that comes from the number of the job.",
            f"export python={shlex.quote(launch.python or 'python')}",
            *([_CHECK] if container is None else []),
            'head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
            f"port={port}",
            "export head port",
            "on_each_node='",
            '  exec "$python" -m torch.distributed.run \\',
            f"    {shown} \\",
            """    -m disttrain "$@"'""",
        ]
    )


def _gpus(experiment: Experiment) -> int | None:
    """Of each node, as a number."""
    gpus = experiment.launch.slurm.gpus
    return None if gpus is None else int(str(gpus).rpartition(":")[2])


_CHECK = """\
command -v "$python" >/dev/null || { echo "slurm: no $python on $(hostname), see launch.setup" >&2; exit 2; }"""

_STOPPING = """\
# With USR1 or TERM Slurm says that the time is nearly over, that others need the nodes, or that somebody used scancel.
# The file STOP asks the ranks to write a checkpoint and to leave. (torchrun passes on TERM only, and kills after 30 s.)
most_requeues={most}
asked='' woken='' done_before=''
[ ! -e "$run_dir/DONE" ] || done_before=1
trap 'asked=1; woken=1; touch -- "$run_dir/STOP"' USR1 TERM
newest() {{ ls -- "$run_dir/checkpoints" 2>/dev/null | tail -n 1; }}
before=$(newest)"""


def _running(experiment: Experiment) -> str:
    launch, slurm = experiment.launch, experiment.launch.slurm
    # Where machines may be lost, those that are left go on.
    options = ["--kill-on-bad-exit=1"] if launch.min_nodes is None else ["--kill-on-bad-exit=0", "--no-kill"]
    if slurm.cpus is not None:
        options.append(f"--cpus-per-task={slurm.cpus}")  # from Slurm 22.05 on, srun does not take it from sbatch
    words = [shlex.quote(word) for word in (*options, *slurm.srun)]
    if slurm.container is not None:
        words += _contained(slurm.container, slurm.gpus is not None)
    return f"""\
if [ -n "$woken" ]; then  # before there was anything to stop
  code=0
  rm -f -- "$run_dir/STOP"
else
  srun {" ".join(words)} bash -c "$on_each_node" disttrain "${{arguments[@]}}" &
  step=$!
  while woken=''; wait "$step"; code=$?; [ -n "$woken" ]; do :; done  # a signal ends the waiting only
fi"""


def _contained(container: Container, has_gpus: bool) -> list[str]:
    """Words after srun, with the folder of the job in the container."""
    mounts = [shlex.quote(mount) for mount in container.mounts]
    options = [shlex.quote(option) for option in container.options]
    if container.runtime == "pyxis":
        folders = ",".join(['"$PWD:$PWD"', *mounts])
        image = shlex.quote(f"--container-image={container.image}")
        return [image, f"--container-mounts={folders}", '--container-workdir="$PWD"', *options]
    binds = [word for mount in ('"$PWD"', *mounts) for word in ("--bind", mount)]
    gpus = ["--nv"] if has_gpus else []
    return ["apptainer", "exec", *gpus, *binds, "--pwd", '"$PWD"', *options, shlex.quote(container.image)]


_AGAIN = "submitted again"
_ENDING = """\
# Not over, but it can go on: again, unless it was ended by hand, or failed before it had got any further.
being_ended() {  # by scancel, say: "completing" while the script still runs
  case $(scontrol --oneliner show job "$this_job") in
    *" JobState=RUNNING "* | *" Reason=TimeLimit "* | "") return 1 ;;
  esac
}
restarts=${SLURM_RESTART_COUNT:-0}
over() {  # also where a machine was lost, and the others have ended well; but by no mark that an earlier run has left
  [ -e "$run_dir/DONE" ] || return
  [ -z "$done_before" ] || { [ "$code" = 0 ] && [ -z "$asked" ]; }
}
if over; then
  exit 0
elif being_ended; then
  echo "slurm: the job is being ended; submitted again, the run goes on from its last checkpoint" >&2
  exit "$code"
elif [ "$code" = 0 ] && [ -n "$asked" ]; then
  why="stopped before the run was over"
elif [ "$code" = 0 ]; then
  echo "slurm: stopped by hand before the run was over; submitted again, it goes on from its last checkpoint" >&2
  exit 0
elif [ "$code" != 2 ] && [ "$(newest)" != "$before" ]; then
  why="failed with exit code $code, and had got further than before"
else
  echo "slurm: failed with exit code $code; it would fail again, so it is not requeued" >&2
  exit "$code"
fi
if [ "$restarts" -ge "$most_requeues" ]; then
  echo "slurm: $why; not requeued, that has been done $restarts times (launch.slurm.requeues)" >&2
  exit 1
fi
echo "slurm: $why; requeued ($((restarts + 1)) of at most $most_requeues times)" >&2
trap '' TERM
scontrol requeue "$this_job" || exit 1
exit 0"""
