"""Scripts for Slurm: against golden files, through bash, and executed with an srun that only stands in for it.

`python -m tests.unit.test_launch_slurm` writes the golden files anew.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from disttrain import cli
from disttrain.config import Experiment
from disttrain.config.file import parse_experiment
from disttrain.launch.slurm_script import render
from tests.tiny_experiment import TINY

REPOSITORY = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).parent / "golden"

EVERYTHING = """
  nodes: 2
  procs_per_node: 4
  max_restarts: 2
  interface: ib0
  port: 29400
  python: /opt/env/bin/python
  env: {NCCL_DEBUG: WARN, WORDS: "it's $HOME and \\"quoted\\""}
  setup: [module purge, 'source "$HOME/my env/bin/activate"']
  slurm:
    partition: gpu,big
    account: physics
    qos: high
    constraint: a100&nvlink
    time: 2-12:00:00
    gpus: a100:4
    cpus: 32
    memory: 200G
    dependency: afterok:1234
    grace: 300
    requeues: 5
    lines: [--exclusive, --mail-type=END]
    srun: [--cpu-bind=none]
"""

ODD = """it's a "run" 100% $HOME `x` \u00e9; #1"""


def experiment(more: str = "", *overrides: str) -> Experiment:
    return parse_experiment(TINY + more, overrides)


SCRIPTS: dict[str, Callable[[], str]] = {
    "everything": lambda: render(experiment("launch:" + EVERYTHING), "configs/all.yaml", ["train.lr=0.1"]),
    "apptainer": lambda: render(
        experiment(
            "launch: {slurm: {gpus: 2, container: {image: images/my train.sif, mounts: ['/data:/data:ro', '/a b:/c'], "
            "options: [--writable-tmpfs]}}}"
        ),
        "experiment.yaml",
    ),
    "pyxis": lambda: render(
        experiment("launch: {slurm: {container: {runtime: pyxis, image: 'nvcr.io#nvidia/pyg', mounts: ['/d:/d']}}}"),
        "experiment.yaml",
    ),
    "elastic": lambda: render(experiment("launch: {nodes: 8, min_nodes: 2}"), "experiment.yaml"),
    "odd": lambda: render(
        experiment("", "name=it's \"odd\" $x %", f"run_dir={json.dumps(f'{ODD}/run')}"),
        f"{ODD}/my.yaml",
        [f"data.args={{a: '{ODD}'}}", "model.relations.\"a,b,c\".conv=gat", "", "a\\b"],
        fresh=True,
    ),
    "sweep": lambda: render(
        experiment("launch: {slurm: {at_once: 2}}", "run_dir=runs/it's"),
        "sweep.yaml",
        points={0: "seed=0", 1: "seed=1", 2: "seed=2", 5: "it's"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_script_is_the_golden_one(name: str) -> None:
    assert SCRIPTS[name]() == (GOLDEN / f"slurm_{name}.sbatch").read_text(encoding="utf-8")


def test_the_template_is_what_an_experiment_without_settings_gets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    template = (REPOSITORY / "launch" / "slurm.sbatch").read_text(encoding="utf-8")
    assert render(experiment(), "experiment.yaml") == template
    (tmp_path / "experiment.yaml").write_text(TINY)
    monkeypatch.chdir(tmp_path)
    assert cli.run(["submit", "slurm", "experiment.yaml", "--dry-run"]) == 0
    assert capsys.readouterr().out == template
    assert [entry.name for entry in tmp_path.iterdir()] == ["experiment.yaml"]


def test_the_commands_of_the_page_on_slurm(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Those that need no cluster; the others are tried by tests/cluster/test_slurm.py."""
    monkeypatch.chdir(REPOSITORY)
    section = (REPOSITORY / "docs" / "clusters.md").read_text(encoding="utf-8").split("\n## Slurm")[1].split("\n## ")[0]
    first, second, third = re.findall(r"^    (\S.*)$", section, re.MULTILINE)
    assert cli.run(shlex.split(first)[3:]) == 0
    assert "#SBATCH --job-name=quickstart" in capsys.readouterr().out
    assert second.startswith("mkdir") and third.startswith("python -m disttrain status ")
    (settings,) = re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)
    assert experiment(settings).launch.slurm.gpus == 4


def test_a_login_node_without_torch_will_do(tmp_path: Path) -> None:
    (tmp_path / "experiment.yaml").write_text(TINY)
    (tmp_path / "runs" / "experiment").mkdir(parents=True)
    (tmp_path / "runs" / "experiment" / "experiment.yaml").write_text("")
    code = (
        "import sys; from disttrain import cli\n"
        "for words in (['submit', 'slurm', 'experiment.yaml', '--dry-run'], ['status', 'experiment.yaml']):\n"
        "    assert cli.run(words) == 0\n"
        "sys.exit(any(name in sys.modules for name in ('torch', 'numpy', 'psutil')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "runs/experiment: not started" in done.stdout


@pytest.mark.parametrize("name", SCRIPTS)
def test_bash_can_read_it(name: str) -> None:
    done = subprocess.run(["bash", "-n"], input=SCRIPTS[name]().encode(), capture_output=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, b"")


class Ran(NamedTuple):
    code: int
    err: str
    ranks: list[list[str]]
    """What each torchrun was given."""
    requeued: list[str]


class Stage:
    """A folder with programs that stand in for Slurm's: `srun` runs its command for each of two nodes, python notes
    its arguments and does what it is told to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.program(
            "scontrol",
            """\
case "$*" in requeue*) echo "$2" >>"$STAGE/requeued";; "show hostnames"*) printf "node1\\nnode2\\n";;
*"show job 41234"*) echo "JobId=41234 JobName=x JobState=$(cat "$STAGE/state" || echo RUNNING) Reason=None";; esac""",
        )
        self.program(
            "srun",
            """\
until [ "$1" = bash ] || [ "$1" = apptainer ]; do shift; done; code=0
for i in 0 1; do SLURM_NODEID=$i SLURMD_NODENAME=node$((i + 1)) "$@" || code=$?; done; exit $code""",
        )
        self.program("apptainer", 'until [ "$1" = bash ]; do shift; done; exec "$@"')
        self.program("python", 'printf "%s\\0" "$@" >>"$STAGE/said"; printf "\\1\\0" >>"$STAGE/said"; eval "$DOES"')

    def program(self, name: str, text: str) -> None:
        (self.bin / name).write_text(f"#!/bin/bash\n{text}\n")
        (self.bin / name).chmod(0o755)

    def run(self, script: str, *arguments: str, does: str = "", **environment: str) -> Ran:
        for name in ("said", "requeued"):
            (self.folder / name).unlink(missing_ok=True)
        (self.folder / "script").write_text(script)
        slurm = {"SLURM_JOB_ID": "41234", "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_JOB_NUM_NODES": "2"}
        path = f"{self.bin}:{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "script", *arguments],
            cwd=self.folder,
            env={"PATH": path, "HOME": "/h", "STAGE": str(self.folder), "DOES": does, **slurm, **environment},
            capture_output=True,
            text=True,
            timeout=60,
        )
        said = (self.folder / "said").read_bytes().decode() if (self.folder / "said").exists() else ""
        ranks = [part.split("\0")[:-1] for part in said.split("\1\0")[:-1]]
        requeued = (self.folder / "requeued").read_text().split() if (self.folder / "requeued").exists() else []
        return Ran(done.returncode, done.stderr, ranks, requeued)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_each_node_gets_the_torchrun_that_it_should(stage: Stage) -> None:
    ran = stage.run(SCRIPTS["elastic"](), "train.lr=0.1")
    first, second = ran.ranks
    assert first == [
        *("-m", "torch.distributed.run", "--nnodes=2:2", "--nproc-per-node=1", "--max-restarts=10"),
        *("--rdzv-backend=c10d", f"--rdzv-endpoint=node1:{10000 + 41234 % 20000}", "--rdzv-id=41234-0"),
        *("--rdzv-conf=is_host=1,join_timeout=600,last_call_timeout=30", "--local-addr=node1", "--log-dir=/dev/null"),
        *("-m", "disttrain", "experiment.yaml", "train.lr=0.1", "run_dir=runs/experiment"),
    ]
    assert second == [
        {"--local-addr=node1": "--local-addr=node2"}.get(word, word.replace("is_host=1", "is_host=0")) for word in first
    ]


@pytest.mark.parametrize("count", [0, 1])
def test_arguments_arrive_byte_for_byte(stage: Stage, count: int) -> None:
    """Whatever quotes and spaces: the words are those that the ranks would have been given by hand."""
    ran = stage.run(SCRIPTS["odd"](), SLURM_RESTART_COUNT=str(count))
    assert ran.code == 0, ran.err
    for words in ran.ranks:
        own = words[words.index("disttrain") + 1 :]
        assert own == [
            f"{ODD}/my.yaml", f"data.args={{a: '{ODD}'}}", 'model.relations."a,b,c".conv=gat', "", "a\\b",
            f"run_dir={json.dumps(f'{ODD}/run', ensure_ascii=False)}", "--fresh",
        ]  # fmt: skip
    assert (stage.folder / ODD / "run").is_dir()
    assert parse_experiment(TINY, [own[-2]]).directory == f"{ODD}/run"


def test_a_requeued_job_says_that_it_is_the_one_that_began_anew(stage: Stage) -> None:
    """Attempts that never got to the ranks count for nothing: the run directory tells whether it has begun anew."""
    for count in ("0", "3"):
        does = 'echo "$DISTTRAIN_JOB" >"$STAGE/job"'
        assert stage.run(SCRIPTS["odd"](), does=does, SLURM_RESTART_COUNT=count, SLURM_CLUSTER_NAME="big").code == 0
        assert (stage.folder / "job").read_text() == "slurm big 41234\n"
    assert "DISTTRAIN_JOB" not in SCRIPTS["everything"]()


def test_the_environment_arrives(stage: Stage) -> None:
    stage.program("module", "true")
    script = SCRIPTS["everything"]().replace("/opt/env/bin/python", str(stage.bin / "python"))
    script = script.replace('source "$HOME/my env/bin/activate"', "export ACTIVE='by \"setup\"'")
    ran = stage.run(script, does='printf "%s|" "$WORDS" "$ACTIVE" "$GLOO_SOCKET_IFNAME" >"$STAGE/environment"')
    assert ran.code == 0, ran.err
    assert (stage.folder / "environment").read_text() == 'it\'s $HOME and "quoted"|by "setup"|ib0|'
    assert "--rdzv-endpoint=node1:29400" in ran.ranks[0]
    assert "--nproc-per-node=4" in ran.ranks[0]


def test_the_ranks_have_what_the_script_has_though_the_script_began_without(stage: Stage) -> None:
    """`sbatch --export=NONE` leaves to the script that srun is to be told the same."""
    given = stage.run(SCRIPTS["odd"](), does='echo "${SLURM_EXPORT_ENV-all}" >"$STAGE/given"', SLURM_EXPORT_ENV="NONE")
    assert (given.code, (stage.folder / "given").read_text()) == (0, "all\n"), given.err


def test_a_job_whose_set_up_is_strict_is_requeued_as_any_other(stage: Stage) -> None:
    script = render(experiment("launch: {setup: ['set -euo pipefail']}"), "experiment.yaml")
    ran = stage.run(script, does=f"{FURTHER}; exit 1")
    assert (ran.code, ran.requeued) == (0, ["41234"]), ran.err


def test_a_container_gets_the_folder_and_the_arguments(stage: Stage) -> None:
    stage.program(
        "apptainer", 'printf "%s\\n" "$@" >"$STAGE/apptainer"; until [ "$1" = bash ]; do shift; done; exec "$@"'
    )
    ran = stage.run(SCRIPTS["apptainer"]())
    assert ran.code == 0, ran.err
    words = (stage.folder / "apptainer").read_text().splitlines()
    here = str(stage.folder)
    assert words[: words.index("bash")] == [
        *("exec", "--nv", "--bind", here, "--bind", "/data:/data:ro", "--bind", "/a b:/c", "--pwd", here),
        *("--writable-tmpfs", "images/my train.sif"),
    ]
    assert ran.ranks[1][-2:] == ["experiment.yaml", "run_dir=runs/experiment"]


def test_each_task_of_an_array_is_its_point(stage: Stage) -> None:
    for task, name in ((1, "seed=1"), (5, "it's")):
        ran = stage.run(SCRIPTS["sweep"](), SLURM_ARRAY_TASK_ID=str(task))
        assert ran.ranks[0][-4:] == ["sweep.yaml", "run_dir=runs/it's", "--point", name]
        assert (stage.folder / "runs" / "it's" / name).is_dir()


def test_a_task_of_an_array_requeues_itself_only(stage: Stage) -> None:
    """The job number of one task is that of the whole array: Slurm would requeue all of it, running tasks too."""
    further = "mkdir -p runs/it\\'s/seed=1/checkpoints/step-7; exit 1"
    ran = stage.run(SCRIPTS["sweep"](), does=further, SLURM_ARRAY_JOB_ID="41234", SLURM_ARRAY_TASK_ID="1")
    assert (ran.code, ran.requeued) == (0, ["41234_1"]), ran.err


DONE = "touch runs/experiment/DONE"
FURTHER = "mkdir -p runs/experiment/checkpoints/step-7"


@pytest.mark.parametrize(
    ("does", "count", "code", "requeued", "says"),
    [
        (DONE, 0, 0, False, ""),
        (f'{DONE}; [ "$SLURM_NODEID" = 0 ] || exit 137', 0, 0, False, ""),
        ("exit 2", 0, 2, False, "it would fail again"),
        ("exit 1", 0, 1, False, "it would fail again"),
        (f"{FURTHER}; exit 1", 3, 0, True, "had got further than before; requeued (4 of at most 20 times)"),
        (f"{FURTHER}; exit 1", 20, 1, False, "not requeued, that has been done 20 times"),
        ("true", 0, 0, False, "stopped by hand"),
        ("signal USR1", 0, 0, True, "stopped before the run was over; requeued (1 of at most 20 times)"),
        ("signal USR1", 20, 1, False, "not requeued"),
        ('echo COMPLETING >"$STAGE/state"; signal TERM', 0, 0, False, "the job is being ended; submitted again"),
        (f'{FURTHER}; echo COMPLETING >"$STAGE/state"; exit 1', 0, 1, False, "the job is being ended"),
        ("signal TERM", 0, 0, True, "stopped before the run was over; requeued"),
        ("signal USR1; exit 1", 0, 1, False, "it would fail again"),
        (f"signal USR1; {DONE}", 0, 0, False, ""),
        ("signal USR1; signal USR1", 0, 0, True, "requeued (1 of"),
    ],
)
def test_what_is_requeued(
    stage: Stage, does: str, count: int, code: int, requeued: bool, says: str, earlier: bool = False
) -> None:
    """The batch shell gets the signal, the ranks get the file; what then happens depends on how they end."""
    signal = (
        'signal() { [ "$SLURM_NODEID" = 0 ] || return 0; kill -s "$1" "$(cat "$STAGE/batch")"\n'
        "while [ ! -e runs/experiment/STOP ]; do sleep 0.02; done; rm runs/experiment/STOP; }\n"
    )
    script = render(experiment(), "experiment.yaml").replace("#!/bin/bash", '#!/bin/bash\necho $$ >"$STAGE/batch"')
    if earlier:
        (stage.folder / "runs" / "experiment").mkdir(parents=True)
        (stage.folder / "runs" / "experiment" / "DONE").touch()
    ran = stage.run(script, does=signal + does, SLURM_RESTART_COUNT=str(count))
    assert (ran.code, ran.requeued) == (code, ["41234"] if requeued else []), ran.err
    assert says in ran.err
    assert len(ran.ranks) == 2


@pytest.mark.parametrize(("does", "requeued"), [("true", False), ("signal USR1", True), (f"{FURTHER}; exit 1", True)])
def test_a_mark_that_an_earlier_run_has_left_does_not_end_one_that_was_stopped(
    stage: Stage, does: str, requeued: bool
) -> None:
    """It may have been stopped before it came to remove the mark (--fresh, more epochs), as in partitioning."""
    test_what_is_requeued(stage, does, 0, 0, requeued, "", earlier=True)


def test_a_controller_that_does_not_answer_is_no_end(stage: Stage) -> None:
    stage.program(
        "scontrol", 'case "$*" in requeue*) echo "$2" >>"$STAGE/requeued"; exit 1;; show\\ hostnames*) echo a;; esac'
    )
    ran = stage.run(render(experiment(), "experiment.yaml"), does=f"{FURTHER}; exit 1")
    assert (ran.code, ran.requeued) == (1, ["41234"]), ran.err


def test_a_stop_before_the_start(stage: Stage) -> None:
    """While the environment is set up: the ranks are not started, the next attempt is not stopped by the old file."""
    for signal in ("USR1", "TERM"):
        ran = stage.run(render(experiment(f"launch: {{setup: 'kill -{signal} $$'}}"), "experiment.yaml"))
        assert (ran.code, ran.ranks, ran.requeued) == (0, [], ["41234"]), ran.err
        assert not (stage.folder / "runs" / "experiment" / "STOP").exists()


def test_a_missing_interpreter_is_said(stage: Stage) -> None:
    ran = stage.run(render(experiment("launch: {python: no-such-python}"), "experiment.yaml"))
    assert (ran.code, ran.ranks) == (2, [])
    assert "no no-such-python on" in ran.err


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for each, script in SCRIPTS.items():
        (GOLDEN / f"slurm_{each}.sbatch").write_text(script(), encoding="utf-8")
    (REPOSITORY / "launch" / "slurm.sbatch").write_text(render(experiment(), "experiment.yaml"), encoding="utf-8")
