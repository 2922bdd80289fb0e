"""What is learnt about which nodes, and how it is scored."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from .section import Section

ClassificationMetric = Literal["accuracy", "micro_f1", "macro_f1", "auroc", "average_precision"]
RegressionMetric = Literal["mae", "rmse", "mse", "mape", "r2"]

ClassWeight = Annotated[float, Field(ge=0.0)]


class NodeClassification(Section):
    kind: Literal["node_classification"]
    node_type: str | None = None
    """Null: the only type that has the label."""
    label: str = "y"
    multilabel: bool | Literal["auto"] = "auto"
    """`auto`: a label of shape [num_nodes, num_labels] is multi-label, one of shape [num_nodes] is single-label."""
    class_weights: Literal["none", "balanced"] | tuple[ClassWeight, ...] | dict[str | int, ClassWeight] = "none"
    """What a seed's loss counts, by its class: a list, one for each class; or a mapping from the names of classes, 1
    for those not named (numbers of classes, where the names are no numbers themselves). `balanced`: the inverse of a
    class's share of the training seeds of the whole graph. The loss of a batch is divided by the sum of its weights.
    Multi-label: what a one counts against a zero, for each label; `balanced`: zeros / ones of the training seeds."""
    metrics: tuple[ClassificationMetric, ...] = (
        "accuracy",
        "micro_f1",
        "macro_f1",
    )


class NodeRegression(Section):
    """Numbers for nodes: a label of shape [num_nodes] or [num_nodes, num_targets]; NaN (in any column): no label."""

    kind: Literal["node_regression"]
    node_type: str | None = None
    """Null: the only type that has the label."""
    label: str = "y"
    loss: Literal["mse", "l1", "huber"] = "mse"
    """Averaged over the columns of the label."""
    delta: Annotated[float, Field(gt=0.0)] = 1.0
    """Of `huber`: where it turns from a square into a line, in the units in which is learnt."""
    standardize: bool = True
    """Learn each column with the mean and standard deviation of the training seeds taken off. Predictions and metrics
    are in the label's own units all the same."""
    metrics: tuple[RegressionMetric, ...] = ("mae", "rmse", "r2")


Task = Annotated[NodeClassification | NodeRegression, Field(discriminator="kind")]
