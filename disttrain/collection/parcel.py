"""Objects on their way to another process: small things are pickled, what tensors and arrays hold goes into memory that
both processes map.

That memory has no name (Linux's `memfd`): it is there for as long as a process has it open or mapped, so that a process
that is killed leaves nothing behind. torch's own shared memory has a file and a descriptor for each tensor, which are
handed over through a socket with a name, in a folder that a killed process leaves; here a whole batch is one piece.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any

import numpy as np
import torch
from torch import Tensor

_ALIGNED = 64
_MOST_PIECES = 512
"""In one call of `writev`."""
_SMALL = 512
"""Bytes of an array that is pickled with the rest."""
_AT_ONCE = 1 << 26
"""Memory up to this size is mapped with all its pages at once; what is larger, as it is used."""

_segments: dict[int, tuple[int, int]] = {}
"""Memory that parcels may refer to, for as long as it is mapped: address -> size, descriptor."""


@dataclass(frozen=True)
class Parcel:
    """What to unpack, and the descriptors of the memory that it lies in; who has it, closes them."""

    content: bytes
    memory: tuple[int, ...]

    def send(self, line: Connection) -> None:
        line.send((self.content, len(self.memory)))
        for descriptor in self.memory:
            send_handle(line, descriptor, None)  # pyright: ignore[reportArgumentType]

    @staticmethod
    def receive(line: Connection) -> Parcel:
        """Raises:
        EOFError, OSError: the other process is gone.
        """
        content, count = line.recv()
        return Parcel(content, tuple(recv_handle(line) for _ in range(count)))

    def close(self) -> None:
        for descriptor in self.memory:
            os.close(descriptor)

    def open(self) -> Any:
        """What was packed. Arrays and tensors lie in the memory itself, which goes when none of them is left."""
        return _Unpickler(io.BytesIO(self.content), [_mapped(descriptor) for descriptor in self.memory]).load()

    def opened(self) -> Any:
        """`open`, then `close`."""
        try:
            return self.open()
        finally:
            self.close()


def pack(thing: Any, files: bool = False) -> Parcel:
    """Args:
    files: also copy what lies in mapped files; otherwise they are mapped again where the parcel is opened.

    Cost: that of copying arrays and tensors once, but for those that lie in files, or in the memory of `shared`.
    """
    stream = io.BytesIO()
    pickler = _Pickler(stream, files)
    pickler.dump(thing)
    return Parcel(stream.getvalue(), pickler.memory())


def shared(thing: Any, files: bool = False) -> Any:
    """The same with its arrays and tensors in memory that later parcels hand on without a copy.

    Args:
        files: also what lies in mapped files.
    """
    parcel = pack(thing, files)
    try:
        mapped = [_mapped(descriptor) for descriptor in parcel.memory]
        for memory, descriptor in zip(mapped, parcel.memory):
            if memory is not None:
                address = np.frombuffer(memory, np.uint8).__array_interface__["data"][0]
                _segments[address] = len(memory), os.dup(descriptor)
                weakref.finalize(memory, _forget, address)
        return _Unpickler(io.BytesIO(parcel.content), mapped).load()
    finally:
        parcel.close()


def _forget(address: int) -> None:
    os.close(_segments.pop(address)[1])


def _mapped(descriptor: int) -> mmap.mmap | None:
    size = os.fstat(descriptor).st_size
    if not size:
        return None
    at_once = mmap.MAP_POPULATE if size <= _AT_ONCE else 0
    return mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED | at_once)


class _Pickler(pickle.Pickler):
    """Arrays and tensors become (how to make it, where it lies, offset in bytes, type, shape)."""

    def __init__(self, stream: io.BytesIO, files: bool) -> None:
        super().__init__(stream, protocol=pickle.HIGHEST_PROTOCOL)
        self.files = files
        self.pieces: list[Any] = []
        self.size = 0
        self.others: dict[int, int] = {}
        """Descriptor of further memory -> its number."""
        self.known: dict[int, Any] = {}
        self.kept: list[Any] = []

    def persistent_id(self, obj: Any) -> Any:
        if type(obj) is Tensor and obj.layout == torch.strided and obj.device.type == "cpu":
            return self._once(obj, self._tensor)
        if isinstance(obj, np.ndarray) and not obj.dtype.hasobject and obj.dtype.names is None:
            return self._once(obj, self._array)
        return None

    def _once(self, obj: Any, made: Callable[[Any], Any]) -> Any:
        if id(obj) not in self.known:
            self.known[id(obj)] = made(obj)
            self.kept.append(obj)  # else its id may become another one's
        return self.known[id(obj)]

    def _tensor(self, tensor: Tensor) -> Any:
        # Of what has no elements the strides may be anything, which a view does not take.
        whole = tensor.detach().contiguous() if tensor.numel() else torch.empty(0, dtype=tensor.dtype)
        flat = whole.reshape(-1).view(torch.uint8).numpy()
        return ("tensor", *self._place(flat), str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))

    def _array(self, array: np.ndarray) -> Any:
        array_type = array.dtype.str
        if not self.files and array.flags.c_contiguous and (found := _file_of(array)) is not None:
            return ("file", *found, array_type, array.shape)
        if array.nbytes < _SMALL:
            return None
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return ("array", *self._place(flat), array_type, array.shape)

    def _place(self, flat: np.ndarray) -> tuple[int, int]:
        """Number of the memory, and offset in it."""
        address = flat.__array_interface__["data"][0]
        for start, (size, descriptor) in _segments.items():
            if start <= address and address + flat.nbytes <= start + size:
                return self.others.setdefault(descriptor, len(self.others) + 1), address - start
        offset = self.size
        if flat.nbytes:
            self.pieces += [flat.data, bytes(-flat.nbytes % _ALIGNED)]
            self.size += flat.nbytes + -flat.nbytes % _ALIGNED
        return 0, offset

    def memory(self) -> tuple[int, ...]:
        """Descriptors, of this process; the first is of what has been copied."""
        own = os.memfd_create("batch")
        try:
            _write(own, [piece for piece in self.pieces if len(piece)])
            return own, *(os.dup(descriptor) for descriptor in self.others)
        except BaseException:
            os.close(own)
            raise


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, memory: list[mmap.mmap | None]) -> None:
        super().__init__(stream)
        self.memory = memory

    def persistent_load(self, pid: Any) -> Any:
        kind, where, offset, name, shape = pid
        if kind == "tensor":
            dtype, count = getattr(torch, name), prod(shape)
            if not count:
                return torch.empty(shape, dtype=dtype)
            return torch.frombuffer(self.memory[where], dtype=dtype, count=count, offset=offset).view(shape)
        dtype, count = np.dtype(name), prod(shape)
        if not count:
            return np.empty(shape, dtype)
        if kind == "file":
            return np.asarray(np.memmap(where, dtype, "r", offset, shape))
        return np.frombuffer(self.memory[where], dtype, count, offset).reshape(shape)  # pyright: ignore[reportArgumentType]


def _file_of(array: np.ndarray) -> tuple[str, int] | None:
    """The file that an array is a mapped part of, and where in it that begins."""
    root: Any = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    if not isinstance(root, np.memmap) or root.filename is None:
        return None
    begins = [each.__array_interface__["data"][0] for each in (array, root)]
    return str(root.filename), root.offset + begins[0] - begins[1]


def _write(descriptor: int, pieces: list[Any]) -> None:
    while pieces:
        written = os.writev(descriptor, pieces[:_MOST_PIECES])
        while pieces and written >= len(pieces[0]):
            written -= len(pieces.pop(0))
        if written:
            pieces[0] = memoryview(pieces[0])[written:]
