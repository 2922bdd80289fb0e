"""`disttrain submit local`: what it starts, and with which GPUs."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from disttrain.config import ExperimentError
from disttrain.config.file import parse_experiment
from disttrain.launch.local import gpus, own_python, render, share_gpus
from disttrain.launch.request import Request

from ..agents import REPOSITORY

EXPERIMENT = """\
data: {source: generated, nodes: {v: {num_nodes: 20, features: 2}}, edges: {"v,e,v": {num_edges: 30}}, num_classes: 2}
task: {kind: node_classification}
model: {kind: hetero_conv}
"""


def request(*overrides: str, path: str = "experiment.yaml", fresh: bool = False) -> Request:
    return Request(parse_experiment(EXPERIMENT, overrides), path, overrides, fresh=fresh)


def test_the_template_is_what_is_rendered() -> None:
    template = (REPOSITORY / "launch" / "local.sh").read_text(encoding="utf-8")
    assert render(request("launch.nodes=2")) == template


def agents(made: Request, place: Path, gpus: tuple[str, ...] = ()) -> list[list[str]]:
    """The words and variables that come to the interpreter of each machine."""
    agent = place / "an agent's python"
    agent.write_text(
        f"#!{sys.executable}\nimport os, sys\n"
        "if sys.argv[1] == '-c':\n    print(4711)\n    sys.exit()\n"
        "names = ('NOTE', 'SET_UP', 'OMP_NUM_THREADS', 'CUDA_VISIBLE_DEVICES')\n"
        "words = sys.argv[1:] + [f'{name}={os.environ.get(name)}' for name in names]\n"
        "is_host = next(word for word in words if word.startswith('--rdzv-conf'))[20]\n"
        "open(f'{os.path.dirname(sys.argv[0])}/words-{is_host}', 'w').write('\\0'.join(words))\n"
    )
    agent.chmod(0o755)
    text = render(made, str(agent), gpus)
    environment = {name: value for name, value in os.environ.items() if name not in ("OMP_NUM_THREADS", "NOTE")}
    subprocess.run(["bash", "-c", text], env=environment, check=True, timeout=60)
    return [(place / f"words-{is_host}").read_text().split("\0") for is_host in (1, 0)]


def test_every_word_arrives_as_it_is(tmp_path: Path) -> None:
    overrides = (
        "launch={nodes: 2, procs_per_node: 3, max_restarts: 1, env: {NOTE: 'it''s $HOME'}, setup: [export SET_UP=yes]}",
        "name=a 'run' of $HOME",
    )
    jobs: set[str] = set()
    for machine, words in enumerate(agents(request(*overrides, path="it's mine.yaml", fresh=True), tmp_path)):
        job = next(word for word in words if word.startswith("--rdzv-id=disttrain-"))
        jobs.add(job)
        assert words == [
            "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=3", "--max-restarts=1",
            "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:4711", job,
            f"--rdzv-conf=is_host={int(machine == 0)},join_timeout=600", "--local-addr=localhost",
            "--log-dir=/dev/null", "-m", "disttrain",
            "it's mine.yaml", *overrides, "--fresh",
            "NOTE=it's $HOME", "SET_UP=yes", "OMP_NUM_THREADS=1", "CUDA_VISIBLE_DEVICES=None",
        ]  # fmt: skip
    assert len(jobs) == 1


def test_each_machine_has_gpus_of_its_own(tmp_path: Path) -> None:
    made = request("launch={nodes: 2, procs_per_node: 2}")
    seen = [words[-1] for words in agents(made, tmp_path, ("0", "3", "4", "GPU-5"))]
    assert seen == ["CUDA_VISIBLE_DEVICES=0,3", "CUDA_VISIBLE_DEVICES=4,GPU-5"]


def test_gpus_that_there_are_not_enough_of() -> None:
    made = request("launch={nodes: 2, procs_per_node: 2}").experiment
    with pytest.raises(ExperimentError, match=r"2 machines of 2 ranks each .* need 4 GPUs .* has 3 to use \(0, 1, 2\)"):
        share_gpus(made, ["0", "1", "2"])
    assert share_gpus(made, []) == []
    assert share_gpus(request("launch={nodes: 2}", "train.device=cpu").experiment, ["0"]) == []
    assert share_gpus(request("launch={procs_per_node: 2}").experiment, ["0"]) == []  # as torchrun alone would


def test_gpus_that_may_be_used() -> None:
    assert gpus({"CUDA_VISIBLE_DEVICES": "2, GPU-1"}) == ["2", "GPU-1"]
    assert gpus({"CUDA_VISIBLE_DEVICES": ""}) == gpus({"CUDA_VISIBLE_DEVICES": "-1"}) == []


def test_the_interpreter_is_the_one_that_runs_this() -> None:
    name, environment = own_python({"PATH": "/nowhere"})
    text = f"{shlex.quote(name)} -c 'import sys; print(sys.prefix)'"
    done = subprocess.run(["/bin/sh", "-c", text], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == sys.prefix


def test_a_port_that_is_given() -> None:
    made = render(request("launch={nodes: 2, port: 1234}"))
    assert made.count("--rdzv-endpoint=localhost:1234") == 2 and "port=" not in made


def test_fewer_machines_may_be_enough() -> None:
    made = render(request("launch={nodes: 3, min_nodes: 2}"))
    assert "needed=2 " in made and made.count("--nnodes=2:3") == 3


def test_options_that_set_up_has_set_are_not_for_what_comes_after_it(tmp_path: Path) -> None:
    """The second machine fails: the first is stopped all the same, with a checkpoint."""
    agent = tmp_path / "agent"
    agent.write_text(
        '#!/bin/bash\n[ "$1" != -c ] || { echo 4711; exit; }\n'
        'case "$*" in *is_host=0*) until [ -e there ]; do sleep 0.05; done; exit 7;; esac\n'
        'trap "touch stopped; exit 0" TERM\ntouch there\nfor i in {1..600}; do sleep 0.1; done\n'
    )
    agent.chmod(0o755)
    text = render(request("launch={nodes: 2, setup: [set -euf -o pipefail]}"), str(agent))
    done = subprocess.run(["bash", "-c", text], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert "machine 2 ended with exit code 7: the others are stopped" in done.stderr
    assert (done.returncode, (tmp_path / "stopped").exists()) == (7, True)


def test_set_up_that_fails_starts_nothing_where_it_asks_for_that(tmp_path: Path) -> None:
    text = render(request("launch={nodes: 2, setup: [set -e, 'false']}"), "touch")
    done = subprocess.run(["bash", "-c", text], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, list(tmp_path.iterdir())) == (1, [])
