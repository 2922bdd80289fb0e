"""What a partition directory was made from, and whether it is what an experiment asks for."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from ..config import ExperimentError, Partition
from .files import FORMAT

STREAMING = ("ldg", "fennel")
"""Methods that have `partition.passes`."""


def settings_of(settings: Partition, parts: int) -> dict[str, Any]:
    """The settings that decide the cut, as the manifest has them; `parts` is the number that `auto` stands for."""
    passes = {"passes": settings.passes} if settings.method in STREAMING else {}
    return {"parts": parts, "method": settings.method, "seed": settings.seed, **passes}


def fingerprint(data_fingerprint: str, settings: Partition, parts: int) -> str:
    """32 hex digits that decide the partition directory: data, settings and format."""
    text = json.dumps([FORMAT, data_fingerprint, settings_of(settings, parts)])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def partition_directory(base: str | Path, name: str, fingerprint: str) -> str:
    """Where a partition is kept when no directory is named: `<base>/<name>-<12 digits of the fingerprint>`."""
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "graph"
    return str(Path(base) / f"{readable}-{fingerprint[:12]}")


def check_matches(manifest: dict[str, Any], data_fingerprint: str, settings: Partition, directory: str | Path) -> None:
    """Refuse a partition directory that was made from other data or with other settings.

    `parts: auto` accepts any number: a graph cut into P parts runs on 1 to P machines.

    Raises:
        ExperimentError: naming each difference.
    """
    made = manifest["settings"]
    wanted = settings_of(settings, made["parts"] if settings.parts == "auto" else settings.parts)
    differences = [
        f"partition.{key} is {value!r}, it was made with {made.get(key)!r}"
        for key, value in wanted.items()
        if made.get(key) != value
    ]
    if manifest["fingerprint"] != data_fingerprint:
        differences.insert(
            0,
            f"the data differ (fingerprint {data_fingerprint[:12]}, it was made from {manifest['fingerprint'][:12]}): "
            "the section `data` or the input files were changed",
        )
    if differences:
        raise ExperimentError(
            f"the partition in {directory} is not what the experiment asks for: {'; '.join(differences)}. Remove the "
            "directory to partition again, name another one (partition.dir), or change the experiment back"
        )
