"""Errors of the user's own functions: who wrote them wants to see their lines, and not those that led there."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any

_PACKAGE = Path(__file__).parent


class OwnCodeError(RuntimeError):
    """Code of the user's own has failed: the message says which, and with what. Its cause is what that raised."""


class _Named:
    """What a setting names of the user's own: its files, and the code of the function, or of the methods of a class."""

    def __init__(self, setting: str, files: set[str], codes: set[CodeType]) -> None:
        self.setting, self.files, self.codes = setting, files, codes


_named: dict[str, _Named] = {}
"""By dotted path."""


def remember(path: str, where: str, found: Any) -> None:
    """From now on, an error in what a dotted path names is shown as one of the user's own.

    Args:
        where: the setting that names it, for messages.
        found: what it names.
    """
    modules = (path.partition(":")[0], getattr(found, "__module__", None))
    files = {getattr(sys.modules.get(module or ""), "__file__", None) for module in modules}
    members = [found, *(vars(found).values() if isinstance(found, type) else ())]
    codes = {code for member in members if isinstance(code := getattr(member, "__code__", None), CodeType)}
    _remember(path, where, {file for file in files if file is not None}, codes)


def remember_failed(path: str, where: str, error: Exception) -> None:
    """The same of a module that has raised while it was imported."""
    frames = [frame.f_code.co_filename for frame in _frames(error.__traceback__)]
    through = (importlib.__file__, "<frozen importlib")
    files = [file for file in frames if not file.startswith(through) and not _is_ours(file)][:1]
    if isinstance(error, SyntaxError) and error.filename is not None:
        files.append(error.filename)
    _remember(path, where, set(files), set())


def _remember(path: str, where: str, files: set[str], codes: set[CodeType]) -> None:
    setting = where if where.endswith(path) else f"{where} {path}"
    _named[path] = _Named(setting, {file for file in files if not _is_ours(file)}, codes)


def traceback_of(error: BaseException) -> str:
    """What is shown of an error: its traceback. If it was raised in what a setting names, from there on, headed by the
    setting; of an `OwnCodeError` that of the user's own error, from where their code begins, and the message."""
    cause: BaseException | None = error
    while isinstance(cause, OwnCodeError):
        cause = cause.__cause__
    if cause is error or cause is None:
        return _headed(error)
    lines = traceback.format_exception(type(cause), cause, _from_own(cause.__traceback__))
    return "".join([*lines, *traceback.format_exception_only(RuntimeError(str(error)))]).rstrip()


def _headed(error: BaseException) -> str:
    begins = error.__traceback__
    while begins is not None and not any(begins.tb_frame.f_code.co_filename in n.files for n in _named.values()):
        begins = begins.tb_next
    file = begins.tb_frame.f_code.co_filename if begins is not None else None
    if file is None and isinstance(error, SyntaxError):
        file = error.filename
    of_file = [named for named in _named.values() if file in named.files]
    if not of_file:
        return "".join(traceback.format_exception(error)).rstrip()
    codes = {frame.f_code for frame in _frames(begins)}
    of_code = [named for named in of_file if codes & named.codes]
    settings = " or ".join(dict.fromkeys(named.setting for named in of_code or of_file))
    _forget_ours(error)
    lines = traceback.format_exception(type(error), error, begins)
    return "".join([f"{settings} failed:\n", *lines]).rstrip()


def _forget_ours(error: BaseException) -> None:
    """Cut off what was being handled when the user's code was called; what that code itself has caught stays."""
    shown: BaseException | None = error
    while shown is not None:
        before = shown.__cause__ or shown.__context__
        caught = before.__traceback__ if before is not None else None
        if caught is not None and _is_ours(caught.tb_frame.f_code.co_filename):
            shown.__cause__ = shown.__context__ = before = None
        shown = before


def _from_own(frames: TracebackType | None) -> TracebackType | None:
    while frames is not None and _is_ours(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    return frames


def _frames(frames: TracebackType | None) -> Iterator[Any]:
    while frames is not None:
        yield frames.tb_frame
        frames = frames.tb_next


def _is_ours(file: str) -> bool:
    return _PACKAGE in Path(file).parents
