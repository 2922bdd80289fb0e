"""How a job is started: the machines and ranks that it is sized for, and what a launcher has to know of them."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, PositiveInt, model_validator

from .counted import counted
from .docker import Docker
from .section import Names, Section, spelt


def _word(text: str) -> str:
    if not text or text != text.strip() or re.search(r"\s", text) or not text.isprintable():
        raise ValueError(f"expected a name without spaces, got {text!r}")
    return text


_MEMORY = spelt(r"\d+[KMGTkmgt]?", 'a size as Slurm has it, such as "64G" or "0" for all of a node')
_VARIABLE = spelt(r"[A-Za-z_][A-Za-z0-9_]*", "the name of an environment variable (letters, digits, _)")


def _one_line(text: str) -> str:
    if not text.strip() or not text.isprintable():
        raise ValueError(f"expected one line of text, got {text!r}")
    return text


def slurm_seconds(time: int | str) -> float | None:
    """The seconds of a time limit as Slurm reads it; None: no limit.

    Raises:
        ValueError: Slurm would refuse it, or read it as hardly anybody means it.
    """
    text = str(time)
    if text.upper() in ("UNLIMITED", "INFINITE"):
        return None
    parts = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if parts is None:
        raise ValueError(
            'expected minutes (90), "hours:minutes:seconds" ("1:30:00"), or days before them ("2-12:00:00"), '
            f"got {text!r}"
        )
    days, first, second, third = (None if part is None else int(part) for part in parts.groups())
    if days is None and first is not None and second is not None and third is None:
        raise ValueError(
            f"{text!r} is {counted(first, 'minute')} and {counted(second, 'second')} to Slurm; write {text}:00 for "
            f"{counted(first, 'hour')} and {counted(second, 'minute')}, or 0:{text} for what Slurm reads"
        )
    if days is None and second is None:
        seconds = 60 * (first or 0)
    else:
        seconds = 86400 * (days or 0) + 3600 * (first or 0) + 60 * (second or 0) + (third or 0)
    if not seconds:
        raise ValueError(f"{text!r} is no time at all; leave it out for the partition's own limit")
    return float(seconds)


def _time(time: int | str) -> int | str:
    slurm_seconds(time)
    return time


def _gpus(value: int | str) -> int | str:
    if isinstance(value, str) and not re.fullmatch(r"(?:[\w.\-]+:)?[1-9]\d*", value):
        raise ValueError(f'expected a number, or a type and a number such as "a100:4", got {value!r}')
    return value


_OURS = {
    "--job-name": "name", "-J": "name", "--nodes": "launch.nodes", "-N": "launch.nodes", "--time": "launch.slurm.time",
    "-t": "launch.slurm.time", "--signal": "launch.slurm.grace", "--array": "sweep", "-a": "sweep",
    "--output": "run_dir", "-o": "run_dir",
    "--ntasks-per-node": "launch.procs_per_node", "--ntasks": "launch.procs_per_node",
    "-n": "launch.procs_per_node", "--requeue": "launch.slurm.requeues", "--no-requeue": "launch.slurm.requeues",
    "--open-mode": "run_dir", "--dependency": "launch.slurm.dependency", "-d": "launch.slurm.dependency",
    "--cpus-per-task": "launch.slurm.cpus", "-c": "launch.slurm.cpus",
    "--partition": "launch.slurm.partition", "-p": "launch.slurm.partition", "--chdir": "the folder you submit from",
    "-D": "the folder you submit from",
}  # fmt: skip
"""Options of sbatch that the script cannot do without, or has a setting for."""


def _option(text: str) -> str:
    _one_line(text)
    name = re.split(r"[=\s]", text)[0]
    if re.fullmatch(r"-\w.+", name) and name[:2] in _OURS:
        name = name[:2]
    if not re.fullmatch(r"-\w|--[\w\-]+", name):
        raise ValueError(f"expected an option of sbatch, such as --mail-type=END, got {text!r}")
    if name in _OURS:
        raise ValueError(f"{name} is decided by {_OURS[name]}")
    return text


Word = Annotated[str, AfterValidator(_word)]
"""A name without spaces."""

Line = Annotated[str, AfterValidator(_one_line)]

Interface = Annotated[str, AfterValidator(_word), Field(max_length=64)]


class Container(Section):
    """The container that each torchrun runs in; the folder that the job was submitted from is there, as outside."""

    runtime: Literal["apptainer", "pyxis"] = "apptainer"
    """`apptainer exec`, or pyxis, a plugin of srun (`--container-image`)."""
    image: Line
    """A file or address, as the runtime takes it: `images/train.sif`, `docker://...`."""
    mounts: tuple[Line, ...] = ()
    """Further folders, `from:to`."""
    options: tuple[Line, ...] = ()
    """Further words for `apptainer exec` or srun, one each: `--writable-tmpfs`."""

    @model_validator(mode="after")
    def _environment_passes(self) -> Container:
        without = [word for word in self.options if word in ("-e", "--cleanenv", "-C", "--containall")]
        if self.runtime == "apptainer" and without:
            raise ValueError(
                f"options: with {without[0]}, ranks would not hear from the environment where they meet, nor have "
                "launch.env; unset in launch.setup what they are not to have"
            )
        return self


class Slurm(Section):
    """What `disttrain submit slurm` asks Slurm for. Null: the cluster's default."""

    partition: Word | None = None
    """Several with commas."""
    account: Word | None = None
    qos: Word | None = None
    constraint: Line | None = None
    time: Annotated[Annotated[int, Field(gt=0)] | str, AfterValidator(_time)] | None = None
    """Longest time of one attempt: minutes, or "1:30:00", or "2-12:00:00". The job is requeued and goes on until the
    run is over."""
    gpus: Annotated[Annotated[int, Field(gt=0)] | str, AfterValidator(_gpus)] | None = None
    """Of each node: a number, or a type and a number, "a100:4". Without `launch.procs_per_node`, a rank for each."""
    cpus: PositiveInt | None = None
    """Cores of each node; null: mostly, Slurm gives one."""
    memory: Annotated[str, AfterValidator(_MEMORY)] | None = None
    """Of each node: "64G"; "0" is all of it."""
    dependency: Line | None = None
    """Which jobs are waited for: "afterok:1234"."""
    at_once: PositiveInt | None = None
    """Of a sweep, as many points run at the same time; null: as many as Slurm starts."""
    grace: PositiveInt = 120
    """Seconds before the end of the time limit (or before Slurm takes the nodes away) at which the run is asked to
    stop: long enough for a step and a checkpoint. Slurm may be a minute early."""
    requeues: Annotated[int, Field(ge=0)] = 20
    """As often, a job that was stopped before the run was over is put into the queue again."""
    lines: tuple[Annotated[str, AfterValidator(_option)], ...] = ()
    """Further options of sbatch: `--exclusive`, `--mail-type=END`."""
    srun: tuple[Line, ...] = ()
    """Further options of srun, one each: `--cpu-bind=none`."""
    container: Container | None = None

    @model_validator(mode="after")
    def _grace_within_the_time(self) -> Slurm:
        limit = None if self.time is None else slurm_seconds(self.time)
        if limit is not None and limit <= self.grace:
            raise ValueError(f"grace is {self.grace} s, but time is only {limit:g} s: the job would be stopped at once")
        return self


class Launch(Section):
    """What the job is sized for: `disttrain submit` starts as much, and what was really started is checked against it.
    Null: whatever comes (of `submit`: one)."""

    nodes: PositiveInt | None = None
    """Machines."""
    min_nodes: PositiveInt | None = None
    """When machines are lost, go on with as few, as `train.elastic` says; null: with all or none."""
    procs_per_node: PositiveInt | None = None
    """Ranks on each machine."""
    max_restarts: Annotated[int, Field(ge=0)] = 0
    """As often, torchrun starts all ranks again from the last checkpoint when one has failed. With `min_nodes` the loss
    of a machine costs one too, and 0 stands for 10."""
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """Where the first machine waits for the others; null: one is chosen."""
    interface: Interface | None = None
    """The network interface by which machines reach each other, for gloo and NCCL: `eth0`."""
    setup: Names = ()
    """Lines of shell that set up the environment on a machine: `module load cuda`, `source .venv/bin/activate`."""
    python: Line | None = None
    """The interpreter on the machines; null: `python`, as it is found after `setup`."""
    env: dict[Annotated[str, AfterValidator(_VARIABLE)], str] = {}
    """Environment variables of the ranks."""
    preflight: bool = True
    """Before ranks are connected: compare versions, devices, partitions and clocks of all machines, and see that each
    reaches each other one. Takes a second; false: only experiments and devices are compared."""
    slurm: Slurm = Slurm()
    docker: Docker = Docker()

    @model_validator(mode="after")
    def _range_of_nodes(self) -> Launch:
        if self.min_nodes is not None and (self.nodes is None or self.min_nodes > self.nodes):
            raise ValueError(f"min_nodes ({self.min_nodes}) needs nodes, of at least as many, got {self.nodes}")
        return self
