"""What goes with a process when it ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ..agents import REPOSITORY

PROGRAM = """
import tempfile
from multiprocessing.util import get_temp_dir
from disttrain import guard

file, folder = tempfile.mkstemp()[1], get_temp_dir()
guard.own(file)
guard.own(folder)
print(file, folder)
"""


def test_what_is_owned_goes_after_what_multiprocessing_removes_by_itself() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.split()) == 2
    assert not any(Path(path).exists() for path in done.stdout.split())
