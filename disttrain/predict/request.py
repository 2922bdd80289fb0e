"""What is asked of `disttrain predict`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ..config import ExperimentError
from .selection import parse_splits


@dataclass(frozen=True)
class Request:
    """The arguments of the command."""

    run_directory: Path
    output: Path
    splits: tuple[str, ...]
    """Groups of nodes, see `selection.parse_splits`."""
    ids: Path | None = None
    """A file of ids, instead of splits."""
    key: tuple[str, ...] = ()
    """Attributes of the graphs of a collection, by which the user knows them."""
    checkpoint: str = "best"
    """best, last, or step-N."""
    embeddings: bool | None = None
    """None: where the model has them."""
    logits: bool = False
    overwrite: bool = False

    @staticmethod
    def make(
        run_directory: str,
        *,
        split: str | None,
        ids: str | None,
        key: str | None = None,
        checkpoint: str,
        output: str | None,
        embeddings: bool | None,
        logits: bool,
        overwrite: bool,
    ) -> Request:
        """From the command line's words.

        Raises:
            ExperimentError: two ways to say which nodes, or words that mean nothing.
        """
        if split is not None and ids is not None:
            raise ExperimentError("--split and --ids both say what to predict; give one of them")
        for option, word in (
            ("RUN_DIR", run_directory),
            ("--split", split),
            ("--ids", ids),
            ("--key", key),
            ("--output", output),
        ):
            if word == "":
                raise ExperimentError(f"{option} is empty; was it an unset variable of the shell?")
        if not re.fullmatch(r"best|last|step-\d+", checkpoint):
            raise ExperimentError(f"--checkpoint: expected best, last or step-N, got {checkpoint!r}")
        names = tuple(dict.fromkeys(name.strip() for name in key.split(","))) if key is not None else ()
        if not all(names):
            raise ExperimentError(f"--key: expected an attribute, or several with commas between, got {key!r}")
        return Request(
            run_directory=Path(run_directory),
            output=Path(output) if output is not None else Path(run_directory) / "predictions",
            splits=parse_splits("all" if split is None else split),
            ids=Path(ids) if ids is not None else None,
            key=names,
            checkpoint=checkpoint,
            embeddings=embeddings,
            logits=logits,
            overwrite=overwrite,
        )
