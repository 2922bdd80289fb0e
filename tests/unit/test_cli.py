"""Commands, in this process: what they print, what they refuse, and what they leave alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from disttrain import cli
from disttrain.config import ExperimentError
from disttrain.refusal import Leave

EXPERIMENT = """\
name: tiny
data:
  source: generated
  nodes: {paper: {num_nodes: 60, features: 6}, author: {num_nodes: 30}}
  edges:
    "author,writes,paper": {num_edges: 100}
  num_classes: 3
  num_communities: 6
task: {kind: node_classification}
model: {kind: hetero_conv, hidden: 8}
sampling: {fanout: [2, 2], batch_size: 48}
train: {epochs: 1, threads: 1}
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The experiment in a directory of its own, which is the working directory."""
    (tmp_path / "tiny.yaml").write_text(EXPERIMENT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(Leave) as caught:
        cli.run(list(arguments))
    assert caught.value.code == 2
    return capfd.readouterr().err


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.run(["--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert all(name in text for name in cli.COMMANDS)
    assert cli.run([]) == 2


def test_a_word_that_is_no_command_gets_the_nearest_one() -> None:
    with pytest.raises(ExperimentError, match="did you mean `partition`"):
        cli.run(["partion", "tiny.yaml"])


def test_the_schema_names_settings_and_explains_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema["properties"].keys() >= {"data", "task", "model", "sampling", "train"}
    assert "Seeds per rank and step" in schema["$defs"]["Sampling"]["properties"]["batch_size"]["description"]


def test_partition_then_verify(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["partition", "tiny.yaml", "partition.dir=cut", "partition.parts=3"]) == 0
    text = capfd.readouterr().out
    assert "cut: 3 partitions by metis" in text
    assert "author,writes,paper: 100 edges" in text
    assert cli.run(["verify", "cut"]) == 0

    file = place / "cut" / "nodes" / "0" / "x.npy"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(ExperimentError, match=r"nodes/0/x\.npy"):
        cli.run(["verify", "cut"])


def test_a_dry_run_shows_the_plan_and_touches_nothing(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--dry-run", "tiny.yaml", "partition.parts=2"]) == 0
    assert cli.run(["tiny.yaml", "train.lr=0.1", "--dry-run", "partition.parts=2"]) == 0
    text = capfd.readouterr().out
    assert "lr: 0.1" in text
    assert "# partitions: 2 by metis will be made in partitions/generated-" in text
    assert "# run directory: runs/tiny" in text
    assert [entry.name for entry in place.iterdir()] == ["tiny.yaml"]


def test_a_dry_run_refuses_what_a_run_would(capfd: pytest.CaptureFixture[str]) -> None:
    assert "launch.nodes is 2, but 1 machine was started" in refused(capfd, "tiny.yaml", "--dry-run", "launch.nodes=2")


def test_everything_that_does_not_fit_the_graph_is_said_together(
    place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = refused(
        capfd,
        "tiny.yaml",
        "model.relations.author,wrote,paper.conv=gat",
        "sampling.fanout={default: [2, 2], 'paper,rev_write,author': [1, 1]}",
        "task.label=labl",
        "task.node_type=paper",
    )
    # The label is refused with the data, before there is a graph.
    assert "labl" in text
    text = refused(
        capfd,
        "tiny.yaml",
        "model.relations.author,wrote,paper.conv=gat",
        "sampling.fanout={default: [2, 2], 'paper,rev_write,author': [1, 1]}",
    )
    assert 'model.relations["author,wrote,paper"]: the graph has no such relation' in text
    assert "did you mean `author,writes,paper`?" in text
    assert 'sampling.fanout["paper,rev_write,author"]: the graph has no such relation' in text
    assert "did you mean `paper,rev_writes,author`?" in text
    assert not (place / "runs").exists()


def test_partitions_made_from_other_data_or_settings(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["partition", "tiny.yaml", "partition.dir=cut"]) == 0
    text = refused(capfd, "tiny.yaml", "partition.dir=cut", "data.noise=2", "partition.method=random")
    assert "partition.method is 'random', it was made with 'metis'" in text
    assert "data.noise: 1 there, 2 now" in text
    assert cli.run(["partition", "tiny.yaml", "partition.dir=cut", "train.lr=1"]) == 0
