"""The user's own class of graphs, a subclass of `Data` or `HeteroData`: its name is kept with a collection, so that
transforms at each access get objects of it, with its rules (`__inc__`, `__cat_dim__`), as from an `InMemoryDataset`."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from torch_geometric.data import Data, HeteroData

from ..config import ExperimentError
from ..data.dotted import import_dotted


def name_of(kind: type) -> str | None:
    """`module:Name` of a class of the user's own; None of PyG's own two."""
    return None if kind in (Data, HeteroData) else f"{kind.__module__}:{kind.__qualname__}"


def find(name: str, packages: Collection[str]) -> Any:
    """The class of that name.

    Args:
        packages: that the experiment names code of; what a file says is imported from nowhere else.

    Raises:
        ExperimentError: it cannot be had; says why.
    """
    module, _, path = name.partition(":")
    where, instead = f"data.transforms: the graphs are of the class {name}", "or take data.pre_transforms"
    if module == "__main__" or "<locals>" in path:
        raise ExperimentError(
            f"{where}, which no other process can import; move it to the top of a module, and make the collection "
            f"again, {instead}"
        )
    if module.partition(".")[0] not in packages:
        known = ", ".join(sorted(packages)) or "none"
        raise ExperimentError(
            f"{where}. Code is imported from packages that the experiment names something of (here: {known}), not on "
            f"the word of the collection's files; name a transform or function of that package, {instead}"
        )
    found = import_dotted(name, "data.transforms (the class of the graphs)")
    if not (isinstance(found, type) and issubclass(found, (Data, HeteroData))):
        raise ExperimentError(f"{where}, which is no class of graphs any more; remove the collection, {instead}")
    try:
        found()
    except Exception as error:
        raise ExperimentError(
            f"{where}, and {path}() fails ({type(error).__name__}: {error}): for transforms at each access each graph "
            f"is made anew, as PyG's InMemoryDataset does, without arguments; give them defaults, {instead}"
        ) from error
    return found
