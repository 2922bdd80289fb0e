"""What is to be submitted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..config import Experiment


@dataclass(frozen=True)
class Request:
    """An experiment, read and checked, and the words by which the ranks read it again."""

    experiment: Experiment
    path: str
    """Of the YAML file, as given."""
    overrides: tuple[str, ...] = ()
    fresh: bool = False
    """Begin anew in a run directory that an earlier run has used."""
    dry_run: bool = False
    """Print what would be started, and touch nothing."""

    point: str | None = None
    """The name of one point of a sweep, whose experiment this then is."""

    @property
    def program(self) -> list[str]:
        """What torchrun runs on every machine."""
        point = [] if self.point is None else ["--point", self.point]
        return ["-m", "disttrain", self.path, *self.overrides, *point, *(["--fresh"] if self.fresh else [])]

    @property
    def run_directory(self) -> Path:
        return Path(self.experiment.directory)
