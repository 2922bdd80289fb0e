"""Output streams that outlive their reader: `| head` ends what is shown, and not the work."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, TextIO


class LastingStream:
    """Writes to a text stream for as long as somebody reads it, and then to nowhere."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except BrokenPipeError:
            self._let_go()
            return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._let_go()

    def _let_go(self) -> None:
        # The stream itself stays: what it still holds, and what others write to it, goes to nowhere too.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
