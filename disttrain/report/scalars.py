"""Figures over steps in TensorBoard's file format, written at once: the thread of torch's writer fails by itself."""

from __future__ import annotations

import itertools
import os
import socket
import time
from collections.abc import Iterable
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import (
    Event,  # pyright: ignore[reportAttributeAccessIssue]
    SessionLog,  # pyright: ignore[reportAttributeAccessIssue]
)
from tensorboard.summary.writer.record_writer import RecordWriter
from torch.utils.tensorboard.summary import scalar

from .files import explaining

_number = itertools.count()


class ScalarFile:
    """A new file in a directory, which is made; TensorBoard shows all files of a directory as one run.

    Args:
        purge_step: TensorBoard drops what other files of the directory say of this step and later ones.

    Raises:
        ExperimentError: by every method, if the disk refuses.
    """

    def __init__(self, directory: Path, purge_step: int | None = None) -> None:
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{next(_number)}"
        self._path = directory / name
        with explaining(self._path, "TensorBoard's figures"):
            directory.mkdir(parents=True, exist_ok=True)
            self._file = open(self._path, "ab")  # noqa: SIM115
        self._records = RecordWriter(self._file)
        events = [Event(wall_time=time.time(), file_version="brain.Event:2")]
        if purge_step is not None:
            start = SessionLog(status=SessionLog.START)
            events.append(Event(wall_time=time.time(), step=purge_step, session_log=start))
        self._write(events)

    def write(self, scalars: Iterable[tuple[str, float]], step: int) -> None:
        now = time.time()
        self._write(Event(wall_time=now, step=step, summary=scalar(name, value)) for name, value in scalars)

    def close(self) -> None:
        with explaining(self._path, "TensorBoard's figures"):
            self._file.close()

    def _write(self, events: Iterable[Event]) -> None:
        with explaining(self._path, "TensorBoard's figures"):
            for event in events:
                self._records.write(event.SerializeToString())
            self._file.flush()
