"""Batches on their way to the device: pinned, on a stream of their own, one batch ahead of the computation."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor
from torch_geometric.data import HeteroData

from .phases import PhaseClock


class Transfer:
    """Moves batches to `device`. On the CPU there is nothing to move, and nothing runs ahead."""

    def __init__(self, device: torch.device, clock: PhaseClock) -> None:
        self._device = device
        self._clock = clock
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._ahead = 1 if self._stream else 0

    def __call__(self, batches: Iterable[HeteroData]) -> Iterator[HeteroData]:
        on_the_way: deque[tuple[HeteroData, torch.cuda.Event | None]] = deque()
        source = iter(batches)
        while True:
            with self._clock.wall("wait_for_batch"):
                batch = next(source, None)
            if batch is None:
                break
            on_the_way.append(self._send(batch))
            if len(on_the_way) > self._ahead:
                yield self._receive(*on_the_way.popleft())
        while on_the_way:
            yield self._receive(*on_the_way.popleft())

    def _send(self, batch: HeteroData) -> tuple[HeteroData, torch.cuda.Event | None]:
        if self._stream is None:
            return batch, None
        pinned = batch.apply(lambda tensor: tensor.pin_memory() if tensor.layout == torch.strided else tensor)
        with torch.cuda.stream(self._stream), self._clock.on_device("to_device"):
            moved = pinned.to(self._device, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record(self._stream)
        return moved, arrived

    def _receive(self, batch: HeteroData, arrived: torch.cuda.Event | None) -> HeteroData:
        if arrived is not None:
            stream = torch.cuda.current_stream(self._device)
            stream.wait_event(arrived)
            # Its memory is the side stream's: the allocator must not reuse it before this stream is through with it.
            batch.apply(lambda tensor: _record(tensor, stream))
        return batch


def _record(tensor: Tensor, stream: torch.cuda.Stream) -> Tensor:
    """Also the parts of a sparse one, which has no memory of its own."""
    parts = [tensor]
    if tensor.layout == torch.sparse_coo:
        parts = [tensor._indices(), tensor._values()]
    elif tensor.layout == torch.sparse_csr:
        parts = [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    for part in parts:
        part.record_stream(stream)
    return tensor
