"""What a model of the user's own may get wrong: said in a sentence, where torch would speak of reducers and shapes."""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch_geometric.data import HeteroData

from ..config import ExperimentError, edge_type_name
from ..graph.schema import GRAPH

_SEE = "the contract of a module of your own is in disttrain/models/__init__.py"
_OF_GRAPHS, _OF_NODES = 'docs/collections.md, "A model of your own"', "examples/own_model.py"


def check_output(logits: Any, num_seeds: int, out_channels: int) -> None:
    """Refuse what a model returned unless it is a floating [batch_size, out_channels].

    Raises:
        ExperimentError: says what came.
    """
    if isinstance(logits, Tensor) and logits.shape == (num_seeds, out_channels) and logits.is_floating_point():
        return
    came = f"{logits.dtype} {list(logits.shape)}" if isinstance(logits, Tensor) else type(logits).__name__
    raise ExperimentError(
        f"model.module: the model must return floating numbers [batch_size, out_channels], here "
        f"[{num_seeds}, {out_channels}], but returned {came}; {_SEE}"
    )


def lacks_attribute(error: AttributeError, batch: HeteroData) -> ExperimentError | None:
    """What to say when a model has asked a batch for what it has not; None: the error is another one."""
    asked = _OF_BATCH.match(str(error))
    if asked is None:
        return None
    example = f"a whole example is in {_OF_GRAPHS if GRAPH in batch.node_types else _OF_NODES}"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "torch_geometric" not in Path(f.filename).parts]
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    if asked["of"] != "HeteroData":
        return ExperimentError(
            f"model.module: what the batch has of a type has no `{asked['name']}`{place}; name it in `self.wants`, and "
            f"it is in each batch; {_SEE}, {example}"
        )
    nodes = ", ".join(batch.node_types)
    edges = ", ".join(edge_type_name(edge_type) for edge_type in batch.edge_types)
    relation = ", ".join(map(repr, batch.edge_types[0])) if batch.edge_types else "..."
    return ExperimentError(
        f"model.module: the batch has no `{asked['name']}` of its own{place}: it is a HeteroData, also of homogeneous "
        f'graphs, with the node types {nodes} and the relations {edges}: take batch["{batch.node_types[-1]}"].x, '
        f"batch[{relation}].edge_index; {_SEE}, {example}"
    )


_OF_BATCH = re.compile(r"'(?P<of>HeteroData|NodeStorage|EdgeStorage)' (?:object )?has no attribute '(?P<name>\w+)'")


def check_learnable(model: nn.Module) -> None:
    """Refuse a model without parameters to learn, or with some that are not made yet.

    Raises:
        ExperimentError: names them.
    """
    lazy = [name for name, p in model.named_parameters() if nn.parameter.is_lazy(p)]
    if lazy:
        raise ExperimentError(
            f"model.module: the parameters {_listed(lazy)} have no shape yet (lazy modules); give their widths, "
            "which `schema` tells"
        )
    if not any(p.requires_grad for p in model.parameters()):
        raise ExperimentError("model.module: the model has no parameter that wants a gradient: nothing to learn")


def check_gradients(left_out: list[str], num_seeds: int) -> None:
    """After a backward pass: refuse a model that left parameters out, before other ranks wait for their gradients.

    Raises:
        ExperimentError: names them.
    """
    if left_out:
        raise ExperimentError(
            f"model.module: the model made no use of its parameters {_listed(left_out)} for a batch of {num_seeds} "
            f"seeds; each has to take part in every batch, also in an empty one. Leave out the convolutions of the "
            f"last layer that do not lead to the seeds' type, or add `sum(p.sum() * 0.0 for p in self.parameters())` "
            f"to the output, as examples/own_model.py does; {_SEE}"
        )


def _listed(names: list[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
