"""Arguments from the YAML, checked against the signature of what they are for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from typing import Any

from ..config import ExperimentError
from .nearest import nearest


def check_arguments(
    function: Callable[..., Any], args: dict[str, Any], where: str, given: Collection[str] = ()
) -> None:
    """Refuse arguments that a callable does not take, and the absence of those that it needs, all in one message.

    Args:
        function: class or function that will be called.
        args: what the user gave.
        where: path in the YAML, for messages.
        given: parameters that are passed anyway.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return  # built in C, without a signature
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    valid = [p.name for p in named if p.name not in given]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    mistakes = [f'no argument "{name}"{nearest(name, valid)}' for name in args if name not in valid and not takes_any]
    mistakes += [f'"{p.name}" is missing' for p in named if p.default is p.empty and p.name not in (*args, *given)]
    if mistakes:
        name = getattr(function, "__name__", str(function))
        raise ExperimentError(f"{where}: {name}: " + "; ".join(mistakes))
