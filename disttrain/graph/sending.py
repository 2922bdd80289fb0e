"""Partition files on their way to machines that do not see the disk of the one that has them.

One machine sends, a block to each of the others in turn; a block is answered before the next one goes out, so that each
side knows within one wait when the other has failed. Only ranges that a machine lacks are sent, each into its place in
a file of full size: what is not sent is a hole that takes no room.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from ..config import ExperimentError
from ..config.counted import counted
from ..world import World
from .files import MANIFEST
from .graph import Graph
from .holds import Holds, Piece, Ranges, num_bytes
from .needed import Rows

_BLOCK = 1 << 25
_DIGEST = 16
_END, _BROKEN = -1, -2
_GOOD, _FAILED = 0, 1
_SECONDS_BETWEEN_LINES = 5.0
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class _Block(NamedTuple):
    file: int
    """Place in the manifest's list of files; or `_END`, `_BROKEN`."""
    start: int
    length: int
    closes: int
    """1 with the last block of a range."""


class _Peer(NamedTuple):
    """Another machine's first rank, by number among all ranks."""

    world: World
    group: dist.ProcessGroup
    rank: int

    def send(self, tensor: torch.Tensor) -> None:
        with self.world.waiting(f"sending partitions to rank {self.rank}"):
            dist.send(tensor, dst=self.rank, group=self.group)

    def receive(self, tensor: torch.Tensor) -> torch.Tensor:
        with self.world.waiting(f"waiting for partitions from rank {self.rank}"):
            dist.recv(tensor, src=self.rank, group=self.group)
        return tensor


def ranges_of_rows(graph: Graph, rows: Mapping[str, Rows | None]) -> Ranges:
    """Rows of files as bytes, with the header of each; None stands for the whole file.

    Args:
        graph: opened where the files are.
    """
    found: Ranges = {}
    for name, wanted in rows.items():
        size = graph.manifest["files"][name]["bytes"]
        if wanted is None:
            found[name] = ((0, size),) if size else ()
            continue
        array = np.load(graph.directory / name, mmap_mode="r", allow_pickle=False)
        row_bytes = array.nbytes // max(1, len(array))
        begin = size - array.nbytes
        ranges = [(0, begin), *((begin + low * row_bytes, begin + high * row_bytes) for low, high in wanted)]
        merged: list[tuple[int, int]] = []
        for start, stop in ranges:
            if merged and start <= merged[-1][1]:
                merged[-1] = merged[-1][0], max(stop, merged[-1][1])
            elif start < stop:
                merged.append((start, stop))
        found[name] = tuple(merged)
    return found


def send(
    world: World,
    group: dist.ProcessGroup,
    directory: Path,
    names: list[str],
    lacking: dict[int, Ranges],
    progress: Callable[[str], None],
) -> None:
    """Send each machine what it lacks; the first rank of the machine that has the files calls it.

    Args:
        names: of the files, in the order of the manifest.
        lacking: machine -> ranges, of those machines that lack any.

    Raises:
        ExperimentError: a file cannot be read.
        PeerError: a machine was lost.
    """
    total = sum(num_bytes(ranges) for ranges in lacking.values())
    progress(f"sending {total / 1e6:,.1f} MB of partitions to {counted(len(lacking), 'machine')}")
    started, sent = time.monotonic(), 0
    said = started
    peers = {machine: _Peer(world, group, machine * world.local_size) for machine in lacking}
    blocks = {machine: _blocks(names, ranges) for machine, ranges in lacking.items()}
    with ExitStack() as stack:
        read = _Reader(directory, stack)
        while peers:
            # All of a round is read before any of it goes out: now each machine waits for the beginning of a block.
            try:
                turn = {machine: next(blocks[machine], _Block(_END, 0, 0, 0)) for machine in peers}
                data = {m: read(names[block.file], block) for m, block in turn.items() if block.file >= 0}
            except ExperimentError:
                for peer in peers.values():
                    peer.send(torch.tensor(_Block(_BROKEN, 0, 0, 0)))
                raise
            for machine, block in turn.items():
                peers[machine].send(torch.tensor(block))
                if block.file >= 0:
                    peers[machine].send(_with_digest(data[machine]))
                    sent += block.length
            for machine, block in turn.items():
                answer = int(peers[machine].receive(torch.empty(1, dtype=torch.int64)))
                if answer == _FAILED or block.file == _END:  # a machine that has failed says why itself
                    del peers[machine]
            if time.monotonic() - said > _SECONDS_BETWEEN_LINES:
                said = time.monotonic()
                progress(f"sent {sent / 1e6:,.1f} of {total / 1e6:,.1f} MB, {sent / 1e6 / (said - started):,.1f} MB/s")
    if sent == total:
        progress(f"sent {sent / 1e6:,.1f} MB in {time.monotonic() - started:.1f} s")


class _Reader:
    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._directory, self._stack = directory, stack
        self._files: dict[str, BinaryIO] = {}

    def __call__(self, name: str, block: _Block) -> bytes:
        try:
            if name not in self._files:
                self._files[name] = self._stack.enter_context((self._directory / name).open("rb"))
            data = os.pread(self._files[name].fileno(), block.length, block.start)
            if len(data) != block.length:
                raise OSError(errno.EIO, "it is shorter than it was")
        except OSError as error:
            raise ExperimentError(
                f"{self._directory / name} cannot be read for sending: {error.strerror}; look into it with `disttrain "
                "verify`, and partition again if it is damaged"
            ) from error
        return data


def _blocks(names: list[str], ranges: Ranges) -> Iterator[_Block]:
    for index, name in enumerate(names):
        for start, stop in ranges.get(name, ()):
            for at in range(start, stop, _BLOCK):
                end = min(at + _BLOCK, stop)
                yield _Block(index, at, end - at, int(end == stop))


def _with_digest(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data + hashlib.blake2b(data, digest_size=_DIGEST).digest()), dtype=torch.uint8)


def receive(
    world: World,
    group: dist.ProcessGroup,
    source: int,
    directory: Path,
    manifest: tuple[bytes, dict[str, Any]],
    holds: Holds,
    lacking: Ranges,
    progress: Callable[[str], None],
) -> None:
    """Take what this machine lacks into `directory`; its first rank calls it.

    Each range is on the disk before `holds.json` names it, and the manifest lands when all are there. So a directory
    whose receiver was killed is not opened, and the next run sends only what is not there yet.

    Args:
        source: the machine that sends.
        manifest: as bytes, and read.
        holds: what is there already.

    Raises:
        ExperimentError: the disk is full or not writable, or the sender's files are damaged.
        PeerError: the sender was lost.
    """
    peer, started = _Peer(world, group, source * world.local_size), time.monotonic()
    names, total = list(manifest[1]["files"]), num_bytes(lacking)
    with ExitStack() as files:
        taker = _Taker(directory, holds, manifest[1]["files"], files)
        failure = _failure(lambda: taker.prepare(lacking), world, directory, total)
        while True:
            block = _Block(*peer.receive(torch.empty(4, dtype=torch.int64)).tolist())
            if block.file == _BROKEN:
                raise ExperimentError(f"the partitions were not sent: rank {peer.rank} could not read them")
            if block.file >= 0:
                data = peer.receive(torch.empty(block.length + _DIGEST, dtype=torch.uint8)).numpy().tobytes()
                work = partial(taker.take, names[block.file], block, data)
            else:
                work = partial(_land_manifest, directory, manifest[0])
            failure = failure or _failure(work, world, directory, total)
            peer.send(torch.tensor([_FAILED if failure else _GOOD]))
            if failure:
                raise failure
            if block.file == _END:
                break
    progress(f"received {total / 1e6:,.1f} MB into {directory} in {time.monotonic() - started:.1f} s")


def _failure(work: Callable[[], None], world: World, directory: Path, total: int) -> ExperimentError | None:
    try:
        work()
    except ExperimentError as error:
        return error
    except OSError as error:
        if error.errno in _FULL:
            free = shutil.disk_usage(next(p for p in (directory, *directory.parents) if p.exists())).free
            return ExperimentError(
                f"partition directory {directory} on {world.host}: {os.strerror(error.errno or 0).lower()}; "
                f"{total / 1e6:,.1f} MB are to be received, {free / 1e6:,.1f} MB are free. Make room, or name a "
                "directory elsewhere (partition.dir). The next run goes on with what is missing"
            )
        return ExperimentError(
            f"partition directory {directory} on {world.host} cannot be written: {error}; name another, partition.dir"
        )
    return None


def _land_manifest(directory: Path, content: bytes) -> None:
    temporary = directory / f"{MANIFEST}.partial"
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, directory / MANIFEST)


class _Taker:
    """Writes blocks to their places and notes the ranges that are whole."""

    def __init__(self, directory: Path, holds: Holds, entries: dict[str, dict[str, Any]], files: ExitStack) -> None:
        self._directory, self._holds, self._entries, self._files = directory, holds, entries, files
        self._open: tuple[str, BinaryIO] | None = None
        self._range = hashlib.blake2b(digest_size=_DIGEST)
        self._begin = 0
        self._fresh = True

    def prepare(self, lacking: Ranges) -> None:
        """Make the files, of full size."""
        total = num_bytes(lacking)
        self._directory.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(self._directory).free < total:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        # First, so that what comes after is known for a directory that is being received.
        for name in self._entries:
            self._holds.pieces.setdefault(name, [])
        self._holds.write(self._directory)
        for name, entry in self._entries.items():
            path = self._directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab"):
                pass
            os.truncate(path, entry["bytes"])

    def take(self, name: str, block: _Block, data: bytes) -> None:
        content, digest = data[: block.length], data[block.length :]
        if hashlib.blake2b(content, digest_size=_DIGEST).digest() != digest:
            raise ExperimentError(
                f"{name}: a block did not arrive as it was sent (its checksum differs); the network or the memory of a "
                "machine is faulty. Start again: the next run goes on with what is missing"
            )
        if self._open is None or self._open[0] != name:
            self._files.close()
            self._open = name, self._files.enter_context((self._directory / name).open("r+b"))
        file = self._open[1]
        if self._fresh:
            self._range, self._begin, self._fresh = hashlib.blake2b(digest_size=_DIGEST), block.start, False
        file.seek(block.start)
        file.write(content)
        self._range.update(content)
        if block.closes:
            self._close(name, file, Piece(self._begin, block.start + block.length, self._range.hexdigest()))

    def _close(self, name: str, file: BinaryIO, piece: Piece) -> None:
        entry = self._entries[name]
        if (piece.start, piece.stop) == (0, entry["bytes"]) and piece.blake2b != entry["blake2b"]:
            raise ExperimentError(
                f"{name} is not what the manifest says of it where it was sent from: the file there was changed or "
                "damaged. Look into it with `disttrain verify`, and partition again"
            )
        file.flush()
        os.fsync(file.fileno())
        self._holds.pieces[name].append(piece)
        self._holds.write(self._directory)
        self._fresh = True
