"""What is learnt about which nodes, or about graphs, and how it is scored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from .section import Section

ClassificationMetric = Literal["accuracy", "label_accuracy", "micro_f1", "macro_f1", "auroc", "average_precision"]
RegressionMetric = Literal["mae", "rmse", "mse", "mape", "r2"]

ClassWeight = Annotated[float, Field(ge=0.0)]


class NodeClassification(Section):
    kind: Literal["node_classification"]
    node_type: str | None = None
    """Null: the only type that has the label."""
    label: str = "y"
    multilabel: bool | Literal["auto"] = "auto"
    """`auto`: a label of shape [num_nodes, num_labels] is multi-label, one of shape [num_nodes] is single-label. Of
    several labels, single ones may be missing (NaN or negative)."""
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
    """Numbers for nodes: a label of shape [num_nodes] or [num_nodes, num_targets]; NaN: none."""

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


class GraphClassification(Section):
    """Classes of the graphs of a collection: a label of shape [1], or [1, num_labels], in each."""

    kind: Literal["graph_classification"]
    label: str = "y"
    multilabel: bool | Literal["auto"] = "auto"
    """As in node_classification."""
    class_weights: Literal["none", "balanced"] | tuple[ClassWeight, ...] | dict[str | int, ClassWeight] = "none"
    """As in node_classification."""
    metrics: tuple[ClassificationMetric, ...] = ("accuracy", "micro_f1", "macro_f1")

    @property
    def node_type(self) -> None:
        """The graphs, not nodes of a type."""
        return None


class GraphRegression(Section):
    """Numbers for the graphs of a collection: a label of shape [1], or [1, num_targets], in each; NaN: none."""

    kind: Literal["graph_regression"]
    label: str = "y"
    loss: Literal["mse", "l1", "huber"] = "mse"
    """Averaged over the columns of the label."""
    delta: Annotated[float, Field(gt=0.0)] = 1.0
    """Of `huber`: where it turns from a square into a line, in the units in which is learnt."""
    standardize: bool = True
    """As in node_regression, by the training graphs."""
    metrics: tuple[RegressionMetric, ...] = ("mae", "rmse", "r2")

    @property
    def node_type(self) -> None:
        """The graphs, not nodes of a type."""
        return None


GraphTask = GraphClassification | GraphRegression
"""About whole graphs."""
NodeTask = NodeClassification | NodeRegression
"""About the nodes of one graph."""

Task = Annotated[
    NodeClassification | NodeRegression | GraphClassification | GraphRegression, Field(discriminator="kind")
]


def task_conflicts(kinds: Mapping[str, str | None]) -> dict[tuple[str, ...], str]:
    """What does not go together with whether a task is about nodes or graphs: its path, and what is wrong.

    Args:
        kinds: `task`, `model`, `source`, `split` and `evaluate`: their kinds, methods and the like; None: unknown.
    """
    task, model, source, split, method = (kinds.get(key) for key in ("task", "model", "source", "split", "evaluate"))
    if task is None:
        return {}
    found: dict[tuple[str, ...], str] = {}
    if split == "stratified" and task.endswith("_regression"):
        found["data", "split", "by"] = (
            f"stratified gives each class its share, and task.kind is {task}, which has numbers and no classes; "
            "choose ratio, with the same shares (or a function of your own that divides them by ranges)"
        )
    if not task.startswith("graph_"):
        if model in ONLY_OF_GRAPHS:
            text = (
                f"{model} is about whole graphs, and task.kind is {task}; choose hetero_conv or another model of nodes"
            )
            found["model", "kind"] = text
        return found
    if model is not None and model not in (*GRAPH_MODELS, "custom"):
        found["model", "kind"] = (
            f"{model} is about nodes, and task.kind is {task}; choose {', '.join(GRAPH_MODELS)} or custom"
        )
    if source is not None and source not in COLLECTIONS:
        text = f"{source} gives one graph, and task.kind is {task}; a collection comes from {' or '.join(COLLECTIONS)}"
        if source in ("file", "ogb"):
            text += "; a function of a few lines gives a list in a file, or a data set of OGB (docs/collections.md)"
        found["data", "source"] = text
    if split is not None and split not in GRAPH_SPLITS:
        text = f"expected one of {', '.join(GRAPH_SPLITS)} where task.kind is {task}, got {split}"
        found["data", "split"] = text
    if method == "layerwise":
        found["evaluate", "method"] = (
            f"layerwise is about the nodes of one graph, and task.kind is {task}; leave it out"
        )
    return found


ONLY_OF_GRAPHS = ("gin", "gine", "gcn", "sage", "gat", "pna", "gps")
GRAPH_MODELS = (*ONLY_OF_GRAPHS, "hetero_conv")
COLLECTIONS = ("pyg", "python")
GRAPH_SPLITS = ("ratio", "stratified", "folds", "files", "function")
