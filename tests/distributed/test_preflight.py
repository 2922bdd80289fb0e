"""The preflight among real ranks on this machine; the commands that docs/clusters.md shows of it."""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch.distributed import HashStore  # pyright: ignore[reportPrivateImportUsage]

from disttrain.config import Launch
from disttrain.notes import Notes
from disttrain.place import Place
from disttrain.preflight.check import Check
from disttrain.preflight.report import Report
from disttrain.refusal import Leave
from disttrain.train.conflicts import expected_world

from ..agents import REPOSITORY, run_machines
from ..ports import free_port
from ..preloaded import Preloaded
from .test_launch import EXPERIMENT, refusal

PAGE = (REPOSITORY / "docs" / "clusters.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("preflight")
    (directory / "tiny.yaml").write_text(EXPERIMENT)
    return directory


def test_doctor_under_torchrun(server: Preloaded, place: Path) -> None:
    (ended,) = run_machines(["doctor", "tiny.yaml", "--json"], place, procs=2, server=server)
    assert ended.code == 0, ended.err
    found = json.loads(ended.out)
    assert [(rank["rank"], rank["machine"], rank["device"]) for rank in found["ranks"]] == [
        (0, 0, "cpu"),
        (1, 0, "cpu"),
    ]
    assert found["ranks"][0]["experiment"] == found["ranks"][1]["experiment"] != ""
    assert [finding for finding in found["findings"] if finding["refuses"]] == []
    assert not (place / "runs").exists()


def test_doctor_says_what_training_would_refuse_of_the_world(server: Preloaded, place: Path) -> None:
    settings = ["tiny.yaml", "launch.nodes=2", "launch.procs_per_node=4"]
    text = refusal(run_machines(["doctor", *settings], place, procs=2, server=server))
    assert "launch.nodes is 2, but 1 machine was started" in text
    assert "launch.procs_per_node is 4, but each machine runs 2 ranks" in text


def test_what_a_doctor_alone_says_is_expected() -> None:
    assert expected_world(Launch(nodes=2, procs_per_node=4)) == "2 machines, 4 ranks on each"
    assert expected_world(Launch(nodes=4, min_nodes=1)) == "1 to 4 machines"
    assert expected_world(Launch(procs_per_node=1)) == "1 rank on each machine"
    assert expected_world(Launch()) == ""


def test_partitions_that_are_not_the_same(server: Preloaded, tmp_path: Path, place: Path) -> None:
    """They were made from different data: said before anything is read."""
    directories = [tmp_path / "a", tmp_path / "b"]
    for directory, seed in zip(directories, (0, 1)):
        directory.mkdir()
        (directory / "tiny.yaml").write_text(EXPERIMENT)
        settings = ["tiny.yaml", f"data.seed={seed}", "partition.dir=parts", "partition.parts=2"]
        (made,) = run_machines(["partition", *settings], directory, server=server)
        assert made.code == 0, made.err
    settings = ["tiny.yaml", "partition.dir=parts", "partition.parts=2"]
    text = refusal(run_machines(settings, directories, machines=2, server=server))
    assert "partition.dir (parts) holds other partitions here and there, made from different data (" in text


def test_the_preflight_can_be_left_out(server: Preloaded, place: Path) -> None:
    agents = run_machines(["tiny.yaml", "name=without", "launch.preflight=false"], place, machines=2, server=server)
    assert [agent.code for agent in agents] == [0, 0], agents[0].err
    text = refusal(
        run_machines([["tiny.yaml", "launch.preflight=false"], ["tiny.yaml"]], place, machines=2, server=server)
    )
    assert "launch.preflight: false on rank 0, true there" in text


def test_clocks_apart_are_warned_of(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    store, reports = HashStore(), []

    def look(rank: int) -> None:
        here = Place(rank, 2, 0, 1, rank, torch.device("cpu"), "", 60.0, Notes(store, 60.0, watch=False))
        Check(None, show=reports.append, clock=lambda: time.time() + 1000 * rank).look(here)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(look, range(2)))
    (report,) = reports
    assert isinstance(report, Report)
    clocks = [tried.clock for _, tried in report.tries]
    assert clocks == [pytest.approx(1000, abs=1), pytest.approx(-1000, abs=1)]
    assert re.search(r"warning: clocks are apart: that of .* is 1,000 s ahead of", capsys.readouterr().err)


def test_who_cannot_listen_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """As where all ports are taken: others would say that a firewall keeps them from it."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    def refuse(address: str, *_: object) -> None:
        raise OSError(errno.EADDRINUSE, "")

    monkeypatch.setattr("disttrain.preflight.check.Listener", refuse)
    here = Place(0, 1, 0, 1, 0, torch.device("cpu"), "", 60.0, Notes(HashStore(), 60.0, watch=False))
    with pytest.raises(Leave) as left:
        Check(None, show=lambda _: None).look(here)
    assert left.value.code == 2
    assert re.search(r"cannot listen on its own address [0-9.]+: address already in use", capsys.readouterr().err)


def test_the_commands_of_the_page(place: Path) -> None:
    section = PAGE.partition("\n## Before it starts: the preflight\n")[2].partition("\n## ")[0]
    commands = [shlex.split(line) for line in section.splitlines() if re.match(r"    (python|torchrun) ", line)]
    assert [words[0] for words in commands] == ["torchrun", "python"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    for words in commands:
        program = [sys.executable, "-m", "torch.distributed.run"] if words[0] == "torchrun" else [sys.executable]
        more = [word.replace("localhost:29400", f"localhost:{free_port()}") for word in words[1:]]
        ended = subprocess.run([*program, *more], env=environment, cwd=REPOSITORY, capture_output=True, timeout=300)
        assert ended.returncode == 0, ended.stderr
        assert "can work together" in ended.stdout.decode()
