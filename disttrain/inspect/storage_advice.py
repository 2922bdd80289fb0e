"""How a collection should be kept, and why; and what its graphs speak for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..config import Experiment
from ..config.counted import counted
from ..report.size import size

_MUCH_FASTER = 1.5
_UNEVEN = 20.0
"""Times the median, from which on the largest graph makes batches uneven."""


def storage_advice(experiment: Experiment, facts: dict[str, Any]) -> Iterator[str]:
    """What `auto` takes here, why, and how fast it was; a storage that is much faster; and where the experiment names a
    slow one."""
    tried = {name: found for name, found in facts["storages"].items() if "refused" not in found}
    auto, why = facts["auto"]["storage"], facts["auto"]["why"]
    if auto not in tried:
        return
    first = (tried[auto]["load_seconds"] + tried[auto]["first_batch_seconds"]) * 1000
    yield (
        f"data.storage=auto, which is {auto} here: {why}; {_rate(tried[auto]):,.0f} graphs/s on one rank, the first "
        f"batch after {first:,.0f} ms"
    )
    fastest = max(tried, key=lambda name: _rate(tried[name]))
    if _rate(tried[fastest]) > _MUCH_FASTER * _rate(tried[auto]):
        own = tried[fastest]["process_bytes"]
        yield (
            f"data.storage={fastest} made {_rate(tried[fastest]):,.0f} graphs/s"
            + ("" if own is None else f", and takes {size(own)} in each process")
        )
    chosen = experiment.data.storage
    if (
        chosen in tried
        and chosen not in (auto, fastest)
        and _rate(tried[fastest]) > _MUCH_FASTER * _rate(tried[chosen])
    ):
        yield f"data.storage={chosen}, as the experiment has it, made {_rate(tried[chosen]):,.0f} graphs/s"


def graph_advice(experiment: Experiment, facts: dict[str, Any]) -> Iterator[str]:
    empty, nodes = facts["empty"], facts["sizes"]["nodes"]
    count = facts["collection"]["graphs"]
    if empty["without_nodes"]:
        yield (
            f"{counted(empty['without_nodes'], 'graph')} without a node: a model says the same of all such; "
            "data.pre_filter leaves them out"
        )
    if empty["without_edges"] > empty["without_nodes"] and empty["without_edges"] > 0.2 * count:
        yield f"{empty['without_edges']:,} of {counted(count, 'graph')} have no edge: a model sees their features only"
    if nodes["p50"] and nodes["max"] > _UNEVEN * nodes["p50"]:
        yield (
            f"the largest graph has {nodes['max']:,} nodes, the median {nodes['p50']:,}: batches of as many graphs "
            "differ in size; sampling.balance=size evens the ranks out, sampling.max_nodes bounds a batch"
        )


def _rate(found: dict[str, Any]) -> float:
    return found["graphs_per_second"]
