"""What a run says of features that are missing."""

from __future__ import annotations

import logging
from math import prod
from typing import Any

from torch import nn

from ..config import CustomModel, Experiment, TablesData, edge_type_name
from ..config.counted import counted
from ..graph.schema import Attribute, Schema

logger = logging.getLogger(__name__)


def tell_missing(experiment: Experiment, schema: Schema, model: nn.Module) -> None:
    """Warn of features that are missing (NaN) and of what the model takes for them. Of tables, where a missing value is
    an everyday matter, nothing is said.

    Cost: none; the schema knows.
    """
    if isinstance(experiment.data, TablesData):
        return
    wants: Any = model.wants
    own = isinstance(experiment.model, CustomModel)
    for owners, of_wants in ((schema.nodes, wants.nodes), (schema.edges, wants.edges)):
        for owner, names in of_wants.items():
            entry: Any = owners.get(owner)  # pyright: ignore[reportArgumentType, reportCallIssue]
            attributes: dict[str, Attribute] = {} if entry is None else entry.attributes
            for name in names:
                attribute = attributes.get(name)
                if entry is None or attribute is None or not attribute.missing:
                    continue
                shown = edge_type_name(owner) if isinstance(owner, tuple) else owner
                total = entry.count * prod(attribute.shape)
                means = "each counts as 0" if isinstance(owner, tuple) else "each counts as the mean of its column"
                logger.warning(
                    "`%s` of `%s`: %s of %s are missing (NaN); %s", name, shown, f"{attribute.missing:,}",
                    counted(total, "value"), "the model of your own gets them as they are" if own else means,
                )  # fmt: skip
