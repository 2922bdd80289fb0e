"""How the graph is cut, and where the parts lie."""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveInt

from .section import Section, Seed


class Partition(Section):
    parts: PositiveInt | Literal["auto"] = "auto"
    """How many; `auto`: one per machine. A graph cut into P parts runs on any number of machines up to P."""
    method: Literal["metis", "ldg", "fennel", "random"] = "metis"
    """`ldg` and `fennel` stream the edges from the disk and hold the nodes only, for graphs too large for `metis`."""
    passes: PositiveInt = 10
    """How often `ldg` and `fennel` go over all nodes, at most: they stop when hardly a node moves any more."""
    dir: str | None = None
    """Where; null: `partitions/` beside the data, in a folder named by its content."""
    seed: Seed = 0
    distribute: Literal["auto", "shared", "send"] = "auto"
    """How machines come by the partitions that one of them has made. `auto`: a machine that sees the directory (a
    shared disk, or a copy) uses it, any other one is sent what it needs; `send`: the same, without a moment's wait for
    a shared disk to show it; `shared`: a machine that does not see it is refused."""
    topology: Literal["partitioned", "replicated"] = "partitioned"
    """Edges that a machine reads: those to its own nodes; `replicated`: all, so that only features are exchanged."""
