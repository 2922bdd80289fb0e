"""Every command and program that docs/predict.md and docs/inspect.md show is run, in their order; those of
docs/clusters.md that start something are asked what it would be."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from disttrain import cli

from ..agents import REPOSITORY

TRAINING = "python -m disttrain examples/own.yaml"


def text_of(page: str) -> str:
    return (REPOSITORY / "docs" / page).read_text(encoding="utf-8")


def commands(page: str) -> list[list[str]]:
    lines = [line[4:] for line in text_of(page).splitlines() if line.startswith("    ")]
    return [shlex.split(line) for line in lines if re.match(r"(python|torchrun) ", line)]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which the commands find what they find in the repository."""
    (tmp_path / "examples").symlink_to(REPOSITORY / "examples")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(words: list[str]) -> None:
    training = words[3].endswith(".yaml") or "inspect" in words
    more = ["train.epochs=1", "train.threads=1"] if training and "schema" not in words else []
    if words[0] == "torchrun":
        command = [sys.executable, "-m", "torch.distributed.run", *words[1:]]
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        assert ended.returncode == 0, ended.stderr
    else:
        assert words[:3] == ["python", "-m", "disttrain"]
        assert cli.run([*words[3:], *more]) == 0


def test_the_commands_of_the_page_on_predictions(place: Path) -> None:
    assert TRAINING in text_of("predict.md")
    run(shlex.split(TRAINING))
    (place / "own-ids.txt").write_text("5\n599\n0\n")
    for words in commands("predict.md"):
        run(words)
    counts = {
        name: json.loads((place / name / "_predictions.json").read_text())["rows"]
        for name in ("runs/own/predictions", "own-test", "own-2", "own-some", "own-exact")
    }
    assert counts == {
        "runs/own/predictions": 600, "own-test": 120, "own-2": 600, "own-some": 3, "own-exact": 600,
    }  # fmt: skip
    (program,) = re.findall(r"```python\n(.*?)```", text_of("predict.md"), re.DOTALL)
    found: dict[str, object] = {}
    exec(program, found)
    assert found["table"].num_rows == 600  # pyright: ignore[reportAttributeAccessIssue]
    assert len(found["likely"].fetchall()) == 10  # pyright: ignore[reportAttributeAccessIssue]


def test_the_commands_of_the_page_on_graphs(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for words in commands("inspect.md"):
        run(words)
    assert capfd.readouterr().out
    one_graph, many = text_of("inspect.md").split("## A collection of graphs")
    for experiment, page in (("own", one_graph), ("own_graphs", many)):
        run(["python", "-m", "disttrain", "inspect", f"examples/{experiment}.yaml", "--json"])
        facts = json.loads(capfd.readouterr().out)
        rows = re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)
        keys = [key for row in rows for key in re.findall(r"`(\w+)`", row)]
        assert facts.keys() - {"name", "partitions", "target"} == set(keys)


def test_the_commands_of_the_page_on_clusters(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without starting anything; README's commands and tests/cluster start the like."""
    (place / "configs").symlink_to(REPOSITORY / "configs")
    sections = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", text_of("clusters.md"), re.MULTILINE | re.DOTALL))
    of_sections = ("On one machine", "local", 2), ("Docker", "docker", 2), ("Machines that come and go", "local", 1)
    for section, backend, tried in of_sections:
        lines = [line[4:] for line in sections[section].splitlines() if line.startswith("    python -m disttrain ")]
        assert len(lines) == tried
        for line in lines:
            words = shlex.split(line)
            assert words[3:5] == ["submit", backend]
            assert cli.run([*words[3:], *(["--dry-run"] if "--dry-run" not in words else [])]) == 0
            assert capsys.readouterr().out.startswith("#!/usr/bin/env bash\n# disttrain submit ")
    forms = re.findall(r"```yaml\n(.*?)```", sections["Docker"], re.DOTALL)
    assert len(forms) == 1
    (place / "mine.yaml").write_text((REPOSITORY / "examples" / "own.yaml").read_text() + forms[0])
    directory = ["launch.docker.directory=/", f"run_dir={place}/run"]
    assert cli.run(["submit", "docker", f"{place}/mine.yaml", *directory, "--dry-run"]) == 0
    assert capsys.readouterr().out.count("docker run --rm") == 2
