"""What is learnt about which nodes, and how it is scored."""

from __future__ import annotations

from typing import Literal

from .section import Section

Metric = Literal["accuracy", "micro_f1", "macro_f1", "auroc", "average_precision"]


class NodeClassification(Section):
    kind: Literal["node_classification"]
    node_type: str | None = None
    """Null: the only type that has the label."""
    label: str = "y"
    multilabel: bool | Literal["auto"] = "auto"
    """`auto`: a label of shape [num_nodes, num_labels] is multi-label, one of shape [num_nodes] is single-label."""
    metrics: tuple[Metric, ...] = (
        "accuracy",
        "micro_f1",
        "macro_f1",
    )


Task = NodeClassification
