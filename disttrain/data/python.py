"""A function of the user's own that returns a graph."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from ..config import ExperimentError, PythonData
from .arguments import check_arguments
from .dotted import import_dotted


def call_function(
    data: PythonData,
    anew: bool = False,
    more: Mapping[str, Any] = MappingProxyType({}),
    setting: str = "data.function",
) -> Any:
    """Call `data.function` with `data.args`.

    What it returns is checked by `conform`.

    Args:
        anew: if it is a class of data sets, have it process again what lies in its folder.
        more: further arguments.
        setting: that names it, for messages.

    Raises:
        ExperimentError: if it does not exist or does not take the arguments. What it raises itself propagates, with its
            traceback.
    """
    function = import_dotted(data.function, setting)
    if not callable(function):
        raise ExperimentError(f"{setting}: {data.function} is a {type(function).__name__}, not a function")
    check_arguments(function, data.args, setting.replace("function", "args"), given=more)
    if isinstance(function, type):
        from torch_geometric.data import Dataset

        from .pyg import processing

        if issubclass(function, Dataset):
            function = processing(function, anew)
    return function(**data.args, **more)
