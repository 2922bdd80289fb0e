"""Errors of the user's own functions: who wrote them wants to see their lines, and not those that led there."""

from __future__ import annotations

import traceback
from pathlib import Path
from types import TracebackType

_PACKAGE = Path(__file__).parent


class OwnCodeError(RuntimeError):
    """Code of the user's own has failed: the message says which, and with what. Its cause is what that raised."""


def traceback_of(error: BaseException) -> str:
    """What is shown of an error: its traceback; of an `OwnCodeError` that of the user's own error, from where their
    code begins, and the message."""
    cause: BaseException | None = error
    while isinstance(cause, OwnCodeError):
        cause = cause.__cause__
    if cause is error or cause is None:
        return "".join(traceback.format_exception(error)).rstrip()
    lines = traceback.format_exception(type(cause), cause, _from_own(cause.__traceback__))
    return "".join([*lines, *traceback.format_exception_only(RuntimeError(str(error)))]).rstrip()


def _from_own(frames: TracebackType | None) -> TracebackType | None:
    while frames is not None and _PACKAGE in Path(frames.tb_frame.f_code.co_filename).parents:
        frames = frames.tb_next
    return frames
