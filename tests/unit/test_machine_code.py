"""Compiled functions do not need the place where their machine code is kept."""

from __future__ import annotations

import importlib
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


def test_what_is_compiled_in_from_another_file_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """numba looks at the function's own file only, and would go on with what it made of the other one before."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    outer = (
        "from disttrain.machine_code import compiled\nfrom inner_kernel import {0}\n\n"
        "@compiled\ndef {1}(x):\n    return {0}(x)\n"
    )
    (tmp_path / "middle_kernel.py").write_text(outer.format("plus", "middle"))
    (tmp_path / "outer_kernel.py").write_text(outer.format("middle", "outer").replace("inner", "middle"))
    for number in (1, 2):
        inner = f"from numba import njit\n\n@njit(inline='always')\ndef plus(x):\n    return x + {number}\n"
        (tmp_path / "inner_kernel.py").write_text(inner)
        for name in ("inner_kernel", "middle_kernel", "outer_kernel"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        importlib.invalidate_caches()
        assert importlib.import_module("outer_kernel").outer(1) == 1 + number
    assert list(tmp_path.glob("__pycache__/outer_kernel.outer*.nbi"))


def run(kept: Path, disk: str) -> str:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(kept)}
    command = [sys.executable, "-c", PROGRAM, disk]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
