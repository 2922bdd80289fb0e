"""Things of the user's own, named `package.module:name`."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from ..config import ExperimentError
from ..own_code import remember, remember_failed
from .nearest import nearest


def import_dotted(path: str, where: str) -> Any:
    """Import what a dotted path names; modules beside the user's working directory are found too.

    Raises:
        ExperimentError: if the module or the name in it does not exist. What the module itself raises propagates.
    """
    module_name, _, name = path.partition(":")
    if not all(module_name.split(".")) or not all(name.split(".")):
        raise ExperimentError(f"{where}: expected package.module:name, got {path!r}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name == error.name or module_name.startswith(error.name + ".")):
            remember_failed(path, where, error)
            raise  # the module is there, and one that it imports is not
        raise ExperimentError(
            f"{where}: there is no module {error.name!r} (looked for {path!r} in {os.getcwd()} and the Python path)"
        ) from None
    except Exception as error:
        remember_failed(path, where, error)
        raise
    for part in name.split("."):
        if not hasattr(found, part):
            public = {name: value for name, value in vars(found).items() if not name.startswith("_")}
            own = [name for name, value in public.items() if getattr(value, "__module__", None) == module_name]
            raise ExperimentError(f"{where}: {module_name} has no {part!r}{nearest(part, own or public)}")
        found = getattr(found, part)
    remember(path, where, found)
    return found
