"""Checkpoints: directories of named tensors and one JSON manifest, of which only whole ones are ever read.

`torch.distributed.checkpoint` writes the tensors; the manifest, which lands last, holds everything else and the
checksum of every file. A checkpoint is written under a temporary name and then renamed, so a process killed at any
moment leaves whole ones and rubbish that is swept away at the next start.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import pickle
import re
import shutil
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from ..config import ExperimentError
from ..graph.files import sync
from ..report.files import disk_refusal, exchange, explaining
from ..stop import StopRequest
from ..world import World

logger = logging.getLogger(__name__)

_FORMAT = 1
_NAME = re.compile(r"step-\d{10}$")
_REPLACED = re.compile(r"\.(step-\d{10})\.\d+\.replaced$")
_MANIFEST = "manifest.json"


class TornCheckpoint(ValueError):
    """A checkpoint is incomplete or damaged; the message says which file, and how."""


class CheckpointDirectory:
    """The checkpoints of one run. Only one process writes to it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def prepare(self) -> None:
        """Make the directory, and sweep away what an interrupted writer left."""
        with explaining(self.directory, "a checkpoint"):
            self.directory.mkdir(parents=True, exist_ok=True)
            for entry in sorted(self.directory.iterdir()):
                if not entry.name.startswith("."):
                    continue
                replaced = _REPLACED.match(entry.name)
                if replaced and not (self.directory / replaced[1]).exists():
                    os.replace(entry, self.directory / replaced[1])
                else:
                    shutil.rmtree(entry, ignore_errors=True)

    def names(self) -> list[str]:
        """Names of the checkpoints that have a manifest, newest first."""
        if not self.directory.is_dir():
            return []
        found = [e.name for e in self.directory.iterdir() if _NAME.match(e.name) and (e / _MANIFEST).is_file()]
        return sorted(found, reverse=True)

    def save(self, step: int, tensors: dict[str, Tensor], state: dict[str, Any]) -> str:
        """Write a checkpoint; returns its name. One that already has this name is replaced.

        Args:
            step: optimizer steps taken so far; the checkpoint's name.
            tensors: copied to the CPU where they are elsewhere.
            state: everything else; JSON.

        Raises:
            ExperimentError: if the disk is full, or the directory may not be written to.
        """
        name = f"step-{step:010d}"
        target, temporary = self.directory / name, self.directory / f".{name}.{os.getpid()}"
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            with explaining(target, "a checkpoint"):
                temporary.mkdir()
                _write_tensors(temporary, target, tensors)
                files = {file.name: _fingerprint(file) for file in sorted(temporary.iterdir())}
                _write_manifest(
                    temporary / _MANIFEST, {"format": _FORMAT, "step": step, "state": state, "files": files}
                )
                if not target.exists():
                    os.replace(temporary, target)
                elif exchange(temporary, target):
                    shutil.rmtree(temporary, ignore_errors=True)
                else:  # between the two, there is neither; `prepare` puts the old one back then
                    aside = self.directory / f".{name}.{os.getpid()}.replaced"
                    os.replace(target, aside)
                    os.replace(temporary, target)
                    shutil.rmtree(aside, ignore_errors=True)
                sync(self.directory)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        return name

    def read_state(self, name: str) -> dict[str, Any]:
        """The `state` given to `save`, after checking every file of the checkpoint. Cost: reading it once.

        Raises:
            TornCheckpoint: if it is incomplete or damaged.
        """
        path = self.directory / name
        manifest = _read_manifest(path / _MANIFEST)
        for file, expected in manifest["files"].items():
            if not (path / file).is_file():
                raise TornCheckpoint(f"{path} lacks its file {file}")
            if _fingerprint(path / file) != expected:
                raise TornCheckpoint(f"{path / file} is not what was written: its checksum differs")
        return manifest["state"]

    def read_tensors(self, name: str, prefix: str = "") -> dict[str, Tensor]:
        """The tensors given to `save` whose names begin with `prefix`, on the CPU. Check the checkpoint by `read_state`
        first."""
        reader = _SafeReader(self.directory / name)
        entries = reader.read_metadata().state_dict_metadata
        tensors = {
            key: torch.empty(entry.size, dtype=entry.properties.dtype)
            for key, entry in entries.items()
            if isinstance(entry, TensorStorageMetadata) and key.startswith(prefix)
        }
        with _alone():
            load(tensors, storage_reader=reader, no_dist=True)
        return tensors

    def newest_whole(self) -> tuple[str, dict[str, Any]] | None:
        """Name and state of the newest checkpoint that is whole; torn ones are passed over with a warning."""
        for name in self.names():
            try:
                return name, self.read_state(name)
            except (TornCheckpoint, OSError) as error:
                logger.warning("checkpoint passed over: %s", error)
        return None

    def prune(self, keep: int, best: Collection[str]) -> None:
        """Remove all but the `keep` newest ones and the best ones."""
        for name in self.names()[keep:]:
            if name not in best:
                # Renamed first: one that is half removed must not look like a checkpoint.
                aside = self.directory / f".{name}.{os.getpid()}.old"
                os.replace(self.directory / name, aside)
                shutil.rmtree(aside, ignore_errors=True)


def newest_checkpoint(world: World, checkpoints: CheckpointDirectory) -> tuple[int, str, dict[str, Any]] | None:
    """Agree on the newest whole checkpoint over all machines: the rank that can read it, its name and state.

    Machines need not share a file system: after a restart, rank 0 may be on a machine that has none.

    Raises:
        ExperimentError: there are checkpoints, and none of them can be read.
    """
    found = _agree(world, checkpoints.newest_whole() if world.leads_machine else None)
    if found is None and any(world.gather(checkpoints.names() if world.leads_machine else [], "choosing a checkpoint")):
        raise ExperimentError(
            f"none of the checkpoints in {checkpoints.directory} can be read (the warnings above say why). Put back "
            "copies of them, or begin anew with --fresh"
        )
    return found


def named_checkpoint(
    world: World, checkpoints: CheckpointDirectory, name: str
) -> tuple[int, str, dict[str, Any]] | None:
    """Which rank can read this checkpoint, its name and state; None if no machine has it whole."""
    found = None
    if world.leads_machine and name in checkpoints.names():
        try:
            found = name, checkpoints.read_state(name)
        except (TornCheckpoint, OSError) as error:
            logger.warning("checkpoint passed over: %s", error)
    return _agree(world, found)


def _agree(world: World, found: tuple[str, dict[str, Any]] | None) -> tuple[int, str, dict[str, Any]] | None:
    names = world.gather(found[0] if found else "", "choosing a checkpoint")
    newest = max(names)
    if not newest:
        return None
    source = names.index(newest)
    state = world.broadcast(found[1] if found and world.rank == source else None, "reading a checkpoint", source)
    assert state is not None
    return source, newest, state


def share_tensors(
    world: World, checkpoints: CheckpointDirectory, name: str, source: int, prefix: str = ""
) -> dict[str, Tensor]:
    """The tensors (whose names begin with `prefix`) of a checkpoint that rank `source` can read, on every rank."""
    tensors = checkpoints.read_tensors(name, prefix) if world.rank == source else {}
    if world.size == 1:
        return tensors
    layout = {key: (tensor.shape, tensor.dtype) for key, tensor in tensors.items()}
    for key, (shape, dtype) in world.broadcast(layout, "reading a checkpoint", source).items():
        tensor = tensors[key] if world.rank == source else torch.empty(shape, dtype=dtype)
        if tensor.numel():
            # As bytes: gloo does not know every type.
            world.broadcast_tensor(tensor.view(-1).view(torch.uint8), "reading a checkpoint", source)
        tensors[key] = tensor
    return tensors


def _write_tensors(directory: Path, target: Path, tensors: dict[str, Tensor]) -> None:
    on_cpu = {key: tensor.detach().cpu() for key, tensor in tensors.items()}
    try:
        with _alone():
            save(on_cpu, storage_writer=FileSystemWriter(directory), no_dist=True)
    except CheckpointException as exception:
        for error, _ in exception.failures.values():
            refusal = disk_refusal(error, target, "a checkpoint") if isinstance(error, OSError) else None
            if refusal:
                raise refusal from None
        raise RuntimeError(f"writing {target} failed: {exception}") from exception


@contextmanager
def _alone() -> Iterator[None]:
    """Torch warns on `no_dist=True` that there is nobody else, which is meant. It catches all that is raised within
    it, a request to stop as well."""
    with StopRequest.heard_after(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled, unavailable or uninitialized")
        yield


def _fingerprint(file: Path) -> dict[str, Any]:
    digest = hashlib.blake2b(digest_size=16)
    with open(file, "rb") as stream:
        while piece := stream.read(1 << 22):
            digest.update(piece)
    return {"bytes": file.stat().st_size, "blake2b": digest.hexdigest()}


def _own_digest(manifest: dict[str, Any]) -> str:
    text = json.dumps(manifest, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _write_manifest(file: Path, manifest: dict[str, Any]) -> None:
    with open(file, "w", encoding="utf-8") as stream:
        json.dump({**manifest, "manifest": _own_digest(manifest)}, stream, indent=1)
        stream.flush()
        os.fsync(stream.fileno())
    sync(file.parent)


def _read_manifest(file: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
        expected = manifest.pop("manifest")
    except (ValueError, KeyError, AttributeError) as error:
        raise TornCheckpoint(f"{file} is not a whole manifest ({error})") from error
    if _own_digest(manifest) != expected:
        raise TornCheckpoint(f"{file} is not what was written: its checksum differs")
    if manifest["format"] != _FORMAT:
        raise TornCheckpoint(f"{file} has format {manifest['format']}, this version reads {_FORMAT}")
    return manifest


class _SafeUnpickler(pickle.Unpickler):
    """Makes nothing but the plain records of which checkpoint metadata consists."""

    _ALLOWED = {
        ("torch", "Size"),
        ("torch.serialization", "_get_layout"),
        ("pathlib", "PosixPath"),
        ("pathlib._local", "PosixPath"),
        ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
        *(
            ("torch.distributed.checkpoint.metadata", name)
            for name in (
                "Metadata", "TensorStorageMetadata", "TensorProperties", "ChunkStorageMetadata",
                "MetadataIndex", "StorageMeta", "_MEM_FORMAT_ENCODING",
            )
        ),
    }  # fmt: skip

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        named = super().find_class(module_name, global_name) if module_name == "torch" else None
        if isinstance(named, torch.dtype):
            return named
        if (module_name, global_name) == ("builtins", "getattr"):
            return _member
        if (module_name, global_name) not in self._ALLOWED:
            raise TornCheckpoint(f"checkpoint metadata must not name {module_name}.{global_name}")
        return super().find_class(module_name, global_name)


def _member(kind: Any, name: Any) -> Enum:
    """What stands for `getattr`, by which Python 3.11.0 to 3.11.3 (Debian 12 has 3.11.2) pickles members of an Enum."""
    if not (isinstance(kind, type) and issubclass(kind, Enum) and name in kind.__members__):
        raise TornCheckpoint(f"checkpoint metadata must not name an attribute of {kind!r}")
    return kind[name]


class _SafeReader(FileSystemReader):
    """Torch unpickles `.metadata` without restraint (tensors it reads with `weights_only`); this does not."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._file = path / ".metadata"

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        with open(self._file, "rb") as file:
            metadata = _SafeUnpickler(file).load()
        metadata.storage_meta.load_id = self.load_id
        return metadata
