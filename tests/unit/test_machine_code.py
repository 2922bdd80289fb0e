"""Compiled functions do not need the place where their machine code is kept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """\
import resource, sys
if sys.argv[1] == "full":
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
import numpy as np
from disttrain.graph.order import add_counts
counts = np.zeros(3, dtype=np.int64)
add_counts(np.array([2, 0, 2]), counts)
print(counts.tolist())
"""


@pytest.mark.parametrize("disk", ["well", "full"])
def test_a_full_disk(tmp_path: Path, disk: str) -> None:
    assert run(tmp_path / "kept", disk) == "[1, 0, 2]"
    assert bool(list(tmp_path.glob("kept/**/*.nbi"))) == (disk == "well")


def test_no_folder_at_all() -> None:
    assert run(Path("/proc/nowhere"), "well") == "[1, 0, 2]"


def run(kept: Path, disk: str) -> str:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(kept)}
    command = [sys.executable, "-c", PROGRAM, disk]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
