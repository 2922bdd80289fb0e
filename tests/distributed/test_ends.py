"""However a run with worker processes ends, nothing is left: no process, no socket, no temporary folder."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from ..agents import run_machines
from ..faults import left_in
from ..preloaded import Preloaded

EXPERIMENT = """\
name: rings
data:
  source: python
  function: trouble:graphs
  reads: [trouble.py]
  store: store
  split: {by: ratio, train: 0.6, val: 0.2, test: 0.2}
  transforms: [{trouble:transform: {how: HOW}}]
task: {kind: graph_classification}
model: {kind: gin, hidden: 4, layers: 1}
sampling: {batch_size: 4, workers: 1, prefetch: 1}
train: {epochs: 2, threads: 1, device: cpu, log_every: 100, timeout: TIMEOUT}
"""

TROUBLE = """\
import multiprocessing, os, signal, time
from pathlib import Path
from tests.collections_of_graphs import rings

def graphs():
    return rings(60)

def transform(graph, how):
    if not multiprocessing.current_process().name.startswith("loader worker"):
        return graph
    Path("seen").open("a").write("x")
    if os.path.getsize("seen") > 16 and not Path("done").exists():
        Path("done").touch()
        if how == "hang":
            time.sleep(600)
        if how == "raise":
            raise ValueError("no luck")
        if how == "stop":
            Path("runs/rings/STOP").touch()
            time.sleep(3)
        if how == "kill":
            os.kill(multiprocessing.parent_process().pid, signal.SIGKILL)
            time.sleep(600)
    return graph
"""


class End(NamedTuple):
    code: int
    said: str
    timeout: int = 60


ENDS = {
    "well": End(0, r"everything is in runs/rings"),
    "stop": End(0, r"stopped by runs/rings/STOP after step \d+; a checkpoint is in"),
    "raise": End(1, r"loader worker 0 \(process \d+\) of rank \d on \S+ failed at graph \d+ .*ValueError: no luck"),
    "kill": End(1, r"rank \d on \S+ was killed in "),
    "hang": End(1, r"(?s)shown no sign of life for 6 s .*\n  process \d+: transform \(\S+/trouble\.py:\d+\) < ", 6),
}


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a short name: there are sockets in it."""
    folder = Path(tempfile.mkdtemp(prefix="ends-"))
    monkeypatch.setenv("TMPDIR", str(folder))
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("how", ENDS)
def test_nothing_is_left(how: str, server: Preloaded, tmp_path: Path, temporary: Path) -> None:
    end = ENDS[how]
    (tmp_path / "rings.yaml").write_text(EXPERIMENT.replace("HOW", how).replace("TIMEOUT", str(end.timeout)))
    (tmp_path / "trouble.py").write_text(TROUBLE)
    memory = server.shared_memory()
    (ended,) = run_machines(["rings.yaml"], tmp_path, procs=2, server=server)  # which fails if a process is left
    assert ended.code == end.code, ended.err
    assert re.search(end.said, ended.out + ended.err), ended.out + ended.err
    assert server.shared_memory() <= memory
    assert left_in(temporary) == []
    run = tmp_path / "runs" / "rings"
    assert [*run.glob("**/.*.tmp"), *run.glob("STOP"), *run.glob("checkpoints/.*")] == []
    assert (run / "watchdog").exists() == (how == "hang")
    assert (run / "DONE").exists() == (how == "well")
