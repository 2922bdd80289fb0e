"""What `disttrain submit` notes in the run directory, for `disttrain status` to find the job again."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

NAME = "submitted.json"
SCRIPT = "slurm.sbatch"
"""What `sbatch` is given lies there under this name."""


@dataclass(frozen=True)
class Note:
    backend: str
    job: str
    """As the backend names it."""
    output: str
    """The file that has what the ranks say."""


def write_note(directory: Path, note: Note) -> None:
    temporary = directory / f".{NAME}.{os.getpid()}"
    temporary.write_text(json.dumps(asdict(note)) + "\n", encoding="utf-8")
    os.replace(temporary, directory / NAME)


def read_note(directory: Path) -> Note | None:
    """None: there is none, or it cannot be read."""
    try:
        found = json.loads((directory / NAME).read_text(encoding="utf-8"))
        return Note(str(found["backend"]), str(found["job"]), str(found["output"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
